"""`holdfast doctor`: findings with remedies, repairs on request, and a stable JSON document."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast as package
from holdfast import SessionDB
from holdfast.store.backup import atomic_file
from tests.cli.conftest import TRIP
from tests.support import backends, cli_process, pty_terminal
from tests.support.cli_process import Holdfast, Run


def change_schema(path: Path, *statements: str) -> None:
    """Execute statements so that the next open does not notice a change of the schema."""
    db = apsw.Connection(str(path))
    for statement in statements:
        db.execute(statement)
    db.execute("UPDATE meta SET value = ? WHERE key = 'schema_cookie'", (str(db.pragma("schema_version")),))
    db.close()


def damage(path: Path, statement: str) -> None:
    """Execute a statement without constraints and triggers, which the next open creates again."""
    with SessionDB(path) as db:
        backends.drop_triggers(db)
        backends.raw(db, statement)
    SessionDB(path).close()


Doctor = Callable[..., Run]


@pytest.fixture
def doctor(on_trip: Holdfast) -> Doctor:
    """Run `doctor --json` on the store."""
    return lambda *arguments: on_trip("doctor", "--json", *arguments)


def only_finding(done: Run, code: int, level: str, kind: str) -> dict[str, Any]:
    (finding,) = done.data["findings"]
    assert (done.code, finding["level"], finding["kind"]) == (code, level, kind)
    return finding


def test_sound_store_has_no_problems(on_trip: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = on_trip("doctor")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\nNo problems found.\n")
    assert "3 conversations, 5 sessions, 10 messages" in done.out
    assert "durability power-loss" in done.out
    assert f"holdfast {package.__version__}, python {sys.version.split()[0]}, apsw {apsw.apsw_version()}" in done.out
    assert f"sqlite {apsw.sqlite_lib_version()}" in done.out
    shown = pty_terminal.run(tmp_path, "doctor", "--db", trip, columns=80, env={"NO_COLOR": "1"})
    assert "checking 10 of 10 messages\r\x1b[K" in shown.out
    assert shown.code == 0


def test_json_has_a_stable_shape(doctor: Doctor, trip: Path) -> None:
    data = doctor().data
    keys = ["ok", "findings", "store", "versions", "processes", "leases", "report", "search", "repairs", "done"]
    assert list(data) == keys
    assert (data["ok"], data["findings"], data["leases"], data["done"]) == (True, [], [], [])
    assert data["processes"] in ([], None)
    assert [list(repair) for repair in data["repairs"]] == [["name", "would"]]
    assert list(data["search"]) == ["exists", "behind", "errors"]
    assert list(data["versions"]) == ["holdfast", "python", "apsw", "sqlite"]
    assert (data["store"]["path"], data["store"]["durability"]) == (str(trip), "power-loss")
    assert set(data["store"]["files"]) == {"main", "-wal", "-shm", ".queue"}
    assert {entry["mode"] for entry in data["store"]["files"].values() if entry} == {"0600"}
    assert data["store"]["directory"] == {"path": str(trip.parent), "mode": "0700"}
    assert (data["report"]["ok"], data["report"]["messages"], data["report"]["violations"]) == (True, 10, [])


def test_missing_or_foreign_file_is_a_problem(holdfast: Holdfast, tmp_path: Path) -> None:
    done = holdfast("doctor", "--json", "--db", tmp_path / "none.db")
    assert (done.code, done.data["ok"], done.data["report"]) == (1, False, None)
    assert "There is no database" in done.data["findings"][0]["what"]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "garbage.db").write_bytes(os.urandom(10_000))
    done = holdfast("doctor", "--db", tmp_path / "garbage.db")
    assert (done.code, done.err) == (1, "")
    assert "problem: " in done.out
    assert "   next: If it is the right file" in done.out


@pytest.mark.parametrize(
    ("statement", "promise"),
    [
        ("UPDATE messages SET body = 'other' WHERE seq = 1", "P1"),
        ("DELETE FROM messages WHERE seq = 3", "P2"),
        ("UPDATE messages SET body = CAST(x'ff' AS TEXT) WHERE seq = 1", "database"),
    ],
)
def test_broken_promise_is_named(doctor: Doctor, on_trip: Holdfast, trip: Path, statement: str, promise: str) -> None:
    damage(trip, statement)
    done = doctor()
    assert (done.code, done.data["ok"]) == (1, False)
    assert promise in {violation["promise"] for violation in done.data["report"]["violations"]}
    assert all(list(finding) == ["level", "kind", "what", "next"] for finding in done.data["findings"])
    assert {finding["kind"] for finding in done.data["findings"]} == {"damage"}
    fixed = doctor("--fix").data
    repairs = {repair["name"] for data in (done.data, fixed) for repair in data["repairs"]}
    assert repairs <= {"search"}, "any other repair could destroy what `salvage` can save"
    salvaged = trip.with_name("trip-salvaged.db")
    assert all(f"`holdfast salvage {trip} {salvaged}`" in each["next"] for each in done.data["findings"])
    text = on_trip("doctor")
    assert (text.code, text.err) == (1, "")
    assert f"problem: {promise} is broken" in text.out


@pytest.mark.parametrize("opens", [False, True], ids=["does not open", "opens"])
def test_advised_restore_succeeds(doctor: Doctor, on_trip: Holdfast, trip: Path, tmp_path: Path, opens: bool) -> None:
    copy = tmp_path / "copy.db"
    on_trip("backup", copy)
    if opens:
        damage(trip, "UPDATE messages SET body = 'other' WHERE seq = 1")
    else:
        trip.write_bytes(b"\xff" * 4096 + trip.read_bytes()[4096:])
    before = trip.read_bytes()
    line = doctor().data["findings"][0]["next"].split("With a backup: `")[1].split("`")[0]
    program = shlex.join(cli_process.PROGRAM)
    line = line.replace("BACKUP", shlex.quote(str(copy))).replace("holdfast restore", f"{program} restore")
    done = cli_process.run(tmp_path, command=["sh", "-c", f"{line} --yes"])
    assert done.code == 0, done.err
    after = doctor().data
    assert (after["ok"], after["report"]["messages"]) == (True, 10)
    assert opens or before in [path.read_bytes() for path in trip.parent.glob("trip.db.damaged-*")]


def test_mode_that_others_can_read_is_reported_once(doctor: Doctor, trip: Path) -> None:
    trip.chmod(0o644)
    assert "0644" in only_finding(doctor(), 0, "note", "mode")["what"]
    assert trip.stat().st_mode & 0o777 == 0o600
    assert doctor().data["findings"] == []


def test_leases_are_shown_with_holder_and_state(doctor: Doctor, on_trip: Holdfast, trip: Path, tmp_path: Path) -> None:
    code = f"from holdfast import SessionDB; SessionDB({str(trip)!r}).acquire_lease('other', 'turn', 'gone')"
    assert cli_process.run_code(tmp_path, code, env={"PYTHONWARNINGS": ""}).code == 0
    with SessionDB(trip) as db:
        db.acquire_lease(TRIP, "compact", "me")
        db.acquire_lease("other", "compact", "late", ttl=0.001)
        done = doctor()
        text = on_trip("doctor").out
    states = {(lease["purpose"], lease["holder"]): lease["state"] for lease in done.data["leases"]}
    assert states == {("compact", "me"): "held", ("compact", "late"): "expired", ("turn", "gone"): "dead"}
    assert (done.code, len(done.data["findings"])) == (0, 2)
    assert f"{TRIP} compact: held by me (pid {os.getpid()} on " in text
    assert "other turn: dead: gone (pid " in text


def test_fix_makes_the_offered_repairs(doctor: Doctor, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.search("message")
        db.append_message("other", role="user", content="written since")
    before = doctor().data
    assert [repair["name"] for repair in before["repairs"]] == ["search", "upkeep"]
    assert (before["ok"], before["done"]) == (True, [])
    after = doctor("--fix").data
    assert (after["repairs"], after["search"]["behind"]) == ([], 0)
    assert "indexed 1 message" in after["done"]


WEAK = {
    "trigger": "DROP TRIGGER message_is_only_redacted;"
    " CREATE TRIGGER message_is_only_redacted BEFORE UPDATE ON messages WHEN 0 BEGIN SELECT 1; END",
    "index": "DROP INDEX routes_by_conversation; CREATE INDEX routes_by_conversation ON routes (version)",
}


@pytest.mark.parametrize("kind", WEAK)
def test_fix_repairs_a_weakened_trigger_or_index(doctor: Doctor, trip: Path, kind: str) -> None:
    change_schema(trip, WEAK[kind])
    sick = doctor()
    assert "differs from its declaration" in only_finding(sick, 1, "problem", "schema")["what"]
    assert sick.data["repairs"][0]["name"] == "schema"
    fixed = doctor("--fix")
    assert (fixed.code, fixed.data["findings"]) == (0, [])
    assert fixed.data["done"][0].startswith(f"created again: the {kind} ")


def test_fix_leaves_foreign_triggers_and_changed_tables(doctor: Doctor, trip: Path) -> None:
    weaker = "replace(sql, 'CHECK (version >= 1)', '')"
    change_schema(trip, "PRAGMA writable_schema = ON", f"UPDATE sqlite_schema SET sql = {weaker} WHERE name = 'routes'")
    note = only_finding(doctor("--fix"), 0, "note", "schema")
    assert "the table routes differs from its declaration" in note["what"]
    change_schema(trip, "CREATE TRIGGER mine BEFORE INSERT ON messages BEGIN SELECT raise(IGNORE); END")
    done = doctor("--fix")
    assert done.code == 1
    assert any("DROP TRIGGER mine" in finding["next"] for finding in done.data["findings"])


@cli_process.needs_proc
def test_processes_that_use_the_store_are_named(trip: Path, tmp_path: Path, on_trip: Holdfast) -> None:
    def processes() -> list[tuple[int, bool]]:
        data = cli_process.run(tmp_path, "doctor", "--json", "--db", trip).data
        assert not any(each["stale"] for each in data["processes"]) or "process" in {
            finding["kind"] for finding in data["findings"]
        }
        return [(each["pid"], each["stale"]) for each in data["processes"]]

    on_trip("backup", tmp_path / "copy.db")
    with SessionDB(trip):
        assert processes() == [(os.getpid(), False)]
        os.replace(tmp_path / "copy.db", trip)
        for suffix in ("-wal", "-shm"):
            os.unlink(f"{trip}{suffix}")
        assert processes() == [(os.getpid(), True)]


def test_fix_removes_drafts_of_dead_processes(doctor: Doctor, trip: Path, tmp_path: Path) -> None:
    code = f"from holdfast.store.backup import atomic_file; print(atomic_file.create({str(trip.parent)!r}, 'trip.db'))"
    left = Path(cli_process.run_code(tmp_path, code).out.strip())
    alive = Path(atomic_file.create(str(trip.parent), "another"))
    assert str(left) in only_finding(doctor(), 0, "note", "leftover")["what"]
    assert left.exists()
    assert "removed 1 file left by processes that died" in doctor("--fix").data["done"]
    assert (left.exists(), alive.exists()) == (False, True)


def test_invalid_settings_are_reported_with_the_store(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text(f"colour = true\ndatabase = '{trip}'\n[limits]\nsteps = 0\n", "utf-8")
    done = holdfast("doctor", "--json", HOLDFAST_HOME=str(home), HOLDFAST_DB="")
    assert (done.code, done.data["ok"]) == (1, False)
    colour, steps = [each["what"] for each in done.data["findings"] if each["kind"] == "settings"]
    assert "`colour`" in colour
    assert "`limits.steps`" in steps
    assert done.data["report"]["ok"]
    assert done.data["store"]["path"] == str(trip)
