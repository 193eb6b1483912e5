"""`demo` forks the naive tables, does not fork the store, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.cli import demo
from tests.support import cli_process, polling

Holdfast = Callable[..., cli_process.Run]


@pytest.mark.parametrize(("processes", "rounds"), [(3, 1), (6, 3)])
def test_naive_tables_fork_and_the_store_does_not(
    holdfast: Holdfast, tmp_path: Path, processes: int, rounds: int
) -> None:
    done = holdfast("demo", "--json", "--processes", str(processes), "--rounds", str(rounds), "--seed", "7")
    assert (done.code, done.err) == (0, "")
    data, compactors = done.data, (processes + 1) // 2
    assert (data["ok"], data["seed"], data["processes"], data["rounds"]) == (True, 7, processes, rounds)
    naive, store = data["naive"], data["holdfast"]
    assert naive["forks"] == rounds
    assert naive["heads"] == rounds * (compactors - 1) + 1
    assert 0 < naive["lost"] < naive["acknowledged"]
    assert naive["lost"] + naive["in_context"] == naive["acknowledged"]
    assert (store["forks"], store["heads"], store["lost"], store["violations"]) == (0, 1, 0, [])
    assert store["acknowledged"] == store["in_log"] == store["in_context"] == naive["acknowledged"]
    assert sum(session["messages"] for session in store["sessions"]) == store["acknowledged"]
    assert store["compactions"]["committed"] == rounds
    assert sum(store["compactions"].values()) == rounds * compactors
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed_is_what_the_kept_databases_hold(holdfast: Holdfast, tmp_path: Path) -> None:
    done = holdfast("demo", "--json", "--processes", "4", "--rounds", "2", "--keep", "kept")
    kept = tmp_path / "kept"
    naive = sqlite3.connect(kept / "naive.db")
    assert done.data["naive"]["sessions"] == [
        {
            "id": name,
            "parent": parent,
            "live": ended is None,
            "messages": naive.execute(
                "SELECT count(*) FROM messages WHERE session = ? AND text <> '' AND text NOT LIKE '% %'", (name,)
            ).fetchone()[0],
        }
        for name, parent, ended in naive.execute("SELECT id, parent, ended FROM sessions ORDER BY rowid").fetchall()
    ]
    naive.close()
    with SessionDB(kept / "holdfast.db") as db:
        assert db.admin.fsck().ok
        sessions = [(session.id, session.message_count) for session in db.sessions("start")]
        assert len(db.transcript("start")) == done.data["holdfast"]["acknowledged"]
    assert [(session["id"], session["messages"]) for session in done.data["holdfast"]["sessions"]] == sessions
    again = holdfast("demo", "--keep", "kept")
    assert again.code == 1
    assert "already" in again.sentence


def test_the_figures_of_both_sides_are_printed(holdfast: Holdfast) -> None:
    out = holdfast("demo", "--processes", "4", "--rounds", "2", "--seed", "1").out
    lines = {line[:21].strip(): line.split()[-2:] for line in out.splitlines()}
    assert lines["forks"] == ["2", "0"]
    assert lines["heads"] == ["3", "1"]
    assert "One head, nothing lost." in out


def test_a_directory_that_cannot_be_used_is_an_error(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert holdfast("demo", "--keep", tmp_path / "file").code == 2
    assert holdfast("demo", "--keep", tmp_path / "file" / "below").code == 1


def test_ended_from_outside_it_still_cleans_up(tmp_path: Path) -> None:
    process = cli_process.start(tmp_path, "demo", "--rounds", "100")
    polling.until(lambda: list(tmp_path.glob("*/naive.db")) or process.poll() is not None)
    os.kill(process.pid, signal.SIGTERM)
    assert process.communicate(timeout=cli_process.PATIENCE) == ("", "")
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


@cli_process.needs_proc
def test_a_killed_process_ends_the_race_with_an_error(tmp_path: Path) -> None:
    process = cli_process.start(tmp_path, "demo", "--rounds", "100")
    polling.until(lambda: len(cli_process.racers(process)) == 6)
    os.kill(cli_process.racers(process)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=cli_process.PATIENCE)
    assert cli_process.Run(process.returncode, out, err).sentence.endswith("Run `holdfast demo` again.")
    assert process.returncode == 1
    assert list(tmp_path.iterdir()) == []


GOOD = {
    "lost": 0,
    "forks": 0,
    "heads": 1,
    "violations": [],
    "compactions": {"committed": 1, "refused": 1},
    "sessions": [{"id": "start"}, {"id": "r1.c1"}],
}


def test_a_store_that_kept_its_promises_is_told_from_one_that_did_not() -> None:
    assert demo.keeps_promises(GOOD, 1)
    assert not demo.keeps_promises({**GOOD, "lost": 1}, 1)
    assert not demo.keeps_promises({**GOOD, "forks": 1}, 1)
    assert not demo.keeps_promises({**GOOD, "heads": 2}, 1)
    assert not demo.keeps_promises({**GOOD, "sessions": GOOD["sessions"][:1]}, 1)
    assert not demo.keeps_promises({**GOOD, "sessions": [*GOOD["sessions"], {"id": "r1.c2"}]}, 1)
    assert not demo.keeps_promises({**GOOD, "compactions": {"committed": 2}}, 1)
    assert not demo.keeps_promises({**GOOD, "violations": ["P4: forked"]}, 1)


def test_figures_tell_a_fork_and_a_lost_message() -> None:
    sessions = [("start", None, False, {"a", "b", "x"}), ("c1", "start", True, {"b"}), ("c2", "start", True, set())]
    found = demo.measure(sessions, {"a", "b", "c"}, ["a summary", "b"])
    assert (found["acknowledged"], found["in_log"], found["in_context"], found["lost"]) == (3, 2, 2, 1)
    assert (found["heads"], found["forks"]) == (2, 1)
    assert [each["messages"] for each in found["sessions"]] == [2, 1, 0]
