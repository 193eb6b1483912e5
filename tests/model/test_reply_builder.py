"""Replies built from deltas."""

from __future__ import annotations

from holdfast import content_parts, types
from holdfast.model import base, reply_builder


def build(*deltas: base.Delta) -> base.Reply:
    builder = reply_builder.ReplyBuilder("some/model")
    for delta in deltas:
        builder.add(delta)
    return builder.reply()


def test_parts_are_in_their_order_and_calls_in_that_of_their_index() -> None:
    reply = build(
        base.ThinkingDelta("Let me "),
        base.ThinkingDelta("see."),
        base.ThinkingDelta(signature="sig"),
        base.ContentDelta("The "),
        base.ContentDelta("answer."),
        base.FallbackDelta("other/model", "why"),
        base.ThinkingDelta("Hm."),
        base.ContentDelta(" Yes."),
        base.ToolCallDelta(1, "b", "two", '{"x"'),
        base.ToolCallDelta(0, "a", "one", "{}"),
        base.ToolCallDelta(1, arguments=": 1}"),
        base.FinishDelta("stop"),
    )
    assert reply.parts == (
        content_parts.Reasoning("Let me see.", "sig", "", "some"),
        content_parts.Text("The answer."),
        content_parts.Reasoning("Hm.", "", "", "other"),
        content_parts.Text(" Yes."),
    )
    assert reply.calls == (types.ToolCall("a", "one", "{}"), types.ToolCall("b", "two", '{"x": 1}'))
    assert (reply.text, reply.model) == ("The answer. Yes.", "other/model")
