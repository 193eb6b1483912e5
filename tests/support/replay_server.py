"""An HTTP server that sends given bytes in given chunks, and records its requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Answer:
    """An HTTP response. Each chunk is sent separately, so that clients receive it as it was split."""

    chunks: Sequence[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    cut: bool = False
    """Hang up after the last chunk, without an end."""
    hang: bool = False
    """Say nothing more after the last chunk, until the other side hangs up."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """Answers each request with the next answer; the last one is given again and again."""

    def __init__(self, *answers: Answer) -> None:
        self.asked: list[Asked] = []
        self.left = asyncio.Event()
        self._answers = list(answers)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether there can be another."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.asked.append(Asked(method, path, headers, body))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        await self._play(answer, writer)
        if answer.hang:
            await reader.read()
            self.left.set()
        if answer.cut:
            writer.transport.abort()
        return not (answer.cut or answer.hang)

    async def _play(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        head = {**answer.headers, "transfer-encoding": "chunked"}
        lines = [f"HTTP/1.1 {answer.status} Played", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        writer.write("\r\n".join(lines).encode("latin-1"))
        for chunk in answer.chunks:
            if chunk:
                writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                await writer.drain()
        if not (answer.cut or answer.hang):
            writer.write(b"0\r\n\r\n")
        await writer.drain()


def events(*data: Any, end: str = "\n") -> bytes:
    """Server-sent events, one for each value: text as it is, everything else as JSON."""
    texts = (one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in data)
    return "".join(f"data: {text}{end}{end}" for text in texts).encode()


def refusal(status: int, body: Any = b"", **headers: str) -> Answer:
    """An answer that is no stream."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "text/plain" if isinstance(body, bytes) else "application/json"
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer([content], status, {"content-type": kind, **named})
