"""Deltas gather to one reply, whatever their order and grain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import content_parts, errors, types
from holdfast.model import ScriptedModel, base, reply_builder


def gathered(*deltas: base.Delta) -> base.Reply:
    gathering = reply_builder.ReplyBuilder("some/model")
    for delta in deltas:
        gathering.add(delta)
    return gathering.reply()


def test_text_and_reasoning_become_parts_in_the_order_they_came() -> None:
    reply = gathered(
        base.ThinkingDelta("Let me "),
        base.ThinkingDelta("see."),
        base.ThinkingDelta(signature="sig"),
        base.ContentDelta("The "),
        base.ContentDelta("answer."),
        base.ThinkingDelta("Hm."),
        base.ContentDelta(" Yes."),
        base.FinishDelta("stop"),
    )
    assert reply.parts == (
        content_parts.Reasoning("Let me see.", "sig", "", "some"),
        content_parts.Text("The answer."),
        content_parts.Reasoning("Hm.", "", "", "some"),
        content_parts.Text(" Yes."),
    )
    assert reply.text == "The answer. Yes."


def test_interleaved_pieces_of_calls_find_their_place() -> None:
    reply = gathered(
        base.ToolCallDelta(1, "b", "two", '{"x"'),
        base.ToolCallDelta(0, "a", "one", "{"),
        base.ToolCallDelta(1, arguments=": 1}"),
        base.ToolCallDelta(0, arguments="}"),
        base.UsageDelta(types.Usage(1, 1)),
        base.UsageDelta(types.Usage(7, 3)),
        base.FinishDelta("calls"),
    )
    assert reply.calls == (types.ToolCall("a", "one", "{}"), types.ToolCall("b", "two", '{"x": 1}'))
    assert reply.usage == types.Usage(7, 3)


def test_what_was_not_finished_is_cut_and_half_a_call_is_no_call() -> None:
    reply = gathered(base.ContentDelta("Half"), base.ToolCallDelta(0, "a", "one", '{"x'))
    assert (reply.finish, reply.text, reply.calls) == ("cut", "Half", ())


def test_another_model_that_took_over_is_the_one_that_answered() -> None:
    reply = gathered(base.FallbackDelta("other/model", "why"), base.ThinkingDelta("x"), base.FinishDelta("stop"))
    assert reply.model == "other/model"
    assert reply.parts == (content_parts.Reasoning("x", "", "", "other"),)


@given(st.lists(st.text(), max_size=8))
def test_for_any_grain_the_text_is_the_same(pieces: list[str]) -> None:
    assert gathered(*map(base.ContentDelta, pieces), base.FinishDelta("stop")).text == "".join(pieces)


async def test_a_script_plays_replies_errors_deltas_and_functions() -> None:
    called = base.Reply(calls=(types.ToolCall("a", "one", {"x": 1}),))
    model = ScriptedModel(["text", called, lambda request: f"{len(request.messages)}", errors.ModelBusy()])
    replies = []
    for _ in range(3):
        gathering = reply_builder.ReplyBuilder()
        async for delta in model.stream(base.Request(messages=())):
            gathering.add(delta)
        replies.append(gathering.reply())
    assert [reply.text for reply in replies] == ["text", "", "0"]
    assert (replies[1].finish, replies[1].calls[0].arguments) == ("calls", '{"x":1}')
    with pytest.raises(errors.ModelBusy):
        _ = [delta async for delta in model.stream(base.Request(messages=()))]
    with pytest.raises(errors.RequestRefused, match="no reply to call 5"):
        _ = [delta async for delta in model.stream(base.Request(messages=()))]
    assert len(model.requests) == 5


def test_a_price_counts_what_came_from_the_cache_by_its_own() -> None:
    usage = types.Usage(input=1_000_000, output=100_000, cache_read=600_000, cache_write=100_000)
    assert base.Price(3.0, 15.0).of(usage) == pytest.approx(4.5)
    assert base.Price(3.0, 15.0, 0.3, 3.75).of(usage) == pytest.approx(0.9 + 0.18 + 0.375 + 1.5)
