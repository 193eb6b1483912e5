"""Random requests to the server; `make chaos` sends many more."""

from __future__ import annotations

import random

import pytest

from tests.support import rpc_server_fuzzing

COUNT = 150


@pytest.mark.parametrize("seed", range(3))
async def test_responses_are_typed_and_every_accepted_prompt_ends_once(seed: int) -> None:
    await rpc_server_fuzzing.send_concurrent_requests(random.Random(seed), COUNT)
