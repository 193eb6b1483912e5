"""Servers on this machine: those that run are found, and nothing else is taken for one."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from holdfast.model import local_servers, providers
from tests.support import replay_server


def listed(*models: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": [{"object": "model", "created": 1, **model} for model in models]}


def found(
    *answers: replay_server.Answer, kind: str = "ollama", timeout: float = 5.0
) -> local_servers.RunningServer | None:
    """What is found where a server of a kind should be."""

    async def run() -> local_servers.RunningServer | None:
        async with replay_server.Server(*answers) as one:
            servers = await local_servers.find(timeout, kinds=[providers.LocalServer(kind, one.port, "")])
            assert all(each.base_url == f"{one.url}/v1" for each in servers)
            assert {request.method for request in one.asked} <= {"GET"}
            return servers[0] if servers else None

    return asyncio.run(run())


def json_answer(body: Any, status: int = 200) -> replay_server.Answer:
    return replay_server.refusal(status, body)


NOTHING = json_answer({}, 404)

SERVERS: list[tuple[str, str, list[replay_server.Answer], str, tuple[str, ...], int | None]] = [
    (
        "ollama",
        "ollama",
        [
            json_answer(listed({"id": "qwen3:8b", "owned_by": "library"}, {"id": "gemma3", "owned_by": "library"})),
            json_answer(
                {"models": [{"name": "qwen3:8b", "context_length": 8192}, {"name": "g", "context_length": 4096}]}
            ),
        ],
        "ollama",
        ("qwen3:8b", "gemma3"),
        4096,
    ),
    ("ollama without models", "ollama", [json_answer({"object": "list", "data": None}), NOTHING], "ollama", (), None),
    (
        "llama.cpp",
        "llama.cpp",
        [
            json_answer(listed({"id": "a.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131072}})),
            json_answer({"default_generation_settings": {"n_ctx": 16384, "params": {}}, "total_slots": 1}),
        ],
        "llama.cpp",
        ("a.gguf",),
        16384,
    ),
    (
        "lm studio",
        "lmstudio",
        [
            json_answer(listed({"id": "a", "owned_by": "organization_owner"})),
            json_answer({"object": "list", "data": [{"id": "a", "max_context_length": 9, "loaded_context_length": 7}]}),
        ],
        "lmstudio",
        ("a",),
        7,
    ),
    (
        "vllm",
        "vllm",
        [json_answer(listed({"id": "a/b", "owned_by": "vllm", "max_model_len": 32768}))],
        "vllm",
        ("a/b",),
        32768,
    ),
    (
        "one on the port of another",
        "vllm",
        [json_answer(listed({"id": "a", "owned_by": "llamacpp"})), NOTHING],
        "llama.cpp",
        ("a",),
        None,
    ),
    (
        "two windows are none",
        "vllm",
        [json_answer(listed({"id": "a", "max_model_len": 1}, {"id": "b", "max_model_len": 2}))],
        "vllm",
        ("a", "b"),
        None,
    ),
    ("unknown owner", "vllm", [json_answer(listed({"id": "a", "owned_by": "me"}))], "vllm", ("a",), None),
]


@pytest.mark.parametrize(
    ("asked", "answers", "kind", "models", "window"), [case[1:] for case in SERVERS], ids=[case[0] for case in SERVERS]
)
def test_running_server_is_found(
    asked: str, answers: list[replay_server.Answer], kind: str, models: tuple[str, ...], window: int | None
) -> None:
    one = found(*answers, kind=asked)
    assert one is not None
    assert (one.kind, one.models, one.window) == (kind, models, window)


STRANGERS: list[tuple[str, replay_server.Answer]] = [
    ("a web page", replay_server.Answer([b"<html>hello</html>"], headers={"content-type": "text/html"})),
    ("no such page", NOTHING),
    ("a locked door", json_answer(listed({"id": "a"}), 401)),
    ("an error", json_answer(listed({"id": "a"}), 500)),
    ("another list", json_answer({"object": "list", "data": [{"id": "cus_1", "object": "customer"}]})),
    ("a list of anything", json_answer({"data": [{"id": "a"}]})),
    ("a list of names", json_answer({"object": "list", "data": ["a"]})),
    ("models without ids", json_answer({"object": "list", "data": [{"object": "model"}]})),
    ("no list", json_answer([1, 2, 3])),
    ("no JSON", replay_server.Answer([b"{oops"], headers={"content-type": "application/json"})),
    ("an empty answer", replay_server.Answer([])),
    ("half an answer", replay_server.Answer([b'{"object":"list"'], cut=True)),
]


@pytest.mark.parametrize("answer", [case[1] for case in STRANGERS], ids=[case[0] for case in STRANGERS])
def test_other_service_is_not_taken_for_one(answer: replay_server.Answer) -> None:
    assert found(answer) is None


@pytest.mark.parametrize(
    "spoken",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"220 mail ESMTP\r\n\r\n",
        b"\x00\x01\x02\xff",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n",
    ],
)
def test_service_that_speaks_no_http_is_not_taken_for_one(spoken: bytes) -> None:
    async def run() -> list[local_servers.RunningServer]:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(spoken)
            writer.close()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            return await local_servers.find(60.0, kinds=[providers.LocalServer("ollama", port, "")])

    assert asyncio.run(run()) == []


def raw(answer: bytes) -> local_servers.RunningServer | None:
    """What is found where a server answers with these bytes and hangs up."""

    async def run() -> list[local_servers.RunningServer]:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            writer.close()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as listening:
            port = listening.sockets[0].getsockname()[1]
            return await local_servers.find(60.0, kinds=[providers.LocalServer("vllm", port, "")])

    return next(iter(asyncio.run(run())), None)


def test_answer_ends_with_its_length_or_its_connection() -> None:
    body = json.dumps(listed({"id": "a"})).encode()
    for head in (b"HTTP/1.0 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)):
        one = raw(head + body)
        assert one is not None
        assert one.models == ("a",)
    assert raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + body) is None
    assert raw(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n" + body) is None
    assert raw(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + body) is None
    assert raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n" + body) is None


def test_server_that_says_nothing_is_not_waited_for() -> None:
    assert found(replay_server.Answer(hang=True), timeout=0.05) is None


def test_server_that_keeps_its_window_to_itself_is_found_without() -> None:
    one = found(json_answer(listed({"id": "a", "owned_by": "llamacpp"})), replay_server.Answer(cut=True))
    assert one is not None
    assert one.window is None


SERVE = """
import encodings.idna, http.server, json, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"object": "list", "data": [{"id": "llama3.2", "owned_by": "library"}]}).encode())
    def log_message(self, *_): pass
