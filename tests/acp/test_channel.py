"""Frames: what is no message is answered with the protocol's error, and what comes after it is served."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast import errors
from holdfast.acp import channel

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
    """What comes is known before; what goes is kept."""

    def __init__(self, *lines: bytes) -> None:
        self._lines = [*lines]
        self.sent: list[dict[str, Any]] = []
        self.gone = False

    async def receive(self) -> bytes | None:
        return self._lines.pop(0) if self._lines else None

    async def send(self, frame: bytes) -> None:
        if self.gone:
            raise errors.Gone()
        self.sent.append(json.loads(frame))

    async def unread(self) -> None:
        await asyncio.Event().wait()


def line(frame: object) -> bytes:
    return json.dumps(frame).encode()


def read(*lines: bytes, longest: int = channel.MAX_FRAME_BYTES) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the SDK sees of these lines, and what is answered to them before it does."""
    carrier = Lines(*lines)

    async def story() -> list[dict[str, Any]]:
        wire = channel.EditorChannel(carrier, "1.0", longest)
        seen = []
        while (frame := await wire.receive()) is not None:
            seen.append(frame)
        return seen

    return asyncio.run(story()), carrier.sent


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (b"{", -32700),
        (b"hello", -32700),
        (b"\xff\xfe", -32700),
        (b"[" * 5_000, -32700),
        (line(HELLO).decode().encode("utf-16"), -32700),
        (b"\xef\xbb\xbf" + line(HELLO), -32700),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"a": 1e999}}', -32700),
        (b"[1]", -32600),
        (b"[]", -32600),
        (b"7", -32600),
        (b'"x"', -32600),
        (b"null", -32600),
        (b"{}", -32600),
        (line({"id": 5, "method": "x"}), -32600),
        (line({"jsonrpc": "1.0", "method": "x"}), -32600),
        (line({"jsonrpc": "2.0", "method": 7}), -32600),
        (line({"jsonrpc": "2.0", "id": {}, "method": "x"}), -32600),
        (line([HELLO, NEW]), -32600),
    ],
)
def test_what_is_no_message_is_refused_and_the_next_is_served(wrong: bytes, code: int) -> None:
    seen, sent = read(wrong, line(NEW))
    assert seen == [NEW]
    assert [each["error"]["code"] for each in sent] == [code]


@pytest.mark.parametrize("error", ["no", 7, [], {}, {"code": "x", "message": "y"}, None])
def test_an_answer_whose_error_is_none_is_an_error(error: object) -> None:
    (seen,), sent = read(line({"jsonrpc": "2.0", "id": 0, "error": error}))
    assert seen["error"]["code"] == -32603
    assert sent == []


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (b'{"id": 7, "result": {"outcome": {"outcome": "selected", "optionId": "once"}}}', -32600),
        (b'{"jsonrpc": "1.0", "id": 7, "error": {"code": 1, "message": "no"}}', -32600),
        (b'{"jsonrpc": "2.0", "id": 7, "method": null, "result": {}}', -32600),
        (b'{"jsonrpc": "2.0", "id": 7, "method": {}, "error": {"code": 1, "message": "no"}}', -32600),
    ],
)
def test_an_answer_that_is_none_is_the_end_of_the_wait_for_it_and_refused_under_no_id(wrong: bytes, code: int) -> None:
    (seen, after), sent = read(wrong, line(NEW), longest=200)
    assert (seen["id"], seen["error"]["code"]) == (7, -32603)
    assert after == NEW
    # By its id it would be taken for the answer to a request of the editor's own.
    assert [(each["id"], each["error"]["code"]) for each in sent] == [(None, code)]


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": {"x": "' + b"x" * 1_000,
        b'{"jsonrpc": "2.0", "result": {"id": 7, "content": "' + b"x" * 1_000,
        b'{"jsonrpc": "2.0", "id": true, "result": {}}',
        b'{"jsonrpc": "2.0", "id": null, "result": "' + b"x" * 1_000,
        b'{"jsonrpc": "2.0", "result": {}}',
    ],
)
def test_nobody_is_told_of_an_answer_that_is_nobodys(wrong: bytes) -> None:
    seen, sent = read(wrong, line(NEW), longest=500)
    assert seen == [NEW]
    assert [(each["id"], each["error"]["code"]) for each in sent] == [(None, -32600)]


