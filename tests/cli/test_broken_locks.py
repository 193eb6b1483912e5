"""The program and the gateway answer and compact without a fork while the lock subsystem is broken."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from holdfast import NewMessage, SessionDB
from tests.support import cli_process, gateway_process, polling, provider_process
from tests.support.cli_process import Configure

BROKEN = """
import os
from holdfast.store import async_mirror, leases

def broken(*_, **__):
    raise RuntimeError("the lock subsystem is broken")

if os.environ["BROKEN_LOCKS"] == "raising":
    for name in ("acquire", "renew", "free", "named", "holder_name", "every"):
        setattr(leases, name, broken)
else:
    for name in ("acquire_lease", "renew_lease", "release_lease", "begin_compaction", "leases"):
        for owner in (leases.LeaseMixin, async_mirror.AsyncSessionBase):
            delattr(owner, name)
"""
QUESTIONS = ("What about pier one?", "And pier two?")
ANSWER = "The boats stay in."

Env = Mapping[str, str]


def wait_for_compaction(home: Path) -> None:
    """It runs concurrently with the turns; a program that ends stops it."""
    with SessionDB(home / "data" / "holdfast.db") as db:
        polling.until(lambda: len(db.sessions("talk")) > 1)


def drive_one_shot(home: Path, env: Env) -> None:
    for question in QUESTIONS:
        done = cli_process.run(home, "--resume", "talk", "-p", question, env=env)
        assert (done.code, done.out.strip()) == (0, ANSWER), done.err
        assert done.err.count("Leases cannot be used") == 1


def drive_gateway(home: Path, env: Env) -> None:
    with gateway_process.start(home, **env) as gateway:
        assert [gateway.ask(text) for text in QUESTIONS] == [ANSWER] * 2
        wait_for_compaction(home)
        assert gateway.stop(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize(
    ("drive", "how", "processes"),
    [(drive_one_shot, "raising", 2), (drive_gateway, "missing", 1)],
)
def test_program_without_locks_answers_compacts_and_warns_once(
    tmp_path: Path,
    configure: Configure,
    drive: Callable[[Path, Env], None],
    how: str,
    processes: int,
) -> None:
    configure(f'{gateway_process.SETTINGS}[models."{provider_process.MODEL}"]\nwindow = 12000\n')
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN, "utf-8")
    store, log = tmp_path / "data" / "holdfast.db", tmp_path / "log"
    with SessionDB(store) as db:
        db.create_session("talk", source="test")
        for number in range(45):
            texts = f"Question {number}. " + "It is windy. " * 60, f"Answer {number}. " + "It is closed. " * 60
            roles = zip(("user", "assistant"), texts, strict=True)
            db.append_messages("talk", [NewMessage(role=role, content=text) for role, text in roles])
        db.bind_route("agent:main:loopback:dm:local", "talk", version=0)
    with provider_process.serve(provider_process.reply(ANSWER)) as provider:
        env = {"PYTHONPATH": str(tmp_path / "site"), "BROKEN_LOCKS": how, "HOLDFAST_LOG": str(log), **provider.env}
        drive(tmp_path, env)
    assert log.read_text("utf-8").count("Leases cannot be used") == processes, log.read_text("utf-8")
    with SessionDB(store) as db:
        assert db.admin.fsck().ok
        assert [each.ordinal for each in db.sessions("talk")] == [1, 2]
        assert {each.conversation_id for each in db.list_sessions(every=True)} == {"talk"}
        assert [each.role for each in db.transcript("talk")[90:]] == ["user", "assistant"] * 2
