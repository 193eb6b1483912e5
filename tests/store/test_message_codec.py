"""Bodies, digests and uids of messages."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors, types
from holdfast.store import message_codec
from tests.store.conftest import call_in_fork
from tests.support import conversations

text = st.text(st.characters(codec="utf-8"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)
parts = st.lists(st.dictionaries(text, values, max_size=4), max_size=3)
calls = st.lists(
    st.builds(types.ToolCall, text.filter(bool), text, text | st.dictionaries(text, values, max_size=3)), max_size=3
)


def decoded(body: str) -> types.Body:
    return msgspec.json.decode(body, type=types.Body)


@given(text | parts, calls, st.none() | text)
def test_any_content_is_decoded(content: types.Content, tool_calls: list[types.ToolCall], answers: str | None) -> None:
    encoded = message_codec.encode(content, tool_calls, answers)
    body = decoded(encoded)
    assert (body.content, body.tool_calls, body.tool_call_id) == (content, tuple(tool_calls), answers)
    assert json.loads(encoded).get("content", "") == content
    assert encoded.startswith('{"tool_calls') == bool(tool_calls)
    if isinstance(content, str) and content:
        assert message_codec.encode(content) == message_codec.encode_synthetic(content)


@given(st.dictionaries(text, values, min_size=2, max_size=5))
def test_order_of_keys_does_not_matter(part: dict[str, object]) -> None:
    backwards = dict(reversed(part.items()))
    assert message_codec.encode([part]) == message_codec.encode([backwards])


def test_body_is_decoded_on_access_only() -> None:
    broken, newer, redacted = (
        types.Message(1, "u", "talk", "assistant", 0.0, body)
        for body in ("{not json", '{"content":"x","invented":{"later":true}}', "")
    )
    assert (broken.seq, broken.role, broken.redacted) == (1, "assistant", False)
    with pytest.raises(errors.StoreCorrupt):
        _ = broken.content
    assert (newer.content, newer.tool_calls, newer.tool_call_id) == ("x", (), None)
    assert (redacted.redacted, redacted.content, redacted.tool_calls, redacted.tool_call_id) == (True, "", (), None)


def test_digest_covers_place_and_content_of_a_message() -> None:
    message = ("talk", 1, "u", "user", "{}")
    changes = {0: "talc", 1: 2, 2: "v", 3: "tool", 4: "{ }"}
    others = [(*message[:index], value, *message[index + 1 :]) for index, value in changes.items()]
    digests = {message_codec.digest(*each) for each in [message, *others, ("talk1", 1, "u", "user", "{}")]}
    assert (len(digests), {len(digest) for digest in digests}) == (7, {16})


def test_generated_uids_grow_and_are_unique() -> None:
    uids = [message_codec.generate_uid() for _ in range(2000)]
    assert [uid[:16] for uid in uids] == sorted(uid[:16] for uid in uids)
    generate = [lambda: [message_codec.generate_uid() for _ in range(500)]] * 4
    found = [uid for others in conversations.at_once(*generate) for uid in others]
    assert len(set(found) | set(uids)) == 4000


def test_forked_child_generates_other_uids() -> None:
    message_codec.generate_uid()
    assert call_in_fork(message_codec.generate_uid)[16:24] != message_codec.generate_uid()[16:24]


def test_depth_and_size_are_bounded() -> None:
    value: object = 1
    for _ in range(message_codec.MAX_DEPTH - 2):
        value = [value]
    assert decoded(message_codec.encode([{"x": value}])).content == [{"x": value}]
    assert decoded(message_codec.encode(({"a": 1},))).content == [{"a": 1}]
    assert decoded(message_codec.encode(None)).content == ""
    room = message_codec.MAX_BODY - len('{"content":""}')
    assert len(message_codec.encode("x" * room)) == message_codec.MAX_BODY
    for content in ([{"x": [value]}], "x" * (room + 1), "\0" * (room // 5), 5, {"a": 1}, ["text"]):
        with pytest.raises(errors.InvalidArgument):
            message_codec.encode(content)
