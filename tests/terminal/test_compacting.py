"""A summary takes its time. Whoever does not want to wait for it presses Ctrl-C, and is where they were."""

from __future__ import annotations

from pathlib import Path

from holdfast import SessionDB
from tests.faults import agent_processes
from tests.support import polling, provider_process, pty_terminal

STOP = "\x03"


def test_ctrl_c_stops_a_compaction_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "data" / "holdfast.db"
    with SessionDB(path) as db:
        agent_processes.fill(db, "talk", 20)
        log = db.transcript("talk")
    answers = (provider_process.said_and_hung("Goal: the"), provider_process.said("Still here."))
    with (
        provider_process.playing(*answers) as played,
        pty_terminal.opened(tmp_path, "--continue", env=played.env) as screen,
    ):
        screen.enter("/compact here 1")
        screen.wait_for("/compact here 1")
        polling.until(lambda: played.asked)
        screen.type(f"{STOP}and now?")  # what is typed after it waits for the prompt
        screen.wait_for("The command was stopped.")
        screen.wait_for("> and now?")
        screen.type("\r")
        screen.wait_for("Still here.")
        assert screen.leave() == 0
        assert "Goal" not in screen.shown
        assert "Traceback" not in screen.shown
    with SessionDB(path) as db:
        assert db.transcript("talk")[: len(log)] == log
        assert [each.role for each in db.transcript("talk")[len(log) :]] == ["user", "assistant"]
        assert [each.id for each in db.sessions("talk")] == ["talk"]
        assert db.leases() == []
        assert db.admin.fsck().ok


def test_after_a_stopped_compaction_the_next_one_by_hand_is_made_at_once(tmp_path: Path) -> None:
    path = tmp_path / "data" / "holdfast.db"
    with SessionDB(path) as db:
        agent_processes.fill(db, "talk", 20)
    answers = (
        provider_process.said_and_hung("Goal: the"),
        provider_process.said("short"),
        provider_process.said("short"),
    )
    with (
        provider_process.playing(*answers) as played,
        pty_terminal.opened(tmp_path, "--continue", env=played.env) as screen,
    ):
        screen.enter("/compact here 1")
        polling.until(lambda: played.asked)
        screen.type(STOP)
        screen.wait_for("The command was stopped.")
        screen.enter("/compact here 1")
        screen.wait_for("Compacted up to message 38")
        assert screen.leave() == 0
    with SessionDB(path) as db:
        assert len(db.sessions("talk")) == 2
        assert len(db.transcript("talk")) == 40
        assert db.admin.fsck().ok
