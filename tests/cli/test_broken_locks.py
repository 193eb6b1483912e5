"""The program answers and compacts without a fork while the lock subsystem is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import NewMessage, SessionDB
from holdfast.store import leases
from tests.support import provider_process
from tests.support.cli_process import Configure, Holdfast

BROKEN = ("acquire", "renew", "release", "find_by_holder", "holder_name", "list_all", "free_stale", "turn_start_seq")
QUESTIONS = ("What about pier one?", "And pier two?")
ANSWER = "The boats stay in."


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("the lock subsystem is broken")


def test_program_without_locks_answers_compacts_and_warns_once(
    holdfast: Holdfast, tmp_path: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(f'[models."{provider_process.MODEL}"]\nwindow = 12000\n')
    store, log = tmp_path / "data" / "holdfast.db", tmp_path / "log"
    with SessionDB(store) as db:
        db.create_session("talk", source="test")
        for number in range(45):
            texts = f"Question {number}. " + "It is windy. " * 60, f"Answer {number}. " + "It is closed. " * 60
            roles = zip(("user", "assistant"), texts, strict=True)
            db.append_messages("talk", [NewMessage(role=role, content=text) for role, text in roles])
    with provider_process.serve(provider_process.reply(ANSWER)) as provider, monkeypatch.context() as patched:
        for name in BROKEN:
            patched.setattr(leases, name, fail)
        for question in QUESTIONS:
            done = holdfast("--resume", "talk", "-p", question, HOLDFAST_LOG=str(log), **provider.env)
            assert (done.code, done.out.strip()) == (0, ANSWER), done.err
            assert done.err.count("Leases cannot be used") == 1
    assert log.read_text("utf-8").count("Leases cannot be used") == len(QUESTIONS), log.read_text("utf-8")
    with SessionDB(store) as db:
        assert db.admin.fsck().ok
        assert [each.ordinal for each in db.sessions("talk")] == [1, 2]
        assert {each.conversation_id for each in db.list_sessions(every=True)} == {"talk"}
        assert [each.role for each in db.transcript("talk")[90:]] == ["user", "assistant"] * 2
