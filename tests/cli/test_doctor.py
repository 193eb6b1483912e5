"""`doctor` finds what is wrong, says what to do, and answers programs in a shape that stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import holdfast as package
from holdfast import SessionDB
from tests.cli import program
from tests.cli.conftest import TRIP

Holdfast = Callable[..., program.Run]


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
    assert "survives power-loss" in done.out
    assert f"holdfast {package.__version__}, python {sys.version.split()[0]}, apsw {apsw.apsw_version()}" in done.out
    assert f"sqlite {apsw.sqlite_lib_version()}" in done.out


def test_json_has_a_stable_shape(holdfast: Holdfast, trip: Path) -> None:
    data = holdfast("doctor", "--json", "--db", trip).data
    assert list(data) == [
        "ok",
        "findings",
        "store",
        "versions",
        "leases",
        "report",
        "search",
        "repairs",
        "done",
    ]
    assert (data["ok"], data["findings"], data["leases"]) == (True, [], [])
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
    assert all(finding["next"] for finding in done.data["findings"])
    told = holdfast("doctor", "--db", trip)
    assert (told.code, told.err) == (1, "")
    assert f"problem: {promise} is broken" in told.out


def test_a_file_that_is_no_database_is_a_problem(holdfast: Holdfast, tmp_path: Path) -> None:
    path = tmp_path / "garbage.db"
    path.write_bytes(os.urandom(10_000))
    done = holdfast("doctor", "--db", path)
    assert (done.code, done.err) == (1, "")
    assert "problem: " in done.out
    assert "   next: If it is the right file" in done.out


def test_a_file_others_could_read_is_told_of_once(holdfast: Holdfast, trip: Path) -> None:
    trip.chmod(0o644)
    done = holdfast("doctor", "--json", "--db", trip)
    assert done.code == 0
    (finding,) = done.data["findings"]
    assert finding["level"] == "note"
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
    shown = program.run_in_terminal(tmp_path, "doctor", "--db", trip, columns=80, env={"NO_COLOR": "1"})
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
    assert (mended.code, "made the search index again" in mended.out) == (0, True)
