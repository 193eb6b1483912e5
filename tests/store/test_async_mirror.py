"""AsyncSessionDB has every public method of SessionDB and its facets, with the same arguments and with types."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator

import pytest

from holdfast import AsyncSessionDB, SessionDB
from tests.support import async_stubs, facets


def test_stub_is_up_to_date() -> None:
    assert async_stubs.PATH.read_text("utf-8") == async_stubs.generate(), "Run `python -m tests.support.async_stubs`."


@pytest.mark.parametrize("call", sorted(facets.calls() - {"close"}))
def test_mirrored_method_is_a_coroutine_function_with_the_same_parameters(db: AsyncSessionDB, call: str) -> None:
    mirrored = operator.attrgetter(call)(db)
    assert inspect.iscoroutinefunction(mirrored)
    assert inspect.signature(inspect.unwrap(mirrored)) == inspect.signature(inspect.unwrap(facets.method(call)))


@pytest.fixture
def db() -> Iterator[AsyncSessionDB]:
    """Never awaited, so it needs no event loop."""
    with SessionDB(":memory:") as store:
        yield AsyncSessionDB(store)
