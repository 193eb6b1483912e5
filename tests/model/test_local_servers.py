"""Model servers on this machine: running ones are found, and no other service is taken for one."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.model import local_servers, providers
from tests.support.replay_server import Answer, Server
from tests.support.replay_server import refusal as respond


def model_list(*models: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": [{"object": "model", "created": 1, **model} for model in models]}


async def find(*answers: Answer, kind: str = "ollama", timeout: float = 5.0) -> local_servers.RunningServer | None:
    """Search where a server of this kind gives these answers."""
    async with Server(*answers) as server:
        found = await local_servers.find(timeout, kinds=[providers.LocalServer(kind, server.port, "")])
        assert all(each.base_url == f"{server.url}/v1" for each in found)
        assert {request.method for request in server.asked} <= {"GET"}
        return found[0] if found else None


NOT_FOUND = respond(404, {})
OLLAMA = model_list({"id": "qwen3:8b", "owned_by": "library"}, {"id": "gemma3", "owned_by": "library"})
OLLAMA_WINDOWS = {"models": [{"name": "qwen3:8b", "context_length": 8192}, {"name": "g", "context_length": 4096}]}
LLAMA_CPP = model_list({"id": "a.gguf", "owned_by": "llamacpp", "meta": {"n_ctx_train": 131072}})
LM_STUDIO = model_list({"id": "a", "owned_by": "organization_owner"})
LM_STUDIO_WINDOWS = {"object": "list", "data": [{"id": "a", "max_context_length": 9, "loaded_context_length": 7}]}


@pytest.mark.parametrize(
    ("port_of", "bodies", "kind", "models", "window"),
    [
        ("ollama", [OLLAMA, OLLAMA_WINDOWS], "ollama", ("qwen3:8b", "gemma3"), 4096),
        ("ollama", [{"object": "list", "data": None}, {}], "ollama", (), None),
        ("llama.cpp", [LLAMA_CPP, {"default_generation_settings": {"n_ctx": 16384}}], "llama.cpp", ("a.gguf",), 16384),
        ("lmstudio", [LM_STUDIO, LM_STUDIO_WINDOWS], "lmstudio", ("a",), 7),
        ("vllm", [model_list({"id": "a/b", "owned_by": "vllm", "max_model_len": 32768})], "vllm", ("a/b",), 32768),
        ("vllm", [LLAMA_CPP, {}], "llama.cpp", ("a.gguf",), None),
    ],
)
async def test_running_server_is_found(
    port_of: str, bodies: list[Any], kind: str, models: tuple[str, ...], window: int | None
) -> None:
    found = await find(*(respond(200, body) for body in bodies), kind=port_of)
    assert (found.kind, found.models, found.window) == (kind, models, window)


async def test_server_that_does_not_report_its_window_is_found_without() -> None:
    for failing in (NOT_FOUND, Answer(cut=True), respond(200, b"{oops")):
        found = await find(respond(200, LLAMA_CPP), failing)
        assert found.window is None


@pytest.mark.parametrize(
    "answer",
    [
        Answer([b"<html>hello</html>"], headers={"content-type": "text/html"}),
        NOT_FOUND,
        respond(401, model_list({"id": "a"})),
        respond(200, {"object": "list", "data": [{"id": "cus_1", "object": "customer"}]}),
        respond(200, {"object": "list", "data": [{"object": "model"}]}),
        respond(200, b"{oops"),
    ],
)
async def test_other_web_service_is_not_taken_for_a_model_server(answer: Answer) -> None:
    assert await find(answer) is None


async def find_raw(answer: bytes) -> local_servers.RunningServer | None:
    """Search where a service answers with these bytes and hangs up."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        found = await local_servers.find(60.0, kinds=[providers.LocalServer("vllm", port, "")])
        return found[0] if found else None


BODY = json.dumps(model_list({"id": "a"})).encode()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n" + BODY, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY), True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n" + BODY, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n" + BODY, False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n" + BODY, False),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False),
    ],
)
async def test_response_ends_with_its_length_or_its_connection(answer: bytes, found: bool) -> None:
    server = await find_raw(answer)
    assert (server is not None and server.models == ("a",)) is found


async def test_silent_server_is_not_waited_for_and_a_closed_port_has_none() -> None:
    assert await find(Answer(hang=True), timeout=0.05) is None
    async with Server() as server:
        kind = providers.LocalServer("ollama", server.port, "")
    assert await local_servers.find(kinds=[kind]) == []


async def test_server_of_another_user_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await find(respond(200, model_list({"id": "a", "owned_by": "me"})), kind="vllm")
    assert found.uids == {os.getuid()}
    assert local_servers.is_trusted(found.uids)
    table, rows = tmp_path / "tcp", (("0100007F", 33), ("00000000", 34), ("0100000A", 35))  # loopback, any, another
    table.write_text("header\n" + "".join(f"0: {address}:2CAA 0:0 0A 0 0 0 {uid}\n" for address, uid in rows))
    monkeypatch.setattr(local_servers, "SOCKET_TABLES", ("/nowhere", str(table)))
    assert [local_servers.owner_uids(port) for port in (0x2CAA, 0x2CAB)] == [{33, 34}, frozenset()]
    assert not local_servers.is_trusted(frozenset())
    assert not local_servers.is_trusted(frozenset({4_000_000_000}))
    monkeypatch.setattr(local_servers, "user_name", {990: "ollama", 33: "www-data"}.get)
    assert local_servers.is_trusted(frozenset({990, 0}), 1000)
    assert not local_servers.is_trusted(frozenset({990, 33}), 1000)
