"""`holdfast demo` and `holdfast tour` show the real store; an ended demo leaves no file behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.support import cli_process, polling
from tests.support.cli_process import Holdfast


def test_naive_tables_fork_and_the_store_does_not(holdfast: Holdfast, tmp_path: Path) -> None:
    rounds, compactors, kept = 2, 2, tmp_path / "kept"
    done = holdfast("demo", "--json", "--processes", "4", "--rounds", "2", "--seed", "7", "--keep", kept)
    assert (done.code, done.err) == (0, "")
    data = done.data
    assert (data["ok"], data["seed"], data["processes"], data["rounds"]) == (True, 7, 4, rounds)
    naive, store = data["naive"], data["holdfast"]
    assert (naive["forks"], naive["heads"]) == (rounds, rounds * (compactors - 1) + 1)
    assert 0 < naive["lost"] < naive["acknowledged"]
    assert naive["lost"] + naive["in_context"] == naive["acknowledged"]
    assert (store["forks"], store["heads"], store["lost"], store["violations"]) == (0, 1, 0, [])
    assert store["acknowledged"] == store["in_log"] == store["in_context"] == naive["acknowledged"]
    assert store["compactions"]["committed"] == rounds
    assert sum(store["compactions"].values()) == rounds * compactors
    with SessionDB(kept / "holdfast.db") as db:
        assert db.admin.fsck().ok
        assert len(db.transcript("start")) == store["acknowledged"]
        sessions = [{"id": session.id, "messages": session.message_count} for session in db.sessions("start")]
    assert [{name: each[name] for name in ("id", "messages")} for each in store["sessions"]] == sessions
    assert "already" in holdfast("demo", "--keep", kept).failure(1)


def group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("how", ["interrupted", "terminated"])
def test_ended_demo_leaves_no_process_and_no_file(tmp_path: Path, how: str) -> None:
    with cli_process.start(tmp_path, "demo", "--rounds", "100") as process:
        polling.until(lambda: any(tmp_path.rglob("*.db")), "all processes are started")
        if how == "interrupted":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.terminate()
        out, err = process.communicate(timeout=cli_process.PATIENCE)
    done = cli_process.Run(process.returncode, out, err)
    if how == "interrupted":
        assert done == (130, "", "Interrupted.\n")
    else:  # A racer that was just starting reports that its parent is gone.
        assert (done.code, done.out) == (128 + signal.SIGTERM, "")
    polling.until(lambda: not group_exists(process.pid))
    assert list(tmp_path.iterdir()) == []


def test_tour_shows_tools_compaction_and_recall_and_touches_no_file(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / ".holdfast.toml").write_text("wrong = 1", "utf-8")
    done = holdfast("tour", HOLDFAST_DB=str(tmp_path / "mine.db"), OPENAI_API_KEY="key", HOLDFAST_MODEL="openai/x")
    assert (done.code, done.err) == (0, "")
    rest = done.out
    for text in (
        *("> Our train to Porto leaves at 9:40 from platform 4.", "Noted as message 1.", "> read ferries.txt"),
        *("read_file", "> /compact here 1", "Compacted up to message", "> From which platform do we leave?"),
        *("You said in message 1 ", "`holdfast --continue`", "You said in message 3", "1 compaction"),
        "the store passed every check",
    ):
        assert text in rest, text
        rest = rest.partition(text)[2]
    assert os.listdir(tmp_path) == [".holdfast.toml"]
