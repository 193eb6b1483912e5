"""The chat in a real terminal: Ctrl-C stops a compaction without any trace."""

from __future__ import annotations

from pathlib import Path

from holdfast import SessionDB
from tests.faults import agent_processes
from tests.support import polling, provider_process, pty_terminal

STOP = "\x03"


def test_ctrl_c_stops_a_compaction_and_the_next_one_is_made(tmp_path: Path) -> None:
    path = tmp_path / "data" / "holdfast.db"
    with SessionDB(path) as db:
        agent_processes.fill(db, "talk", 20)
        log = db.transcript("talk")
    said, hung = provider_process.reply, provider_process.hanging_reply("Goal: the")
    with (
        provider_process.serve(hung, said("Still here."), said("short"), said("short")) as played,
        pty_terminal.open_terminal(tmp_path, "--continue", env=played.env) as screen,
    ):
        screen.enter("/compact here 1")
        polling.until(lambda: played.asked)
        screen.type(f"{STOP}and now?")
        screen.wait_for("The command was stopped.")
        screen.wait_for("> and now?")
        with SessionDB(path) as db:
            assert (db.transcript("talk"), [each.id for each in db.sessions("talk")]) == (log, ["talk"])
            assert db.leases() == []
        screen.type("\r")
        screen.wait_for("Still here.")
        screen.enter("/compact here 1")
        screen.wait_for("Compacted up to message")
        assert screen.leave() == 0
        assert "Goal" not in screen.shown
        assert "Traceback" not in screen.shown
    with SessionDB(path) as db:
        assert db.transcript("talk")[: len(log)] == log
        assert [each.role for each in db.transcript("talk")[len(log) :]] == ["user", "assistant"]
        assert len(db.sessions("talk")) == 2
        assert db.admin.fsck().ok
