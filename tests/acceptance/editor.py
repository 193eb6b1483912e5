"""An editor made of nothing but lines: it starts `holdfast acp`, and holds every line that comes out to the protocol.

What it may not be is kind: it can be killed, send what is no frame, and answer when it likes. A line of standard output
that is no frame, or a frame that may not be said, fails the test that caused it.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tests.acceptance.conftest import PATIENCE
from tests.support import acp_schema, cli_process

OFFLINE = {"HOLDFAST_MODEL": "offline"}
PERMISSION = "session/request_permission"

T = TypeVar("T")
Frame = dict[str, Any]
Permit = Callable[[Frame], Frame | None]
"""Given what is asked for, the outcome; None leaves it unanswered."""


def choosing(kind: str) -> Permit:
    """Always the first option of this kind."""

    def choose(params: Frame) -> Frame:
        option = next(each["optionId"] for each in params["options"] if each["kind"] == kind)
        return {"outcome": "selected", "optionId": option}

    return choose


class Refused(AssertionError):
    """The agent answered with an error."""

    def __init__(self, error: Frame) -> None:
        super().__init__(json.dumps(error))
        self.code: int = error["code"]
        self.message: str = error["message"]


class Editor:
    """One client and its agent process; safe to be used by the one thread of the test."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, permit: Permit) -> None:
        self.process, self.home, self.permit = process, home, permit
        self.frames: list[Frame] = []
        self.strange: list[BaseException] = []
        self.wire = acp_schema.Wire()
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._last = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # --- saying --------------------------------------------------------------------------------------

    def begin(self, method: str, **params: Any) -> int:
        """Ask for something; its number, by which the answer is found."""
        self._last += 1
        self._say({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._last

    def notify(self, method: str, **params: Any) -> None:
        self._say({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, **params: Any) -> Frame:
        return self.answer(self.begin(method, **params))

    def raw(self, line: bytes) -> None:
        """Whatever bytes, and the end of the line."""
        assert self.process.stdin is not None
        with self._writing:
            self.process.stdin.write(line + b"\n")
            self.process.stdin.flush()

    def open(self, **capabilities: Any) -> Frame:
        return self.ask("initialize", protocolVersion=1, clientCapabilities=capabilities)

    def new(self, **more: Any) -> str:
        session: str = self.ask("session/new", cwd=str(self.home), mcpServers=[], **more)["sessionId"]
        return session

    def load(self, session: str) -> Frame:
        return self.ask("session/load", sessionId=session, cwd=str(self.home), mcpServers=[])

    def prompt(self, session: str, *blocks: str | Frame) -> int:
        said = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
        return self.begin("session/prompt", sessionId=session, prompt=said)

    def stopped(self, session: str, *blocks: str | Frame) -> str:
        """Why the turn of this prompt ended."""
        reason: str = self.answer(self.prompt(session, *blocks))["stopReason"]
        return reason

    # --- hearing -------------------------------------------------------------------------------------

    def answer(self, number: int) -> Frame:
        (frame,) = self.until(lambda: [each for each in self.frames if each.get("id") == number and _answers(each)])
        if "error" in frame:
            raise Refused(frame["error"])
        result: Frame = frame["result"]
        return result

    def updates(self, session: str, kind: str | None = None) -> list[Frame]:
        told = [each["params"] for each in self.frames if each.get("method") == "session/update"]
        return [
            each["update"]
            for each in told
            if each["sessionId"] == session and kind in (None, each["update"]["sessionUpdate"])
        ]

    def text(self, session: str, kind: str = "agent_message_chunk") -> str:
        chunks = [each["content"] for each in self.updates(session, kind)]
        return "".join(each["text"] for each in chunks if each["type"] == "text")

    def asked(self, method: str = PERMISSION) -> list[Frame]:
        return [each["params"] for each in self.frames if each.get("method") == method]

    def calls(self, session: str) -> dict[str, Frame]:
        """The tool calls as a client shows them: begun, and changed by each update."""
        found: dict[str, Frame] = {}
        for update in self.updates(session):
            if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
                call = found.setdefault(update["toolCallId"], {})
                call.update({key: value for key, value in update.items() if value is not None})
        return found

    def until(self, found: Callable[[], T]) -> T:
        """What is found as soon as there is something."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not (value := found()):
                self._sound()
                assert time.monotonic() < deadline, self.frames[-5:]
                assert self._reader.is_alive(), f"the agent is gone: {self.process.poll()}, {self.frames[-5:]}"
                self._changed.wait(1)
            self._sound()
            return value

    # --- the end -------------------------------------------------------------------------------------

    def leave(self) -> int:
        """Say nothing more; the code the agent ends with. All it said was sound."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._sound()
        return code

    def vanish(self) -> None:
        """As an editor that is killed: both pipes are gone at once, whatever is in them."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.raw.close()  # type: ignore[attr-defined]

    # --- within --------------------------------------------------------------------------------------

    def _say(self, frame: Frame) -> None:
        self.wire.sent(frame)
        self.raw(json.dumps(frame).encode())

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._take(line)
        except (ValueError, OSError):
            pass  # It was closed on purpose.
        except BaseException as error:
            self.strange.append(error)
        with self._changed:
            self._changed.notify_all()

    def _take(self, line: bytes) -> None:
        frame = json.loads(line)
        with self._changed:
            self.wire.got(frame)
            self.frames.append(frame)
            self._changed.notify_all()
        if frame.get("method") == PERMISSION:
            outcome = self.permit(frame["params"])
            if outcome is not None:
                self._say({"jsonrpc": "2.0", "id": frame["id"], "result": {"outcome": outcome}})

    def _sound(self) -> None:
        if self.strange:
            raise self.strange[0]


def _answers(frame: Frame) -> bool:
    return "method" not in frame


@contextmanager
def opened(
    home: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    permit: Permit | None = None,
    stderr: Path | None = None,
) -> Iterator[Editor]:
    """An editor whose agent is there, and gone in the end whatever happens."""
    with (
        (stderr or home / "stderr.txt").open("ab") as heard,
        subprocess.Popen(
            [*cli_process.PROGRAM, "acp", *arguments],
            cwd=home,
            env=cli_process.environment(home, {**OFFLINE, **(env or {})}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=heard,
        ) as process,
    ):
        try:
            yield Editor(process, home, permit or choosing("allow_once"))
        finally:
            process.kill()
