"""Random frames and connections: each gets a typed error or no response; `make chaos` tries many more."""

from __future__ import annotations

import random

import pytest

from holdfast.rpc import websocket_transport
from tests.support import rpc_fuzzing

SEED, COUNT = 7, 1_000


async def test_peer_survives_any_bytes_and_a_running_request_is_not_affected() -> None:
    # Most frames are wrong enough to get an error.
    assert await rpc_fuzzing.send_lines(random.Random(SEED), COUNT) > COUNT // 2


@pytest.mark.parametrize("valid_head", [True, False])
async def test_websocket_server_survives_any_connection(valid_head: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_transport, "CLOSE_SECONDS", 0.05)
    assert await rpc_fuzzing.open_connections(random.Random(SEED), COUNT // 25, valid_head) >= valid_head
