"""Every program answers and compacts without a fork while the lock subsystem is broken."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import NewMessage, SessionDB
from tests.support import cli_process, gateway_process, polling, provider_process, pty_terminal
from tests.support.rpc_peers import request

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


def drive_chat(home: Path, env: Env) -> None:
    with pty_terminal.open_terminal(home, "--resume", "talk", env=env) as screen:
        for question in QUESTIONS:
            screen.enter(question)
            screen.wait_for(ANSWER)
        wait_for_compaction(home)
        assert screen.leave() == 0


def send_frames(home: Path, env: Env, command: str, frames: Sequence[Any], is_answer: Callable[[Any], bool]) -> None:
    """Send each frame after the answer to the previous one; then the input ends."""
    with cli_process.start(home, command, env=env, stdin=subprocess.PIPE) as process:
        for frame in frames:
            process.stdin.write(json.dumps(frame) + "\n")
            process.stdin.flush()
            while not is_answer(json.loads(line := process.stdout.readline())):
                assert '"error"' not in line, line
        wait_for_compaction(home)
        _, err = process.communicate(timeout=cli_process.PATIENCE)
        assert process.returncode == 0, err


def drive_rpc(home: Path, env: Env) -> None:
    submits = [request(n, "prompt.submit", {"session_id": "talk", "text": text}) for n, text in enumerate(QUESTIONS)]

    def is_answer(frame: Any) -> bool:
        return frame.get("params", {}).get("type") == "message.complete" or frame.get("id") == "resumed"

    frames = [request("resumed", "session.resume", {"session_id": "talk"}), *submits]
    send_frames(home, env, "rpc", frames, is_answer)


def drive_gateway(home: Path, env: Env) -> None:
    with gateway_process.start(home, **env) as gateway:
        assert [gateway.ask(text) for text in QUESTIONS] == [ANSWER] * 2
        wait_for_compaction(home)
        assert gateway.stop(signal.SIGTERM)[0] == 0


def drive_acp(home: Path, env: Env) -> None:
    prompts = [{"sessionId": "talk", "prompt": [{"type": "text", "text": text}]} for text in QUESTIONS]
    frames = [
        request(1, "initialize", {"protocolVersion": 1}),
        request(2, "session/resume", {"sessionId": "talk", "cwd": str(home), "mcpServers": []}),
        *(request(3 + n, "session/prompt", prompt) for n, prompt in enumerate(prompts)),
    ]
    send_frames(home, env, "acp", frames, lambda frame: "result" in frame)


@pytest.mark.parametrize(
    ("drive", "how", "processes"),
    [
        (drive_one_shot, "raising", 2),
        (drive_chat, "missing", 1),
        (drive_rpc, "raising", 1),
        (drive_gateway, "missing", 1),
        (drive_acp, "missing", 1),
    ],
)
def test_program_without_locks_answers_compacts_and_warns_once(
    tmp_path: Path,
    configure: Callable[[str], Path],
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
