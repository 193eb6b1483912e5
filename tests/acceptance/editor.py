"""An ACP client that starts `holdfast acp` and checks every line of its output against the protocol.

It can misbehave: die, send invalid frames and delay its responses. An invalid frame in the output fails the test.
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

from tests.acceptance.installation import PATIENCE
from tests.support import acp_schema, cli_process

OFFLINE = {"HOLDFAST_MODEL": "offline"}
PERMISSION = "session/request_permission"

T = TypeVar("T")
Frame = dict[str, Any]
Permit = Callable[[Frame], Frame | None]
"""Return the outcome of a permission request, or None to leave it unanswered."""


def choose_option(kind: str) -> Permit:
    """Return a function that selects the first option of this kind."""

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
    """One client and its agent process."""

    def __init__(self, process: subprocess.Popen[bytes], home: Path, permit: Permit) -> None:
        self.process, self.home, self.permit = process, home, permit
        self.frames: list[Frame] = []
        self.errors: list[BaseException] = []
        self.wire = acp_schema.Wire()
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._last = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    # --- requests --------------------------------------------------------------------------------------

    def begin(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        self._last += 1
        self._send({"jsonrpc": "2.0", "id": self._last, "method": method, "params": params})
        return self._last

    def notify(self, method: str, **params: Any) -> None:
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    def ask(self, method: str, **params: Any) -> Frame:
        return self.answer(self.begin(method, **params))

    def new(self, **more: Any) -> str:
        session: str = self.ask("session/new", cwd=str(self.home), mcpServers=[], **more)["sessionId"]
        return session

    def load(self, session: str) -> Frame:
        return self.ask("session/load", sessionId=session, cwd=str(self.home), mcpServers=[])

    def prompt(self, session: str, *blocks: str | Frame) -> int:
        said = [{"type": "text", "text": each} if isinstance(each, str) else each for each in blocks]
        return self.begin("session/prompt", sessionId=session, prompt=said)

    def stopped(self, session: str, *blocks: str | Frame) -> str:
        """Run a turn and return its stop reason."""
        reason: str = self.answer(self.prompt(session, *blocks))["stopReason"]
        return reason

    # --- responses and updates -------------------------------------------------------------------------------------

    def answer(self, number: int) -> Frame:
        (frame,) = self.until(lambda: [each for each in self.frames if each.get("id") == number and _is_response(each)])
        if "error" in frame:
            raise Refused(frame["error"])
        result: Frame = frame["result"]
        return result

    def updates(self, session: str, kind: str | None = None) -> list[Frame]:
        updates = [each["params"] for each in self.frames if each.get("method") == "session/update"]
        return [
            each["update"]
            for each in updates
            if each["sessionId"] == session and kind in (None, each["update"]["sessionUpdate"])
        ]

    def text(self, session: str, kind: str = "agent_message_chunk") -> str:
        chunks = [each["content"] for each in self.updates(session, kind)]
        return "".join(each["text"] for each in chunks if each["type"] == "text")

    def asked(self, method: str = PERMISSION) -> list[Frame]:
        return [each["params"] for each in self.frames if each.get("method") == method]

    def calls(self, session: str) -> dict[str, Frame]:
        """Return the tool calls, with all updates applied."""
        found: dict[str, Frame] = {}
        for update in self.updates(session):
            if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
                call = found.setdefault(update["toolCallId"], {})
                call.update({key: value for key, value in update.items() if value is not None})
        return found

    def until(self, found: Callable[[], T]) -> T:
        """Wait until the function returns something, and return that."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not (value := found()):
                self._raise_errors()
                assert time.monotonic() < deadline, self.frames[-5:]
                assert self._reader.is_alive(), f"the agent is gone: {self.process.poll()}, {self.frames[-5:]}"
                self._changed.wait(1)
            self._raise_errors()
            return value

    # --- end -------------------------------------------------------------------------------------

    def leave(self) -> int:
        """Close the input and return the exit code of the agent."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        self._raise_errors()
        return code

    def vanish(self) -> None:
        """Close both pipes at once, as an editor that is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.raw.close()  # type: ignore[attr-defined]

    # --- internals --------------------------------------------------------------------------------------

    def _send(self, frame: Frame) -> None:
        self.wire.sent(frame)
        assert self.process.stdin is not None
        with self._writing:
            self.process.stdin.write(json.dumps(frame).encode() + b"\n")
            self.process.stdin.flush()

    def _read(self) -> None:
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                self._receive(line)
        except (ValueError, OSError):
            pass  # It was closed on purpose.
        except BaseException as error:
            self.errors.append(error)
        with self._changed:
            self._changed.notify_all()

    def _receive(self, line: bytes) -> None:
        frame = json.loads(line)
        with self._changed:
            self.wire.got(frame)
            self.frames.append(frame)
            self._changed.notify_all()
        if frame.get("method") == PERMISSION:
            outcome = self.permit(frame["params"])
            if outcome is not None:
                self._send({"jsonrpc": "2.0", "id": frame["id"], "result": {"outcome": outcome}})

    def _raise_errors(self) -> None:
        if self.errors:
            raise self.errors[0]


def _is_response(frame: Frame) -> bool:
    return "method" not in frame


@contextmanager
def open_editor(
    home: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    permit: Permit | None = None,
    stderr: Path | None = None,
) -> Iterator[Editor]:
    """Start an agent and initialize it. Unless the test ended it, it must exit with 0 when its input ends."""
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
            editor = Editor(process, home, permit or choose_option("allow_once"))
            editor.ask("initialize", protocolVersion=1, clientCapabilities={})
            yield editor
            if process.poll() is None and not process.stdin.closed:
                assert editor.leave() == 0
        finally:
            process.kill()