@pytest.mark.parametrize("params", [b"", b', "params": null'])
def test_parameters_that_are_left_out_are_none(params: bytes) -> None:
    (seen,), _ = read(b'{"jsonrpc": "2.0", "id": 1, "method": "session/list"%s}' % params)
    assert seen["params"] == {}


@given(some.lists(some.one_of(some.binary(max_size=40), JSON.map(line), OBJECTS.map(line)), max_size=8))
def test_for_any_lines_what_comes_after_them_is_served_and_all_that_passes_is_a_message(lines: list[bytes]) -> None:
    seen, sent = read(*(each.replace(b"\n", b"") for each in lines), line(NEW))
    assert seen[-1] == NEW
    assert all(isinstance(each.get("method"), str) or "id" in each for each in seen)
    assert all(each["jsonrpc"] == "2.0" for each in [*seen, *sent])


def test_what_stands_beside_parameters_is_not_taken_for_some() -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/", "_meta": {"cwd": "/etc"}}}
    (seen,), _ = read(line(asked))
    assert seen["params"] == {"cwd": "/"}


def test_a_frame_that_is_too_large_is_refused_and_the_next_is_served() -> None:
    seen, sent = read(b"x" * 1_001, line(NEW), longest=1_000)
    assert seen == [NEW]
    assert [each["error"]["code"] for each in sent] == [-32600]


def test_half_a_character_is_a_sign_and_keeps_no_request_from_being_served() -> None:
    half = b'{"jsonrpc": "2.0", "id": 2, "method": "x", "params": {"a\\ud83d": ["cut \\ud83d", "\\ud83d\\ude00", 1]}}'
    (seen,), sent = read(half)
    assert seen["params"] == {"a\ufffd": ["cut \ufffd", "\U0001f600", 1]}
    assert sent == []


@pytest.mark.parametrize("line", [b'{"a": NaN}', b'{"a": "\\ud800"'])
def test_what_only_looks_like_json_is_none(line: bytes) -> None:
    _, sent = read(line)
    assert [each["error"]["code"] for each in sent] == [-32700]


def test_an_error_names_the_request_where_that_can_be_told() -> None:
    _, sent = read(line({"id": 5, "method": "x"}), line({"id": True, "method": "x"}))
    assert [each["id"] for each in sent] == [5, None]


# --- greeting ------------------------------------------------------------------------------------------


