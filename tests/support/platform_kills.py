"""Kill a gateway process with SIGKILL at a fault point while it answers on a chat platform, and check the chat."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import SessionDB, cli, fault_points
from tests.support import cli_process
from tests.support.polling import until_async

POINTS = ("arrived", "answered", "settled", "sending", "sent")
"""After the message was stored, before and after the reply was, and before and after a message was sent."""
DRAFT = "…"


class Chat(NamedTuple):
    """A direct chat with the bot on a platform."""

    settings: str
    secrets: dict[str, str]
    is_connected: Callable[[], Any]
    """Whether the platform would deliver a message now."""
    say: Callable[[str], Any]
    texts: Callable[[], Awaitable[list[str]]]
    """The messages of the bot."""
    deduplicates: bool = True
    """Whether the platform recognises a message that is sent again because the outcome was unknown."""


async def check_kill(chat: Chat, point: str, home: Path) -> None:
    """Kill a gateway once at a point. Every message is answered, and no message that was confirmed is sent again."""
    (home / "data").mkdir()
    (home / "data" / "config.toml").write_text(f"[gateway]\nretry = 0.1\n{chat.settings}", "utf-8")
    with _start(home, chat, f"gateway.{point}") as process:
        await until_async(chat.is_connected)
        await chat.say("Hello")
        assert await asyncio.to_thread(process.wait, cli_process.PATIENCE) == -signal.SIGKILL
    with _start(home, chat):
        await until_async(lambda: _has_replies(chat, 1))
        await until_async(chat.is_connected)
        await chat.say("/status")
        await until_async(lambda: _has_replies(chat, 2))
        await until_async(lambda: _is_idle(home))
    shown = await chat.texts()
    # Only the one message whose outcome was unknown may appear twice.
    assert len(shown) in ((2,) if chat.deduplicates else (2, 3)), shown
    with SessionDB(home / "data" / "holdfast.db") as db:
        (session,) = db.list_sessions()
        assert [each.role for each in db.transcript(session.conversation_id)] == ["user", "assistant"]
        assert db.admin.fsck().ok


async def _has_replies(chat: Chat, count: int) -> bool:
    found = [each for each in await chat.texts() if each != DRAFT]
    return len(dict.fromkeys(found)) >= count


async def _is_idle(home: Path) -> bool:
    def count() -> int:
        with SessionDB(home / "data" / "holdfast.db") as db:
            facts = db.mail.counts()
            return facts["arrivals_open"] + facts["outgoing_open"]

    return not await asyncio.to_thread(count)


@contextmanager
def _start(home: Path, chat: Chat, point: str = "") -> Iterator[subprocess.Popen[Any]]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    env = {**cli_process.OFFLINE, **chat.secrets, "PYTHONPATH": path, "PYTHONWARNINGS": "default", "KILL_POINT": point}
    with open(home / "log", "ab") as log:
        command = [sys.executable, "-m", __name__]
        process = cli_process.start(home, "gateway", env=env, command=command, stdout=log, stderr=log)
    with process:
        try:
            yield process
        finally:
            process.kill()


def _run_program() -> None:
    """Run the program, and end it when it reaches the fault point."""
    point = os.environ.pop("KILL_POINT")

    def kill(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    fault_points.hook = kill if point else None
    cli.main()


if __name__ == "__main__":
    _run_program()
