"""Bodies: the same content always gives the same text, and the text always gives back the same content."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors, types
from holdfast.store import message_codec, validation

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
def test_for_any_content_the_body_gives_it_back(
    content: types.Content, tool_calls: list[types.ToolCall], answers: str | None
) -> None:
    body = decoded(message_codec.encode(content, tool_calls, answers))
    assert (body.content, body.tool_calls, body.tool_call_id) == (content, tuple(tool_calls), answers)


@given(text | parts, calls)
def test_for_any_content_the_body_is_plain_json(content: types.Content, tool_calls: list[types.ToolCall]) -> None:
    body = message_codec.encode(content, tool_calls)
    assert json.loads(body).get("content", "") == content
    assert body


@given(st.dictionaries(text, values, min_size=2, max_size=5))
def test_for_any_object_the_order_of_its_keys_does_not_matter(part: dict[str, object]) -> None:
    backwards = dict(reversed(part.items()))
    assert message_codec.encode([part]) == message_codec.encode([backwards])


@given(text)
def test_both_ways_to_encode_plain_text_agree(content: str) -> None:
    assert message_codec.encode(content) == message_codec.encode_synthetic(content) or content == ""


@given(text | parts)
def test_body_with_calls_begins_with_them(content: types.Content) -> None:
    assert message_codec.encode(content, [types.ToolCall("c")]).startswith('{"tool_calls')
    assert not message_codec.encode(content).startswith('{"tool_calls')


def test_nothing_is_empty_text() -> None:
    assert decoded(message_codec.encode(None)).content == ""


def test_tuple_of_parts_is_a_list_of_parts() -> None:
    assert decoded(message_codec.encode(({"a": 1},))).content == [{"a": 1}]


@pytest.mark.parametrize("content", [5, b"x", {"a": 1}, [1], [None], ["text"], object(), {1, 2}, True])
def test_what_is_neither_text_nor_parts_is_refused(content: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        message_codec.encode(content)


def test_depth_is_bounded_with_room_to_spare() -> None:
    value: object = 1
    for _ in range(message_codec.MAX_DEPTH - 2):
        value = [value]
    assert decoded(message_codec.encode([{"x": value}])).content == [{"x": value}]
    with pytest.raises(errors.InvalidArgument):
        message_codec.encode([{"x": [value]}])


def test_size_is_bounded() -> None:
    room = message_codec.MAX_BODY - len('{"content":""}')
    assert len(message_codec.encode("x" * room)) == message_codec.MAX_BODY
    with pytest.raises(errors.InvalidArgument):
        message_codec.encode("x" * (room + 1))
    with pytest.raises(errors.InvalidArgument):
        message_codec.encode("\0" * (room // 5))


# --- ids and digests -------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=200).filter(str.isprintable))
def test_any_printable_text_is_an_id(name: str) -> None:
    assert validation.check_id(name) == name


@pytest.mark.parametrize("at", [0, 1.5, 2_000_000_000])
def test_time_is_unix_seconds(at: float) -> None:
    assert message_codec.encode_message(types.NewMessage(role="user", at=at), 7.0).at == at


@pytest.mark.parametrize("at", [-1, 1e12, float("nan"), float("inf"), "1", True, b"1", [1]])
def test_time_that_is_none_is_refused(at: object) -> None:
    with pytest.raises(errors.InvalidArgument):
        message_codec.encode_message(types.NewMessage(role="user", at=at), 7.0)


def test_prepared_message_knows_whether_its_uid_was_minted() -> None:
    given, minted = (message_codec.encode_message(types.NewMessage(role="user", uid=uid), 7.0) for uid in ("u", None))
    assert (given.uid, given.is_uid_generated, given.at, minted.is_uid_generated) == ("u", False, 7.0, True)


def test_digest_covers_where_a_message_stands_and_what_it_says() -> None:
    stood = ("talk", 1, "u", "user", "{}")
    others = [("talc", 1, "u", "user", "{}"), ("talk", 2, "u", "user", "{}"), ("talk", 1, "v", "user", "{}")]
    others += [("talk", 1, "u", "tool", "{}"), ("talk", 1, "u", "user", "{ }"), ("talk1", 1, "u", "user", "{}")]
    digests = {message_codec.digest(*each) for each in [stood, *others]}
    assert len(digests) == 7
    assert {len(digest) for digest in digests} == {16}
    assert message_codec.digest(*stood) == message_codec.digest(*stood)


def test_minted_uids_grow_and_never_meet() -> None:
    mine = [message_codec.generate_uid() for _ in range(2000)]
    assert len(set(mine)) == 2000
    assert [uid[:16] for uid in mine] == sorted(uid[:16] for uid in mine)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.extend(message_codec.generate_uid() for _ in range(500)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found) | set(mine)) == 4000


FORKED = """
import os
from holdfast.store import message_codec
message_codec.generate_uid()
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, message_codec.generate_uid()[16:24].encode())
    os._exit(0)
os.wait()
print(os.read(read, 8).decode() != message_codec.generate_uid()[16:24])
"""


def test_forked_child_does_not_mint_its_parents_uids() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
