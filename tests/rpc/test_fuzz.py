"""Frames that are broken in any way: each is answered by a typed error or not at all, and nobody else notices.

`make chaos` tries many more, with a seed it prints.
"""

from __future__ import annotations

import random

import pytest

from holdfast.rpc import websocket_transport
from tests.support import rpc_fuzzing

SEED, COUNT = 7, 2_000


def test_a_peer_outlives_any_frame_and_what_it_worked_on_is_not_harmed() -> None:
    # Most of them were wrong enough to be told so.
    assert rpc_fuzzing.at_a_peer(random.Random(SEED), COUNT) > COUNT // 2


def test_lines_outlive_any_bytes() -> None:
    rpc_fuzzing.at_lines(random.Random(SEED), COUNT // 2)


@pytest.mark.parametrize("whole_head", [True, False])
def test_a_server_outlives_any_connection(whole_head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_transport, "CLOSE_SECONDS", 0.05)
    assert rpc_fuzzing.at_a_door(random.Random(SEED), COUNT // 50, whole_head) >= whole_head
