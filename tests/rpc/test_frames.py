"""Frames: every frame is a message or a typed error, and encoded messages can be decoded."""

from __future__ import annotations

import json
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from holdfast.rpc import frames

SMALL = frames.FrameLimits(max_bytes=200, max_running=3)
RESULT, ERROR = {"jsonrpc": "2.0", "result": 1, "id": 3}, {"jsonrpc": "2.0", "error": {}, "id": 3}

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


def decode_error(frame: bytes, limits: frames.FrameLimits = frames.DEFAULT_LIMITS) -> tuple[int, frames.Id]:
    found = frames.decode(frame, limits)
    assert isinstance(found, frames.InvalidMessage), found
    return found.error.code, found.id


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"{",
        b'\xef\xbb\xbf{"jsonrpc": "2.0", "method": "x"}',
        b'{"jsonrpc": "2.0", "method": "\xff"}',
        b'{"jsonrpc": "2.0", "method": "\\ud800"}',
        b'{"jsonrpc": "2.0", "method": "x", "id": 1e999}',
        b"[" * 400_000 + b"]" * 400_000,
        b'{"id": ' + b"7" * 1_000_000 + b"}",
        b'["a","' * 2_000_000,
    ],
    ids=lambda frame: frame[:50].decode("ascii", "replace"),
)
def test_invalid_json_is_a_parse_error(frame: bytes) -> None:
    assert decode_error(frame) == (frames.PARSE_ERROR, None)


@pytest.mark.parametrize(
    ("frame", "id"),
    [
        (b"[]", None),
        (b'{"jsonrpc": "2.0"}', None),
        (b'{"jsonrpc": "1.0", "method": "x", "id": 7}', 7),
        (b'{"jsonrpc": "2.0", "method": 1, "id": 7}', 7),
        (b'{"jsonrpc": "2.0", "method": "x", "params": "bar", "id": 7}', 7),
        (b'{"jsonrpc": "2.0", "method": "x", "id": true}', None),
        (b'{"jsonrpc": "2.0", "method": "x", "id": [1]}', None),
        (b'{"jsonrpc": "2.0", "method": "x", "id": "%s"}' % (b"i" * 257), None),
        (b'{"jsonrpc": "2.0", "method": "x", "id": 1%s}' % (b"0" * 256), None),
        (b'{"jsonrpc": "2.0", "id": 7, "method": "%s"}' % (b"m" * 201), 7),
    ],
)
def test_json_that_is_no_message_is_an_invalid_request(frame: bytes, id: frames.Id) -> None:
    assert decode_error(frame) == (frames.INVALID_REQUEST, id)


@pytest.mark.parametrize("frame", [b" " * 201, b"[1, 2, 3, 4]"], ids=["bytes", "messages of a batch"])
def test_frame_over_a_limit_is_refused(frame: bytes) -> None:
    assert decode_error(frame, SMALL) == (frames.INVALID_REQUEST, None)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b' {"id": null, "method": "x", "jsonrpc": "2.0", "more": 1}\r', frames.RpcRequest(None, "x")),
        (b'{"jsonrpc": "2.0", "method": "x", "id": 0.5, "params": [1]}', frames.RpcRequest(0.5, "x", [1])),
        (b'{"jsonrpc": "2.0", "method": "x", "id": -%s}' % (b"9" * 256), frames.RpcRequest(1 - 10**256, "x")),
        (b'{"jsonrpc": "2.0", "method": "x", "params": {"a": 1}}', frames.RpcNotification("x", {"a": 1})),
        (b'{"jsonrpc": "2.0", "method": "x", "params": null, "id": 7}', frames.RpcRequest(7, "x")),
        (json.dumps(RESULT).encode(), frames.RpcResponse(3, RESULT)),
        (json.dumps(ERROR).encode(), frames.RpcResponse(3, ERROR)),
        (b'[{"jsonrpc": "2.0", "method": "x"}]', frames.RpcBatch((frames.RpcNotification("x"),))),
    ],
)
def test_message_is_decoded(frame: bytes, message: frames.Message | frames.RpcBatch) -> None:
    assert frames.decode(frame) == message


@hypothesis.given(strategies.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_decoded_to_messages_or_an_error_with_their_id(frame: bytes) -> None:
    found = frames.decode(frame, SMALL)
    if isinstance(found, frames.InvalidMessage):
        again = json.loads(frames.encode_error(found.id, found.error))
        assert again["id"] == found.id
        assert again["error"]["code"] in (frames.PARSE_ERROR, frames.INVALID_REQUEST)


@hypothesis.given(ids, strategies.text(max_size=50), params)
def test_any_request_is_decoded_as_it_was_encoded(id: Any, method: str, given: Any) -> None:
    request = {"jsonrpc": "2.0", "id": id, "method": method, **({} if given is None else {"params": given})}
    assert frames.decode(json.dumps(request).encode()) == frames.RpcRequest(id, method, given)


@hypothesis.given(ids, json_values)
def test_any_result_is_encoded_in_one_line(id: Any, result: Any) -> None:
    line = frames.encode_result(id, result)
    assert b"\n" not in line
    assert json.loads(line) == {"jsonrpc": "2.0", "id": id, "result": result}
