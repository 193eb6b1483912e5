"""The channel to an editor: invalid frames get the protocol's errors, and later ones are served."""

from __future__ import annotations

import asyncio
import json
from importlib import util
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast import errors
from holdfast.acp import channel
from tests.support import acp_schema

HELLO: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
NEW: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "session/new", "params": {}}
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(max_size=5),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
OBJECTS = some.fixed_dictionaries(
    {"jsonrpc": some.sampled_from(["2.0", 2])},
    optional={
        "id": JSON,
        "method": some.sampled_from(["session/cancel", "$/cancel_request", "session/prompt", "initialize", 7, None]),
        "params": JSON,
        "result": JSON,
        "error": JSON,
    },
)


class Lines:
    """A transport with given input that records its output."""

    def __init__(self, *lines: bytes, gone: bool = False) -> None:
        self._lines, self.gone = [*lines], gone
        self.sent: list[dict[str, Any]] = []

    async def receive(self) -> bytes | None:
        await asyncio.sleep(0)
        return self._lines.pop(0) if self._lines else None

    async def send(self, frame: bytes) -> None:
        if self.gone:
            raise errors.Gone()
        self.sent.append(json.loads(frame))

    async def unread(self) -> None:
        await asyncio.Event().wait()


def line(frame: object) -> bytes:
    return json.dumps(frame).encode()


async def read_all(wire: channel.EditorChannel) -> list[dict[str, Any]]:
    seen = []
    while (frame := await wire.receive()) is not None:
        seen.append(frame)
    return seen


