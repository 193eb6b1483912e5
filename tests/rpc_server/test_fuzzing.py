"""Random requests to the server; `make chaos` sends many more."""

from __future__ import annotations

import random

import pytest

from tests.support import rpc_server_fuzzing

COUNT = 150


@pytest.mark.parametrize("seed", range(2))
async def test_odd_parameters_get_typed_responses(seed: int) -> None:
    # The function asserts every response.
    await rpc_server_fuzzing.send_odd_parameters(random.Random(seed), COUNT)


@pytest.mark.parametrize("seed", range(2))
async def test_every_accepted_prompt_of_concurrent_requests_ends_once(seed: int) -> None:
    await rpc_server_fuzzing.send_concurrent_requests(random.Random(seed), COUNT)
