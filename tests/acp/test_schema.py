"""The frame checker of the tests accepts valid frames and finds every kind of error."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import acp_schema


def update(**fields: Any) -> acp_schema.Frame:
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "one", "update": fields}}


def call(**fields: Any) -> acp_schema.Frame:
    return update(sessionUpdate="tool_call", toolCallId="first", title="Look", **fields)


def open_wire() -> acp_schema.Wire:
    """Return a connection with a session and a pending prompt."""
    wire = acp_schema.Wire()
    wire.sent({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": {"cwd": "/", "mcpServers": []}})
    wire.got({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "one"}})
    wire.sent({"jsonrpc": "2.0", "id": "ask", "method": "session/prompt", "params": {"sessionId": "one", "prompt": []}})
    return wire


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        ({"id": "ask", "result": {"stopReason": "end_turn"}}, "not a frame"),
        (call(content=[{"type": "diff", "path": "/a", "newText": "y", "colour": 1}]), "colour"),
        (call(status="running"), "running"),
        (update(sessionUpdate="tool_call_update", toolCallId="second"), "never begun"),
        ({"jsonrpc": "2.0", "id": "ask", "result": {"stopReason": "tired"}}, "tired"),
        ({"jsonrpc": "2.0", "id": 1, "result": {"sessionId": "one"}}, "a second one"),
        ({"jsonrpc": "2.0", "method": "session/gossip", "params": {}}, "no notification session/gossip"),
        ({"jsonrpc": "2.0", "id": "ask", "result": {"stopReason": "end_turn"}, "extra": 1}, "extra"),
    ],
)
def test_error_is_found_and_named(frame: Any, why: str) -> None:
    with pytest.raises(acp_schema.Wrong, match=why):
        open_wire().got(frame)


def test_sessions_and_open_calls_are_tracked() -> None:
    wire = acp_schema.Wire()
    with pytest.raises(acp_schema.Wrong, match="does not know yet"):
        wire.got(update(sessionUpdate="agent_message_chunk", content={"type": "text", "text": "Good morning."}))
    wire.sent({"jsonrpc": "2.0", "id": 1, "method": "session/load", "params": {"sessionId": "one"}})
    wire.got(call())
    assert wire.open_calls("one") == {"first"}
    wire.got(update(sessionUpdate="tool_call_update", toolCallId="first", status="completed"))
    assert wire.open_calls("one") == set()
    with pytest.raises(acp_schema.Wrong, match="begun before"):
        wire.got(call())
