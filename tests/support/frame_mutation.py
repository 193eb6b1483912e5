"""Frames with something wrong in them: a seed gives the same ones again."""

from __future__ import annotations

import json
import random

from tests.support.rpc_peers import notification, request

SOUND = [
    json.dumps(each).encode()
    for each in (
        request(1, "echo", ["a", {"b": [1.5, None, True]}]),
        request("x", "echo", {"text": 'Grüße, 世界 \U0001f600 \\ " \n'}),
        request(None, "echo", []),
        request(10**40, "nothing"),
        request(2, "refuse", {"a": [[[[]]]]}),
        request(3, "miss"),
        request(4, "count", [3]),
        notification("echo", {"a": 1}),
        notification("$/cancelRequest", {"id": 1}),
        [request(5, "echo"), notification("echo"), request(6, "refuse")],
        {"jsonrpc": "2.0", "id": 7, "result": {}},
    )
]
BYTES = [
    b"\x00",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\\ud800",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"1e999",
]


def mutated(chance: random.Random) -> bytes:
    """One of the sound ones, changed in a few places."""
    frame = chance.choice(SOUND)
    for _ in range(chance.randint(1, 4)):
        frame = _changed(chance, frame)
    return frame


def _changed(chance: random.Random, frame: bytes) -> bytes:
    start, end = sorted(chance.choices(range(len(frame) + 1), k=2))
    match chance.randrange(7):
        case 0:
            return frame[:start] + bytes([chance.randrange(256)]) + frame[start + 1 :]
        case 1:
            return frame[:start] + frame[end:]
        case 2:
            return frame[:end] + frame[start:]
        case 3:
            return frame[:start] + chance.choice(BYTES) * chance.choice([1, 1, 2, 70]) + frame[start:]
        case 4:
            return frame[:start]
        case 5:
            return frame[:start] + chance.choice(SOUND)[start:]
        case _:
            return b"[" + frame + b"," + chance.choice(SOUND) + b"]"
