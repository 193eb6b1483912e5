"""`doctor` finds what is wrong, says what to do, and answers programs in a shape that stays."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast as package
from holdfast import SessionDB
from holdfast.cli import doctor_checks
from holdfast.store import store_meta
from holdfast.store.backup import atomic_file
from tests.cli.conftest import TRIP
from tests.support import cli_process

Holdfast = Callable[..., cli_process.Run]


def damaged(path: Path, *statements: str) -> None:
    """Change the file past every guard it has."""
    db = apsw.Connection(str(path))
    db.pragma("foreign_keys", False)
    triggers = [(name, sql) for name, sql in db.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'")]
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        db.execute(statement)
    for _, sql in triggers:
        db.execute(sql)
    # Otherwise the next open would notice that the schema was touched.
    db.execute("UPDATE meta SET value = ? WHERE key = 'schema_cookie'", (str(db.pragma("schema_version")),))
    db.close()


def test_a_healthy_store_is_ok(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("doctor", "--db", trip)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\nNo problems found.\n")
    assert "3 conversations, 5 sessions, 10 messages" in done.out
    assert "durability power-loss" in done.out
    assert f"holdfast {package.__version__}, python {sys.version.split()[0]}, apsw {apsw.apsw_version()}" in done.out
    assert f"sqlite {apsw.sqlite_lib_version()}" in done.out


def test_json_has_a_stable_shape(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("doctor", "--json", "--db", trip).data
    assert list(data) == [
        "ok",
        "findings",
        "store",
        "versions",
        "processes",
        "leases",
        "report",
        "search",
        "repairs",
        "done",
    ]
    assert (data["ok"], data["findings"], data["leases"], data["done"]) == (True, [], [], [])
    assert data["processes"] in ([], None)
    assert [list(repair) for repair in data["repairs"]] == [["name", "would"]]
    assert list(data["search"]) == ["exists", "behind", "errors"]
    assert list(data["versions"]) == ["holdfast", "python", "apsw", "sqlite"]
    assert data["store"]["path"] == str(trip)
    assert data["store"]["durability"] == "power-loss"
    assert set(data["store"]["files"]) == {"main", "-wal", "-shm", ".queue"}
    assert {entry["mode"] for entry in data["store"]["files"].values() if entry} == {"0600"}
    assert data["store"]["directory"] == {"path": str(trip.parent), "mode": "0700"}
    assert (data["report"]["ok"], data["report"]["messages"], data["report"]["violations"]) == (True, 10, [])


def test_a_missing_database_is_a_problem_and_is_not_made(holdfast: Holdfast, tmp_path: Path) -> None:
    done = holdfast("doctor", "--json", "--db", tmp_path / "none.db")
    assert done.code == 1
    assert (done.data["ok"], done.data["report"]) == (False, None)
    assert "There is no database" in done.data["findings"][0]["what"]
    assert done.data["versions"]["sqlite"] == apsw.sqlite_lib_version()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("statement", "promise"),
    [
        ("UPDATE messages SET body = 'other' WHERE seq = 1", "P1"),
        ("DELETE FROM messages WHERE seq = 3", "P2"),
        ("UPDATE sessions SET live = 1, ended_at = NULL, end_reason = NULL, last_seq = NULL WHERE id = 'other'", "P3"),
        ("UPDATE messages SET body = CAST(x'ff' AS TEXT) WHERE seq = 1", "database"),
    ],
)
def test_a_broken_promise_is_named_with_what_to_do(
    holdfast: Holdfast, trip: Path, statement: str, promise: str
) -> None:
    damaged(trip, statement)
    done = holdfast("doctor", "--json", "--db", trip)
    assert done.code == 1
    assert not done.data["ok"]
    assert promise in {violation["promise"] for violation in done.data["report"]["violations"]}
    assert all(list(finding) == ["level", "kind", "what", "next"] for finding in done.data["findings"])
    assert {finding["kind"] for finding in done.data["findings"]} == {"damage"}
    salvaged = trip.with_name("trip-salvaged.db")
    assert all(f"`holdfast salvage {trip} {salvaged}`" in each["next"] for each in done.data["findings"])
    told = holdfast("doctor", "--db", trip)
    assert (told.code, told.err) == (1, "")
    assert f"problem: {promise} is broken" in told.out


def advised(holdfast: Holdfast, path: Path, backup: Path) -> str:
    """The command line that doctor gives to who has a backup, as a shell takes it."""
    (advice, *_) = [each["next"] for each in holdfast("doctor", "--json", "--db", path).data["findings"]]
    line = advice.split("With a backup: `")[1].split("`")[0]
    program_here = " ".join(shlex.quote(part) for part in cli_process.PROGRAM)
    return f"{line} --yes".replace("BACKUP", shlex.quote(str(backup))).replace(
        "holdfast restore", f"{program_here} restore"
    )


@pytest.mark.parametrize("how", ["does not open", "opens"])
def test_advice_for_who_has_a_backup_leads_to_a_sound_store(
    holdfast: Holdfast, trip: Path, tmp_path: Path, how: str
) -> None:
    holdfast("backup", tmp_path / "copy.db", "--db", trip)
    if how == "opens":
        damaged(trip, "UPDATE messages SET body = 'other' WHERE seq = 1")
    else:
        trip.write_bytes(b"\xff" * 4096 + trip.read_bytes()[4096:])
    before = trip.read_bytes()
    line = advised(holdfast, trip, tmp_path / "copy.db")
    done = subprocess.run(line, shell=True, env=cli_process.environment(tmp_path), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    after = holdfast("doctor", "--json", "--db", trip).data
    assert (after["ok"], after["report"]["messages"]) == (True, 10)
    if how == "does not open":
        moved = [path.read_bytes() for path in trip.parent.glob("trip.db.damaged-*")]
        assert before in moved


def test_fix_takes_nothing_from_a_damaged_store_that_a_salvage_would_save(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with SessionDB(path, durability="process-crash") as db:
        for name in ("keep", "gone"):
            db.create_session(name, source="test")
        for number in range(300):
            db.append_message("keep", role="user", content=f"kept {number} " * 30)
            db.append_message("gone", role="user", content="removed " * 40)
        db.acquire_lease("keep", "turn", "late", ttl=0.001)
        db.delete_conversation("gone")
    misled(path)
    subprocess.run(
        [
            sys.executable,
            "-c",
            f"from holdfast.store.backup import atomic_file; atomic_file.create({str(tmp_path)!r}, 'store.db')",
        ],
        check=True,
    )
    sick = holdfast("doctor", "--json", "--db", path).data
    assert "damage" in {finding["kind"] for finding in sick["findings"]}
    mended = holdfast("doctor", "--fix", "--json", "--db", path).data
    assert {repair["name"] for repair in sick["repairs"]} | {repair["name"] for repair in mended["repairs"]} <= {
        "search"
    }
    saved = holdfast("salvage", path, tmp_path / "new.db", "--json").data
    assert saved["messages"] == 300
    with SessionDB(tmp_path / "new.db") as db:
        assert [message.content for message in db.transcript("keep")] == [f"kept {n} " * 30 for n in range(300)]


def misled(path: Path) -> None:
    """Let the way to one page of messages lead to its neighbour: the page is whole, and nothing leads to it."""
    db = apsw.Connection(str(path))
    (root,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'messages'").fetchone() or (0,)
    size = db.pragma("page_size")
    db.pragma("wal_checkpoint(truncate)")
    db.close()
    data = bytearray(path.read_bytes())
    page = (root - 1) * size
    cells = int.from_bytes(data[page + 3 : page + 5], "big")
    assert (data[page], cells > 3) == (5, True), "an inner page of a table"
    one, next_ = (
        page + int.from_bytes(data[page + 12 + 2 * n : page + 14 + 2 * n], "big") for n in (cells // 2, cells // 2 + 1)
    )
    data[one : one + 4] = data[next_ : next_ + 4]
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["an export", "a backup"])
def test_damaged_attachment_is_brought_back_the_way_doctor_says(
    holdfast: Holdfast, trip: Path, tmp_path: Path, how: str
) -> None:
    with SessionDB(trip) as db:
        blob = db.blobs.put(b"picture", "image/png")
        db.append_message(TRIP, role="user", content=[{"type": "image", "blob": blob.digest}])
        db.admin.backup(tmp_path / "copy.db")
        db.admin.export_to(tmp_path / "all.jsonl")
    place = Path("trip.db.blobs") / blob.digest[:2] / blob.digest[2:]
    (tmp_path / place).write_bytes(b"another")
    sick = holdfast("doctor", "--json", "--db", trip).data
    (finding,) = sick["findings"]
    assert finding["kind"] == "damage"
    assert f"{trip}.blobs" in finding["next"]
    assert "salvage" not in finding["next"]
    assert "upkeep" in [repair["name"] for repair in sick["repairs"]], "the database itself is sound"
    if how == "an export":
        line = finding["next"].split("`holdfast ")[1].split("`")[0]
        holdfast(*shlex.split(line.replace("EXPORT", "all.jsonl")))
    else:
        shutil.copy(tmp_path / "copy.db.blobs" / place.relative_to("trip.db.blobs"), tmp_path / place)
    assert holdfast("doctor", "--json", "--db", trip).data["ok"]


def test_a_file_that_is_no_database_is_a_problem(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "garbage.db"
    path.write_bytes(os.urandom(10_000))
    done = holdfast("doctor", "--db", path)
    assert (done.code, done.err) == (1, "")
    assert "problem: " in done.out
    assert "   next: If it is the right file" in done.out


def test_store_that_other_users_could_read_is_a_note_once(holdfast: Holdfast, trip: Path) -> None:
    trip.chmod(0o644)
    done = holdfast("doctor", "--json", "--db", trip)
    assert done.code == 0
    (finding,) = done.data["findings"]
    assert (finding["level"], finding["kind"]) == ("note", "mode")
    assert "0644" in finding["what"]
    assert trip.stat().st_mode & 0o777 == 0o600
    assert holdfast("doctor", "--json", "--db", trip).data["findings"] == []


def test_leases_are_told_by_holder_and_state(holdfast: Holdfast, trip: Path) -> None:
    code = f"from holdfast import SessionDB; SessionDB({str(trip)!r}).acquire_lease('other', 'turn', 'gone')"
    subprocess.run([sys.executable, "-c", code], check=True)
    with SessionDB(trip) as db:
        db.acquire_lease(TRIP, "compact", "me")
        db.acquire_lease("other", "compact", "late", ttl=0.001)
        done = holdfast("doctor", "--json", "--db", trip)
        told = holdfast("doctor", "--db", trip).out
    states = {(lease["purpose"], lease["holder"]): lease["state"] for lease in done.data["leases"]}
    assert states == {("compact", "me"): "held", ("compact", "late"): "expired", ("turn", "gone"): "dead"}
    assert done.code == 0
    assert len(done.data["findings"]) == 2
    assert f"{TRIP} compact: held by me (pid {os.getpid()} on " in told
    assert "other turn: dead: gone (pid " in told


def test_progress_is_shown_to_who_watches_and_taken_away(trip: Path, tmp_path: Path) -> None:
    shown = cli_process.run_in_terminal(tmp_path, "doctor", "--db", trip, columns=80, env={"NO_COLOR": "1"})
    assert "checking 10 of 10 messages\r\x1b[K" in shown.out
    assert shown.code == 0


def test_fix_does_what_was_offered_and_looks_again(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.search("message")
        db.append_message("other", role="user", content="written since")
    before = holdfast("doctor", "--json", "--db", trip).data
    assert [repair["name"] for repair in before["repairs"]] == ["search", "upkeep"]
    assert (before["ok"], before["done"]) == (True, [])
    after = holdfast("doctor", "--fix", "--json", "--db", trip).data
    assert after["repairs"] == []
    assert "indexed 1 message" in after["done"]
    assert after["search"]["behind"] == 0


def test_a_damaged_index_is_a_problem_that_fix_puts_right(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.search("message")
    Path(f"{trip}.search").write_bytes(b"garbage" * 1000)
    sick = holdfast("doctor", "--db", trip)
    assert (sick.code, "search index is damaged" in sick.out) == (1, True)
    assert "would:" in sick.out
    mended = holdfast("doctor", "--fix", "--db", trip)
    assert (mended.code, "rebuilt the search index" in mended.out) == (0, True)


# --- the schema ----------------------------------------------------------------------------------------------

WEAK = {
    "trigger": "DROP TRIGGER message_is_only_redacted;"
    " CREATE TRIGGER message_is_only_redacted BEFORE UPDATE ON messages WHEN 0 BEGIN SELECT 1; END",
    "index": "DROP INDEX routes_by_conversation; CREATE INDEX routes_by_conversation ON routes (version)",
}


def altered(path: Path, *statements: str) -> None:
    """Change the schema, in a way that the next open does not notice."""
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement)
    db.execute("UPDATE meta SET value = ? WHERE key = 'schema_cookie'", (str(db.pragma("schema_version")),))
    db.close()


@pytest.mark.parametrize("kind", WEAK)
def test_weakened_trigger_or_index_is_a_problem_that_fix_puts_right(holdfast: Holdfast, trip: Path, kind: str) -> None:
    altered(trip, WEAK[kind])
    sick = holdfast("doctor", "--json", "--db", trip)
    assert sick.code == 1
    (finding,) = sick.data["findings"]
    assert (finding["level"], finding["kind"]) == ("problem", "schema")
    assert "differs from its declaration" in finding["what"]
    assert sick.data["repairs"][0]["name"] == "schema"
    mended = holdfast("doctor", "--fix", "--json", "--db", trip)
    assert (mended.code, mended.data["findings"]) == (0, [])
    assert mended.data["done"][0].startswith(f"created again: the {kind} ")
    with SessionDB(trip) as db:
        assert db.admin.fsck().ok


def test_trigger_of_somebody_else_is_a_problem_and_left_alone(holdfast: Holdfast, trip: Path) -> None:
    altered(trip, "CREATE TRIGGER mine BEFORE INSERT ON messages BEGIN SELECT raise(IGNORE); END")
    done = holdfast("doctor", "--fix", "--json", "--db", trip)
    (finding,) = done.data["findings"]
    assert (done.code, finding["kind"]) == (1, "schema")
    assert "DROP TRIGGER mine" in finding["next"]


def test_table_that_differs_is_told_of_and_left_alone(holdfast: Holdfast, trip: Path) -> None:
    weaker = "replace(sql, 'CHECK (version >= 1)', '')"
    altered(trip, "PRAGMA writable_schema = ON", f"UPDATE sqlite_schema SET sql = {weaker} WHERE name = 'routes'")
    done = holdfast("doctor", "--fix", "--json", "--db", trip)
    (finding,) = done.data["findings"]
    assert (done.code, finding["level"], finding["kind"]) == (0, "note", "schema")
    assert "the table routes differs from its declaration" in finding["what"]


# --- what was left behind ------------------------------------------------------------------------------------


@cli_process.needs_proc
def test_processes_that_use_the_store_are_named(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip):
        data = holdfast("doctor", "--json", "--db", trip).data
        assert [(each["pid"], each["stale"]) for each in data["processes"]] == [(os.getpid(), False)]
        assert f"used by     process {os.getpid()}: " in holdfast("doctor", "--db", trip).out


@cli_process.needs_proc
def test_process_with_a_file_that_was_replaced_is_told_of(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    holdfast("backup", tmp_path / "copy.db", "--db", trip)
    with SessionDB(trip):
        os.replace(tmp_path / "copy.db", trip)
        for suffix in ("-wal", "-shm"):
            os.unlink(f"{trip}{suffix}")
        data = holdfast("doctor", "--json", "--db", trip).data
    assert [each["stale"] for each in data["processes"]] == [True]
    assert "process" in {finding["kind"] for finding in data["findings"]}


def test_closed_descriptor_does_not_hide_a_process(trip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("self/fd", "123/fd"):
        (tmp_path / "proc" / folder).mkdir(parents=True)
    for name in ("0", "2"):
        (tmp_path / "proc/123/fd" / name).touch()  # As a descriptor that is closed meanwhile, this is not a link.
    (tmp_path / "proc/123/fd/1").symlink_to(trip)
    (tmp_path / "proc/123/cmdline").write_bytes(b"some\0program\0")
    monkeypatch.setattr(doctor_checks, "PROC", str(tmp_path / "proc"))
    assert doctor_checks.find_store_users(str(trip)) == [doctor_checks.StoreUser(123, "some program", False)]


def test_scheduled_backup_that_did_not_finish_is_a_note(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.driver.write("meta", lambda tx: tx.run("meta_set", key=store_meta.BACKUP_CLAIMED, value="1000000.0"))
    (finding,) = holdfast("doctor", "--json", "--db", trip).data["findings"]
    assert (finding["level"], finding["kind"]) == ("note", "backup")


def test_drafts_of_dead_processes_are_found_and_removed_by_fix_only(holdfast: Holdfast, trip: Path) -> None:
    code = f"from holdfast.store.backup import atomic_file; print(atomic_file.create({str(trip.parent)!r}, 'trip.db'))"
    left = Path(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip())
    alive = Path(atomic_file.create(str(trip.parent), "another"))
    found = holdfast("doctor", "--json", "--db", trip)
    (finding,) = found.data["findings"]
    assert (found.code, finding["kind"], finding["level"]) == (0, "leftover", "note")
    assert str(left) in finding["what"]
    assert left.exists()
    assert (
        "removed 1 file left by processes that died" in holdfast("doctor", "--fix", "--json", "--db", trip).data["done"]
    )
    assert not left.exists()
    assert alive.exists()


def test_scheduled_backups_that_do_not_come_are_told_of(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    def notes() -> list[str]:
        found = holdfast("doctor", "--json", "--db", trip)
        assert found.code == 0
        assert all(each["level"] == "note" and "holdfast backup" in each["next"] for each in found.data["findings"])
        return [each["what"] for each in found.data["findings"] if each["kind"] == "backup"]

    assert notes() == [], "nobody asked for any"
    settings = tmp_path / "data" / "config.toml"
    settings.parent.mkdir(mode=0o700)
    settings.write_text('[backup]\nfolder = "copies"\n', encoding="utf-8")
    assert notes() == ["No scheduled backup has been made yet."]
    (settings.parent / "copies").touch()
    assert holdfast("backup", "--db", trip).code == 1
    assert notes() == ["The last attempt at a scheduled backup failed."]
    (settings.parent / "copies").unlink()
    assert holdfast("backup", "--db", trip).code == 0
    assert notes() == []
    with SessionDB(trip) as db:
        db.driver.write("meta", lambda tx: tx.run("meta_set", key=store_meta.BACKUP_DONE, value="1000000.0"))
    assert notes() == ["Scheduled backups are overdue."]


def test_settings_that_are_wrong_are_findings_and_the_store_is_looked_at_all_the_same(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f"colour = true\ndatabase = '{trip}'\n[limits]\nsteps = 0\n", "utf-8")
    done = holdfast("doctor", "--json", HOLDFAST_HOME=str(home), HOLDFAST_DB="")
    assert (done.code, done.data["ok"]) == (1, False)
    wrong = [each["what"] for each in done.data["findings"] if each["kind"] == "settings"]
    assert len(wrong) == 2
    assert "`colour`" in wrong[0]
    assert "`limits.steps`" in wrong[1]
    assert done.data["report"]["ok"]
    assert done.data["store"]["path"] == str(trip)


def test_help_says_what_the_exit_codes_mean(holdfast: Holdfast) -> None:
    told = " ".join(holdfast("doctor", "--help").out.split())
    assert "Exits with 0 if there is no problem" in told
    assert "with 2 on a usage error" in told
    assert holdfast("doctor", "--nonsense").code == 2