def greet(*lines: bytes) -> tuple[bool, list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    carrier = Lines(*lines)

    async def story() -> tuple[bool, list[dict[str, Any]], dict[str, Any]]:
        wire = channel.EditorChannel(carrier, "1.0")
        came = await wire.wait_initialized()
        kept = []
        while (frame := await wire.receive()) is not None:
            kept.append(frame)
        return came, kept, wire.client_capabilities

    came, kept, offered = asyncio.run(story())
    return came, kept, carrier.sent, offered


def test_an_editor_is_greeted_and_what_it_offers_is_known() -> None:
    hello = HELLO | {"params": {"protocolVersion": 1, "clientCapabilities": {"terminal": True}}}
    came, kept, sent, offered = greet(line(hello), line(NEW))
    assert came
    assert kept == [NEW]
    assert sent[0]["result"]["protocolVersion"] == 1
    assert offered == {"terminal": True}


def test_an_editor_that_does_not_say_hello_is_served_all_the_same() -> None:
    came, kept, sent, _ = greet(b"nonsense", line(NEW))
    assert came
    assert kept == [NEW]
    assert [each["error"]["code"] for each in sent] == [-32700]


def test_nobody_who_says_anything_is_nobody() -> None:
    assert greet() == (False, [], [], {})


@pytest.mark.parametrize("params", [None, [], {}, {"protocolVersion": "1"}, {"protocolVersion": True}])
def test_a_hello_that_is_none_is_refused(params: object) -> None:
    _, _, sent, _ = greet(line(HELLO | {"params": params}))
    assert sent[0]["error"]["code"] == -32602


def test_an_editor_is_greeted_before_anything_that_takes_its_time_is_loaded() -> None:
    code = """
import sys
from holdfast.cli import acp
heavy = {"acp", "pydantic", "apsw", "holdfast.store.db", "holdfast.agent.agent", "holdfast.app", "mcp"}
print(sorted(heavy & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- sending -------------------------------------------------------------------------------------------


async def test_frames_go_out_in_the_order_they_were_sent() -> None:
    carrier = Lines()
    wire = channel.EditorChannel(carrier, "1.0")
    await asyncio.gather(*(wire.send({"id": number, "result": None}) for number in range(100)))
    assert [each["id"] for each in carrier.sent] == [*range(100)]


def test_an_error_with_something_in_it_that_json_has_no_form_for_is_told() -> None:
    carrier = Lines()
    error = {"code": -32602, "message": "no", "data": {"why": ValueError("odd")}}
    asyncio.run(channel.EditorChannel(carrier, "1.0").send({"jsonrpc": "2.0", "id": 1, "error": error}))
    assert carrier.sent[0]["error"]["data"] == {"why": "odd"}


def test_what_was_asked_wrongly_is_not_sent_back() -> None:
    carrier = Lines()
    found = [{"loc": ("prompt", 0), "msg": "no", "input": "x" * 1_000_000, "ctx": {"error": ValueError("odd")}}] * 30
    error = {"code": -32602, "message": "no", "data": {"errors": found}}
    asyncio.run(channel.EditorChannel(carrier, "1.0").send({"jsonrpc": "2.0", "id": 1, "error": error}))
    assert carrier.sent[0]["error"]["data"]["errors"] == [{"loc": ["prompt", 0], "msg": "no"}] * 20


async def test_nothing_more_comes_from_one_who_reads_nothing_more() -> None:
    class Deaf(Lines):
        async def unread(self) -> None:
            return

    wire = channel.EditorChannel(Deaf(line(HELLO), line(NEW)), "1.0")
    assert not await wire.wait_initialized()
    assert await wire.receive() is None
    await wire.refuse_all("The store cannot be opened.")


async def test_where_nobody_can_tell_whether_it_is_read_all_is_served() -> None:
    class Unknown(Lines):
        async def receive(self) -> bytes | None:
            await asyncio.sleep(0)
            return await super().receive()

        async def unread(self) -> None:
            raise AttributeError("poll")

    wire = channel.EditorChannel(Unknown(line(HELLO), line(NEW)), "1.0")
    assert await wire.wait_initialized()
    assert [await wire.receive(), await wire.receive()] == [NEW, None]


def test_whoever_is_gone_is_a_lost_connection() -> None:
    carrier = Lines()
    carrier.gone = True
    with pytest.raises(channel.EditorGone):
        asyncio.run(channel.EditorChannel(carrier, "1.0").send({"id": 1, "method": "x"}))


def test_whoever_is_gone_is_owed_no_answer() -> None:
    carrier = Lines()
    carrier.gone = True
    asyncio.run(channel.EditorChannel(carrier, "1.0").send({"id": 1, "result": None}))


@pytest.mark.parametrize("method", ["$/anything", "session/dance", "_own/thing", "$/cancel_request"])
def test_a_notification_nobody_knows_is_silent(method: str) -> None:
    assert read(line({"jsonrpc": "2.0", "method": method})) == ([], [])


async def test_whoever_is_turned_away_is_told_why_whatever_is_asked() -> None:
    cancel = {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "x"}}
    carrier = Lines(line(NEW), line(cancel), line(HELLO | {"id": 3}), line(NEW | {"id": 4}))
    wire = channel.EditorChannel(carrier, "1.0")
    assert await wire.wait_initialized()
    await wire.refuse_all("The store cannot be opened.")
    assert [each["id"] for each in carrier.sent] == [2, 3, 4]
    assert [each.get("error") for each in carrier.sent] == [
        {"code": -32603, "message": "The store cannot be opened."},
        None,
        {"code": -32603, "message": "The store cannot be opened."},
    ]
