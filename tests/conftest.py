"""What all tests share: how thorough the property tests are, and the PostgreSQL of this run.

`HOLDFAST_TEST_PROFILE=chaos` lets every property test look for new examples and for far longer than the
few seconds it has in an ordinary run, which always tries the same ones.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest

from holdfast import AsyncSessionDB
from tests.support import agents, postgres

_COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
}

hypothesis.settings.register_profile("quick", derandomize=True, max_examples=60, stateful_step_count=30, **_COMMON)
hypothesis.settings.register_profile("chaos", max_examples=3000, stateful_step_count=80, print_blob=True, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HOLDFAST_TEST_PROFILE", "quick"))


MEMORY = "/dev/shm"
ENOUGH = 2 << 30  # bytes; a container may have next to none


def pytest_configure(config: pytest.Config) -> None:
    _heed_signals()
    _keep_files_in_memory()
    postgres.begin_run()


def pytest_collection_finish() -> None:
    """The tests themselves stay until the end: no collection need go through them again."""
    gc.collect()
    gc.freeze()


def _heed_signals() -> None:
    """What runs under nohup, or behind a shell's `&`, ignores some, and so would every program it starts."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


def _keep_files_in_memory() -> None:
    """What a test writes outlives no power cut, so it need not wait for the disk; PYTEST_DEBUG_TEMPROOT says where."""
    if os.access(MEMORY, os.W_OK):
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize >= ENOUGH:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    yield
    postgres.give_back()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def db() -> AsyncIterator[AsyncSessionDB]:
    """An empty store in memory, checked after the test."""
    async with agents.store() as opened:
        yield opened
