"""A model provider in a separate process that answers at once."""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

TEXT = "Fine."
_EVENTS = (
    f'{{"choices":[{{"index":0,"delta":{{"role":"assistant","content":"{TEXT}"}}}}]}}',
    '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}',
    '{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":2,"total_tokens":12}}',
    "[DONE]",
)
_BODY = "".join(f"data: {event}\n\n" for event in _EVENTS).encode()
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(_BODY) + _BODY

_send_lock = threading.Lock()


class Provider(NamedTuple):
    """The address of the provider, and the times of its requests."""

    base_url: str
    asked: Connection

    def next_request(self) -> float:
        """Return the time (monotonic) at which the next request began to arrive."""
        assert self.asked.poll(60), "there was no request"
        return float(self.asked.recv())

    def environment(self, home: str) -> dict[str, str]:
        return {
            **os.environ,
            "HOLDFAST_HOME": home,
            "HOLDFAST_MODEL": "openai/bench",
            "OPENAI_API_KEY": "none",
            "OPENAI_BASE_URL": self.base_url,
        }


@contextmanager
def serve() -> Iterator[Provider]:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    process = multiprocessing.get_context("fork").Process(target=_serve, args=(listening, theirs), daemon=True)
    process.start()
    try:
        yield Provider(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", ours)
    finally:
        process.terminate()
        process.join()
        listening.close()


def _serve(listening: socket.socket, asked: Connection) -> None:
    while True:
        connection, _ = listening.accept()
        # A turn and the review of the previous one send requests concurrently, each on its own connection.
        threading.Thread(target=_answer, args=(connection, asked), daemon=True).start()


def _answer(connection: socket.socket, asked: Connection) -> None:
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while _request(connection, asked):
            connection.sendall(_ANSWER)


def _request(connection: socket.socket, asked: Connection) -> bool:
    """Read one request; return whether there was one."""
    data = connection.recv(65536)
    if not data:
        return False
    with _send_lock:
        asked.send(time.monotonic())
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-l")), 0
    )
    missing = length - len(body)
    while missing > 0:
        missing -= len(connection.recv(min(missing, 1 << 20)))
    return True
