"""Configuration of all tests: the profiles of the property tests, and the PostgreSQL of this run.

With `HOLDFAST_TEST_PROFILE=chaos`, every property test searches for new examples, and for longer. An ordinary run
takes seconds and always tries the same ones.
"""

from __future__ import annotations

import gc
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest

from holdfast import AsyncSessionDB
from tests.support import agents, postgres, processes

_COMMON = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
}

hypothesis.settings.register_profile("quick", derandomize=True, max_examples=60, stateful_step_count=30, **_COMMON)
hypothesis.settings.register_profile("chaos", max_examples=3000, stateful_step_count=80, print_blob=True, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HOLDFAST_TEST_PROFILE", "quick"))

pytest.register_assert_rewrite("tests.support.platform_contract")

MEMORY = "/dev/shm"
ENOUGH = 2 << 30  # bytes; a container may have next to none


def pytest_configure(config: pytest.Config) -> None:
    _reset_signals()
    _keep_files_in_memory()
    postgres.begin_run()


def pytest_collection_finish() -> None:
    """Exclude the collected tests, which stay until the end, from garbage collection."""
    gc.collect()
    gc.freeze()


def _reset_signals() -> None:
    """Restore signals that are ignored under nohup or behind a shell's `&`: programs started by tests inherit them."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


def _keep_files_in_memory() -> None:
    """Put temporary files in memory, so that tests do not wait for the disk; PYTEST_DEBUG_TEMPROOT overrides it."""
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


@pytest.fixture
def role() -> Iterator[str]:
    """The name of a new PostgreSQL role without privileges."""
    name, admin = f"r{secrets.token_hex(6)}", postgres.admin()
    admin.execute(f"CREATE ROLE {name} LOGIN")
    yield name
    admin.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def leash() -> Iterator[processes.Leash]:
    """Fail the test if a process that it started is still running at its end."""
    with processes.leashed() as found:
        yield found
