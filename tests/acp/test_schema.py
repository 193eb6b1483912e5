"""The checker of frames itself: what the protocol allows passes, and every kind of mistake is found."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import acp_schema


def update(**fields: Any) -> acp_schema.Frame:
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "one", "update": fields}}


def said(**fields: Any) -> acp_schema.Frame:
    return update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "Good morning."}, **fields)


def call(**fields: Any) -> acp_schema.Frame:
    return update(sessionUpdate="tool_call", toolCallId="first", title="Look", **fields)


def opened() -> acp_schema.Wire:
    """A connection with a session, and a question that was not answered yet."""
    wire = acp_schema.Wire()
    wire.sent({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}})
    wire.got({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "one"}})
    wire.sent({"jsonrpc": "2.0", "id": "ask", "method": "session/prompt", "params": {"sessionId": "one", "prompt": []}})
    return wire


@pytest.mark.parametrize(
    "frame",
    [
        said(),
        said(_meta={"anything": {"goes": 1}}),
        call(status="in_progress", kind="execute", rawInput={"any": ["thing"]}, locations=[{"path": "/a", "line": 3}]),
        call(content=[{"type": "diff", "path": "/a", "oldText": "x", "newText": "y"}]),
        {"jsonrpc": "2.0", "id": "ask", "result": {"stopReason": "end_turn"}},
        {"jsonrpc": "2.0", "id": "ask", "error": {"code": -32602, "message": "No.", "data": {"why": "because"}}},
        {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Not JSON"}},
    ],
)
def test_what_the_protocol_has_passes(frame: acp_schema.Frame) -> None:
    opened().got(frame)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ("ready", "not a frame"),
        ({"id": "ask", "result": {"stopReason": "end_turn"}}, "not a frame"),
        (said(colour="blue"), "colour"),
        (call(content=[{"type": "diff", "path": "/a", "newText": "y", "colour": 1}]), "colour"),
        (call(content=[{"type": "picture", "path": "/a"}]), "content/0"),
        (call(status="running"), "update/status"),
        (update(sessionUpdate="telepathy"), "update"),
        (update(sessionUpdate="tool_call", title="Look"), "'toolCallId' is a required property"),
        (update(sessionUpdate="tool_call_update", toolCallId="second"), "never begun"),
        ({"jsonrpc": "2.0", "id": "ask", "result": {"stopReason": "tired"}}, "stopReason"),
        ({"jsonrpc": "2.0", "id": "ask", "result": None}, "None is not of type 'object'"),
        ({"jsonrpc": "2.0", "id": "ask", "error": {"code": "bad", "message": "No."}}, "code"),
        ({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "one"}}, "a second one"),
        ({"jsonrpc": "2.0", "method": "session/gossip", "params": {}}, "no notification session/gossip"),
        ({"jsonrpc": "2.0", "id": 7, "method": "session/update", "params": {}}, "no request session/update"),
        ({"jsonrpc": "2.0", "id": "ask", "result": {"stopReason": "end_turn"}, "extra": 1}, "has "),
    ],
)
def test_a_mistake_is_found_and_named(frame: Any, why: str) -> None:
    with pytest.raises(acp_schema.Wrong, match=why):
        opened().got(frame)


def test_a_session_is_spoken_of_only_once_the_client_knows_it() -> None:
    wire = acp_schema.Wire()
    with pytest.raises(acp_schema.Wrong, match="does not know of yet"):
        wire.got(said())
    wire.sent({"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": {"sessionId": "one"}})
    wire.got(said())


def test_calls_that_were_begun_and_not_ended_are_told() -> None:
    wire = opened()
    wire.got(call())
    assert wire.open_calls("one") == {"first"}
    wire.got(update(sessionUpdate="tool_call_update", toolCallId="first", status="completed"))
    assert wire.open_calls("one") == set()
    with pytest.raises(acp_schema.Wrong, match="begun before"):
        wire.got(call())


def test_prose_is_left_out_and_names_are_not() -> None:
    published = {"description": "d", "properties": {"title": {"type": "string", "title": "t"}}, "required": ["title"]}
    assert acp_schema.bare(published) == {"properties": {"title": {"type": "string"}}, "required": ["title"]}
