"""Frames: whatever comes is a message or a typed error, and what goes out is what the other side can read."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import errors
from holdfast.rpc import frames

SMALL = frames.FrameLimits(max_bytes=200, max_running=3)

json_values = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.text(max_size=20),
    lambda inner: strategies.lists(inner, max_size=4) | strategies.dictionaries(strategies.text(max_size=5), inner),
    max_leaves=12,
)
ids = strategies.none() | strategies.integers(-(10**60), 10**60) | strategies.text(max_size=200)
params = (
    strategies.none()
    | strategies.lists(json_values, max_size=3)
    | strategies.dictionaries(strategies.text(max_size=5), json_values, max_size=3)
)


def told(frame: bytes, limits: frames.FrameLimits = frames.DEFAULT_LIMITS) -> tuple[int, frames.Id]:
    found = frames.decode(frame, limits)
    assert isinstance(found, frames.InvalidMessage), found
    return found.error.code, found.id


@pytest.mark.parametrize(
    ("frame", "code", "id"),
    [
        (b"", frames.PARSE_ERROR, None),
        (b"{", frames.PARSE_ERROR, None),
        (b"nonsense", frames.PARSE_ERROR, None),
        (b"NaN", frames.PARSE_ERROR, None),
        (b'\xef\xbb\xbf{"jsonrpc": "2.0", "method": "x"}', frames.PARSE_ERROR, None),
        (b'{"jsonrpc": "2.0", "method": "\xff"}', frames.PARSE_ERROR, None),
        (b'{"jsonrpc": "2.0", "method": "\\ud800"}', frames.PARSE_ERROR, None),
        (b'{"jsonrpc": "2.0", "method": "x", "id": 1e999}', frames.PARSE_ERROR, None),
        (b"1", frames.INVALID_REQUEST, None),
        (b"null", frames.INVALID_REQUEST, None),
        (b'"x"', frames.INVALID_REQUEST, None),
        (b"[]", frames.INVALID_REQUEST, None),
        (b"{}", frames.INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0"}', frames.INVALID_REQUEST, None),
        (b'{"jsonrpc": "1.0", "method": "x", "id": 7}', frames.INVALID_REQUEST, 7),
        (b'{"jsonrpc": 2.0, "method": "x", "id": 7}', frames.INVALID_REQUEST, 7),
        (b'{"method": "x", "id": "a"}', frames.INVALID_REQUEST, "a"),
        (b'{"jsonrpc": "2.0", "method": 1, "id": 7}', frames.INVALID_REQUEST, 7),
        (b'{"jsonrpc": "2.0", "method": null, "id": 7}', frames.INVALID_REQUEST, 7),
        (b'{"jsonrpc": "2.0", "method": "x", "params": "bar", "id": 7}', frames.INVALID_REQUEST, 7),
        (b'{"jsonrpc": "2.0", "method": "x", "id": true}', frames.INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "method": "x", "id": {}}', frames.INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "method": "x", "id": [1]}', frames.INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "method": "x", "id": "%s"}' % (b"i" * 257), frames.INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "method": "x", "id": 1%s}' % (b"0" * 256), frames.INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "%s"}' % (b"m" * 201), frames.INVALID_REQUEST, 7),
    ],
)
def test_what_is_no_message_is_a_typed_error(frame: bytes, code: int, id: frames.Id) -> None:
    assert told(frame) == (code, id)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b'{"jsonrpc": "2.0", "method": "x", "id": 1}', frames.RpcRequest(1, "x")),
        (b' {"id": null, "method": "x", "jsonrpc": "2.0", "more": 1}\r', frames.RpcRequest(None, "x")),
        (b'{"jsonrpc": "2.0", "method": "x", "id": 0.5, "params": [1]}', frames.RpcRequest(0.5, "x", [1])),
        (b'{"jsonrpc": "2.0", "method": "", "id": ""}', frames.RpcRequest("", "")),
        (b'{"jsonrpc": "2.0", "method": "x", "id": -%s}' % (b"9" * 256), frames.RpcRequest(1 - 10**256, "x")),
        (b'{"jsonrpc": "2.0", "method": "x", "params": {"a": 1}}', frames.RpcNotification("x", {"a": 1})),
        (b'{"jsonrpc": "2.0", "method": "x", "params": null, "id": 7}', frames.RpcRequest(7, "x")),
        (b'{"jsonrpc": "2.0", "result": 1, "id": 3}', frames.RpcResponse(3, {"jsonrpc": "2.0", "result": 1, "id": 3})),
        (b'{"jsonrpc": "2.0", "error": {}, "id": 3}', frames.RpcResponse(3, {"jsonrpc": "2.0", "error": {}, "id": 3})),
        (b'[{"jsonrpc": "2.0", "method": "x"}]', frames.RpcBatch((frames.RpcNotification("x"),))),
    ],
)
def test_what_is_a_message_is_read_as_it_is(frame: bytes, message: frames.Message | frames.RpcBatch) -> None:
    assert frames.decode(frame) == message


def test_each_message_of_a_batch_is_judged_alone() -> None:
    found = frames.decode(b'[1, {"jsonrpc": "2.0", "method": "x", "id": 1}, []]')
    assert isinstance(found, frames.RpcBatch)
    assert [type(each) for each in found.messages] == [frames.InvalidMessage, frames.RpcRequest, frames.InvalidMessage]


@pytest.mark.parametrize("frame", [b" " * 201, b"[1, 2, 3, 4]"])
def test_what_is_over_a_limit_is_refused(frame: bytes) -> None:
    assert told(frame, SMALL) == (frames.INVALID_REQUEST, None)


@pytest.mark.parametrize(
    "frame",
    [b"[" * 400_000 + b"]" * 400_000, b'{"a":' * 100_000, b'{"id": ' + b"7" * 1_000_000 + b"}", b'["a","' * 2_000_000],
    ids=["lists", "objects", "digits", "strings"],
)
def test_what_was_made_to_be_slow_is_judged_at_once(frame: bytes) -> None:
    assert told(frame) == (frames.PARSE_ERROR, None)


@hypothesis.given(strategies.binary(max_size=60))
def test_for_any_bytes_nothing_raises(frame: bytes) -> None:
    frames.decode(frame, SMALL)


@hypothesis.given(ids, strategies.text(max_size=50), params)
def test_any_request_is_read_as_it_was_written(id: Any, method: str, given: Any) -> None:
    said = {"jsonrpc": "2.0", "id": id, "method": method, **({} if given is None else {"params": given})}
    assert frames.decode(json.dumps(said).encode()) == frames.RpcRequest(id, method, given)


@hypothesis.given(json_values)
def test_any_json_is_judged_and_an_error_about_it_can_be_told(value: Any) -> None:
    found = frames.decode(json.dumps(value).encode())
    if isinstance(found, frames.InvalidMessage):
        again = json.loads(frames.encode_error(found.id, found.error))
        assert again["id"] == found.id
        assert again["error"]["code"] in (frames.PARSE_ERROR, frames.INVALID_REQUEST)


@hypothesis.given(ids, json_values)
def test_any_answer_is_one_line_that_says_the_same(id: Any, result: Any) -> None:
    line = frames.encode_result(id, result)
    assert b"\n" not in line
    assert json.loads(line) == {"jsonrpc": "2.0", "id": id, "result": result}


def test_what_goes_out_has_its_form() -> None:
    assert frames.encode_result(1, None) == b'{"jsonrpc":"2.0","id":1,"result":null}'
    error = frames.RpcError(-1, "No.")
    assert frames.encode_error(None, error) == b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"No."}}'
    assert frames.encode_notification("event", {"a": 1}) == b'{"jsonrpc":"2.0","method":"event","params":{"a":1}}'
    assert frames.encode_batch([b"1", b"2"]) == b"[1,2]"


def test_an_error_of_holdfast_is_told_by_its_name() -> None:
    assert frames.convert_error(errors.RpcRefused(7, "No.", [1])) == frames.RpcError(7, "No.", [1])
    found = frames.convert_error(errors.NoSuchSession("x"))
    assert (found.code, found.data) == (frames.FAILED, {"type": "NoSuchSession"})