os.setuid(int(sys.argv[1]))
server = http.server.HTTPServer((sys.argv[2], 0), Answer)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextmanager
def listening_as(uid: int, address: str = "127.0.0.1") -> Iterator[providers.LocalServer]:
    """A real server of another process, as this user where the tests run as root."""
    with subprocess.Popen([sys.executable, "-c", SERVE, str(uid), address], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield providers.LocalServer("ollama", int(process.stdout.readline()), "")
        finally:
            process.kill()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_server_of_another_user_is_not_trusted(address: str) -> None:
    # A user who is not root cannot become another one: there the real owner is compared with another uid.
    root = os.getuid() == 0
    with listening_as(65534 if root else os.getuid(), address) as kind:
        (one,) = asyncio.run(local_servers.find(60.0, kinds=[kind]))
    assert one.uids == {65534 if root else os.getuid()}
    assert not local_servers.is_trusted(one.uids, None if root else os.getuid() + 1)


def test_server_of_this_user_is_trusted() -> None:
    one = found(json_answer(listed({"id": "a", "owned_by": "me"})), kind="vllm")
    assert one is not None
    assert one.uids == {os.getuid()}
    assert local_servers.is_trusted(one.uids)


def test_unknown_owner_is_not_trusted_and_service_account_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_servers, "SOCKET_TABLES", ("/nowhere",))
    assert local_servers.owner_uids(11434) == frozenset()
    assert not local_servers.is_trusted(frozenset())
    monkeypatch.setattr(local_servers, "user_name", {990: "ollama", 33: "www-data"}.get)
    assert local_servers.is_trusted(frozenset({990, 0}), 1000)
    assert not local_servers.is_trusted(frozenset({990, 33}), 1000)


def test_all_kinds_are_asked_at_once_and_told_in_order() -> None:
    """Each server answers only when all have been asked: one after the other, none would be found."""
    together = threading.Barrier(3)

    def serve(listening: socket.socket, name: str) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(4096)
            together.wait(timeout=60)
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps(listed({"id": name})).encode())

    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    threads = [threading.Thread(target=serve, args=(one, str(at))) for at, one in enumerate(sockets)]
    for thread in threads:
        thread.start()
    kinds = [providers.LocalServer("vllm", one.getsockname()[1], "") for one in sockets]
    servers = asyncio.run(local_servers.find(10.0, kinds=kinds))
    for thread in threads:
        thread.join()
    for one in sockets:
        one.close()
    assert [one.models for one in servers] == [("0",), ("1",), ("2",)]


def test_nothing_is_found_where_nothing_listens_and_nothing_is_loaded() -> None:
    code = (
        "import asyncio, socket, sys; from holdfast.model import local_servers, providers\n"
        "with socket.create_server(('127.0.0.1', 0)) as free: port = free.getsockname()[1]\n"
        "assert asyncio.run(local_servers.find(kinds=[providers.LocalServer('ollama', port, '')])) == []\n"
        "assert not {'httpx2', 'http.client'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
