"""Kill a gateway process with SIGKILL at a fault point while it answers on a chat platform, and check the chat."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast import SessionDB, cli, config, content_parts, fault_points, types
from holdfast.app import gateway
from holdfast.app import models as app_models
from holdfast.gateway import platform
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.tools.files import send
from tests.support import cli_process
from tests.support.chat_adapters import ChatAdapter
from tests.support.polling import until_async

ARMED = "armed"
"""The file in the folder of the program whose existence starts the count of the hits."""
STORING = ["arrive.begun@1", "gateway.arrived@1", "gateway.answered@1", "gateway.settled@1"]
SENDING = [f"gateway.{stage}@{number}" for number in range(1, 5) for stage in ("sending", "sent")]
"""Fault points with the number of the hit: before and after the message and its reply are stored; before and after the
draft (1), the text (2) and two files (3 and 4) are sent, or all of them (1) on a platform without drafts."""
POINTS = [*STORING, *SENDING]
ANSWER, FILES = "Here they are.", ("A", "B")


async def check_kill(chat: ChatAdapter, point: str, home: Path) -> None:
    """Kill a gateway once at a point. Every message is answered, and no message that was confirmed is sent again."""
    (home / "data").mkdir()
    table = "".join(f"{key} = {value!r}\n" for key, value in {**chat.service.table, **chat.options}.items())
    allow = f"[gateway.allow]\n{chat.name} = ['{chat.service.sender}']\n"
    settings = f"[gateway]\nretry = 0.1\n{allow}[gateway.{chat.name}]\n{table}"
    (home / "data" / "config.toml").write_text(settings, "utf-8")
    with _start(home, chat, point) as process:
        await until_async(chat.is_connected)
        await chat.say("First")
        await until_async(lambda: _is_answered(home, 1))
        _write_files(home, chat.owner)
        (home / ARMED).touch()
        await chat.say("Hello")
        assert await asyncio.to_thread(process.wait, cli_process.PATIENCE) == -signal.SIGKILL
    with _start(home, chat):
        await until_async(lambda: _is_answered(home, 2))
        await until_async(chat.is_connected)
        await chat.say("Last")
        await until_async(lambda: _is_answered(home, 3))
    shown = [each for each in await chat.texts() if each] + [each.decode() for each in chat.files()]
    assert sorted(shown) == sorted(["re First", ANSWER, *FILES, "re Last", *chat.repeated.get(point, [])]), shown
    with SessionDB(home / "data" / "holdfast.db") as db:
        (session,) = db.list_sessions()
        asked = [each for each in db.transcript(session.conversation_id) if each.role == "user"]
        assert [content_parts.text(each.content) for each in asked] == ["First", "Hello", "Last"]
        assert db.admin.fsck().ok


def _write_files(home: Path, owner: str) -> None:
    program = config.load({"HOLDFAST_HOME": str(home / "data"), **cli_process.OFFLINE}, files=False)
    for name in FILES:
        Path(gateway.folder_of(program, owner), name).write_text(name, "utf-8")


async def _is_answered(home: Path, count: int) -> bool:
    """Return whether this many messages were received, and all of them are answered."""

    def read() -> bool:
        with SessionDB(home / "data" / "holdfast.db") as db:
            if db.mail.inbound(count) is None:
                return False
            facts = db.mail.counts()
            return not facts["arrivals_open"] + facts["outgoing_open"]

    return await asyncio.to_thread(read)


@contextmanager
def _start(home: Path, chat: ChatAdapter, point: str = "") -> Iterator[subprocess.Popen[Any]]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    env = {
        **cli_process.OFFLINE,
        **chat.service.secrets,
        "PYTHONPATH": path,
        "PYTHONWARNINGS": "default",
        "KILL_POINT": point,
        "HAS_DRAFTS": "1" if isinstance(chat.load(), platform.EditsDrafts) else "",
    }
    with open(home / "log", "ab") as log:
        command = [sys.executable, "-m", __name__]
        process = cli_process.start(home, "gateway", env=env, command=command, stdout=log, stderr=log)
    with process:
        try:
            yield process
        finally:
            process.kill()


def _answer(request: models.Request) -> models.Reply | str:
    """Send two files with the answer to "Hello", and repeat other messages."""
    last = request.messages[-1]
    if last.role == "tool":
        return ANSWER
    text = content_parts.text(last.content).strip()
    if text != "Hello":
        return f"re {text}"
    calls = (types.ToolCall(name, send.NAME, json.dumps({"path": name})) for name in FILES)
    return models.Reply(calls=tuple(calls), usage=types.Usage())


def _run_program() -> None:
    """Run the program, and kill it at the wanted hit of the fault point."""
    point, _, wanted = os.environ.pop("KILL_POINT").partition("@")
    waits, hits = bool(os.environ.pop("HAS_DRAFTS") and point), Counter[str]()

    class Model(ScriptedModel):
        """Completes a reply after its draft is sent, so that the messages are sent in the same order in every run."""

        async def stream(self, request: models.Request) -> AsyncGenerator[models.Delta, None]:
            delivered = hits["delivered.committed"]
            async for delta in super().stream(request):
                yield delta
                while waits and isinstance(delta, models.ContentDelta) and hits["delivered.committed"] == delivered:
                    await asyncio.sleep(0.01)

    async def choose(*_: object) -> app_models.ModelChoice:
        return app_models.ModelChoice(Model(itertools.repeat(_answer)))

    def count(name: str) -> None:
        if name == "delivered.committed" or os.path.exists(ARMED):
            hits[name] += 1
        if name == point and hits[name] == int(wanted):
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.hook = count if point else None
    app_models.choose = choose
    cli.main()


if __name__ == "__main__":
    _run_program()