def read(*lines: bytes, longest: int = channel.MAX_FRAME_BYTES) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the frames that the SDK sees of these lines, and those that are answered before."""
    carrier = Lines(*lines)
    return asyncio.run(read_all(channel.EditorChannel(carrier, "1.0", longest))), carrier.sent


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (b"{", -32700),
        (b"\xef\xbb\xbf" + line(HELLO), -32700),
        (line({"id": 5, "method": "x"}), -32600),
        (line({"jsonrpc": "1.0", "method": "x"}), -32600),
        (line({"jsonrpc": "2.0", "id": {}, "method": "x"}), -32600),
        (line([HELLO, NEW]), -32600),
        (b"x" * 10_001, -32600),
        # Responses that cannot be assigned to a request.
        (b'{"jsonrpc": "2.0", "result": {"id": 7, "content": "' + b"x" * 10_000, -32600),
        (b'{"jsonrpc": "2.0", "id": true, "result": {}}', -32600),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_invalid_frame_is_refused_and_the_next_is_served(wrong: bytes, code: int) -> None:
    seen, sent = read(wrong, line(NEW), longest=10_000)
    assert seen == [NEW]
    assert [each["error"]["code"] for each in sent] == [code]
    assert [each["id"] for each in sent] == [5 if b'"id": 5' in wrong else None]


@pytest.mark.parametrize("error", ["no", [], {}, {"code": "x", "message": "y"}, None])
def test_response_with_an_invalid_error_is_an_error(error: object) -> None:
    (seen,), sent = read(line({"jsonrpc": "2.0", "id": 0, "error": error}))
    assert (seen["error"]["code"], sent) == (-32603, [])


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"id": 7, "result": {"outcome": {"outcome": "selected", "optionId": "once"}}}',
        b'{"jsonrpc": "1.0", "id": 7, "error": {"code": 1, "message": "no"}}',
        b'{"jsonrpc": "2.0", "id": 7, "method": null, "result": {}}',
        b'{"jsonrpc": "2.0", "id": 7, "method": {}, "error": {"code": 1, "message": "no"}}',
    ],
)
def test_invalid_response_fails_its_request_and_is_refused_without_an_id(wrong: bytes) -> None:
    (seen, after), sent = read(wrong, line(NEW), longest=200)
    assert (seen["id"], seen["error"]["code"], after) == (7, -32603, NEW)
    # With its id it would be taken for the response to a request of the editor.
    assert [(each["id"], each["error"]["code"]) for each in sent] == [(None, -32600)]


@given(some.lists(some.one_of(some.binary(max_size=40), JSON.map(line), OBJECTS.map(line)), max_size=8))
def test_any_lines_are_followed_by_service_and_only_messages_pass(lines: list[bytes]) -> None:
    seen, sent = read(*(each.replace(b"\n", b"") for each in lines), line(NEW))
    assert seen[-1] == NEW
    assert all(isinstance(each.get("method"), str) or "id" in each for each in seen)
    assert all(each["jsonrpc"] == "2.0" for each in [*seen, *sent])


@pytest.mark.parametrize(
    ("given", "params"),
    [
        (b"", {}),
        (b', "params": null', {}),
        (b', "params": {"cwd": "/", "_meta": {"cwd": "/etc"}}', {"cwd": "/"}),
        (b', "params": {"a\\ud83d": ["x \\ud83d", "\\ud83d\\ude00"]}', {"a\ufffd": ["x \ufffd", "\U0001f600"]}),
    ],
    ids=["missing", "null", "meta", "unpaired surrogates"],
)
def test_params_are_normalized(given: bytes, params: dict[str, Any]) -> None:
    (seen,), sent = read(b'{"jsonrpc": "2.0", "id": 1, "method": "session/list"%s}' % given)
    assert (seen["params"], sent) == (params, [])


@pytest.mark.parametrize("method", ["$/anything", "session/dance", "$/cancel_request"])
def test_unknown_notification_is_ignored(method: str) -> None:
    assert read(line({"jsonrpc": "2.0", "method": method})) == ([], [])


async def test_initialize_is_answered_and_capabilities_are_known() -> None:
    hello = HELLO | {"params": {"protocolVersion": 1, "clientCapabilities": {"terminal": True}}}
    wire = channel.EditorChannel(carrier := Lines(line(hello), line(NEW)), "1.0")
    assert await wire.wait_initialized()
    assert await read_all(wire) == [NEW]
    assert carrier.sent[0]["result"]["protocolVersion"] == 1
    assert wire.client_capabilities == {"terminal": True}


async def test_editor_without_initialize_is_served() -> None:
    wire = channel.EditorChannel(carrier := Lines(b"nonsense", line(NEW)), "1.0")
    assert await wire.wait_initialized()
    assert await read_all(wire) == [NEW]
    assert [each["error"]["code"] for each in carrier.sent] == [-32700]
    assert not await channel.EditorChannel(Lines(), "1.0").wait_initialized()


@pytest.mark.parametrize("params", [None, [], {}, {"protocolVersion": "1"}, {"protocolVersion": True}])
async def test_invalid_initialize_is_refused(params: object) -> None:
    wire = channel.EditorChannel(carrier := Lines(line(HELLO | {"params": params})), "1.0")
    await wire.wait_initialized()
    assert carrier.sent[0]["error"]["code"] == -32602


@pytest.mark.parametrize("version", [0, 1, 65535])
@pytest.mark.parametrize("mcp", [True, False])
def test_initialize_offers_only_available_features(version: int, mcp: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not mcp:
        monkeypatch.setattr(util, "find_spec", lambda _: None)
    made = channel.initialize_result({"protocolVersion": version}, "1.2.3")
    acp_schema.vendored().check("agent", "initialize", "Response", made)
    assert made["protocolVersion"] == 1
    assert made["agentCapabilities"]["mcpCapabilities"] == {"http": mcp, "sse": mcp}
    assert made["agentCapabilities"]["promptCapabilities"] == {"image": True, "audio": False, "embeddedContext": True}
    assert {*made["agentCapabilities"]["sessionCapabilities"]} >= {"list", "resume", "close", "fork"}
    assert (made["agentCapabilities"]["loadSession"], made["agentInfo"]["name"]) == (True, "holdfast")


async def test_error_data_is_encodable_and_without_the_input() -> None:
    found = [{"loc": ("prompt", 0), "msg": "no", "input": "x" * 1_000_000, "ctx": {"error": ValueError("odd")}}] * 30
    wire = channel.EditorChannel(carrier := Lines(), "1.0")
    for data in ({"errors": found}, {"why": ValueError("odd")}):
        await wire.send({"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no", "data": data}})
    first, second = (each["error"]["data"] for each in carrier.sent)
    assert first["errors"] == [{"loc": ["prompt", 0], "msg": "no"}] * 20
    assert second == {"why": "odd"}


async def test_request_to_a_disconnected_editor_fails_and_a_response_is_dropped() -> None:
    wire = channel.EditorChannel(Lines(gone=True), "1.0")
    await wire.send({"id": 1, "result": None})
    with pytest.raises(channel.EditorGone):
        await wire.send({"id": 1, "method": "x"})
