"""AsyncSessionDB has every public method of SessionDB and its facets, with the same arguments and with types."""

from __future__ import annotations

import inspect

import pytest

from holdfast import AsyncSessionDB, SessionDB
from holdfast.store import async_mirror
from tests import async_stubs


def test_stub_is_up_to_date() -> None:
    assert async_stubs.PATH.read_text("utf-8") == async_stubs.generate(), "Run `python -m tests.async_stubs`."


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_every_public_method_of_the_store_is_mirrored() -> None:
    inside = {"append_step", "abandon_lease", "warn_once"}
    assert public(SessionDB) - inside == public(AsyncSessionDB) - {"run", "share"}


@pytest.mark.parametrize("name", sorted(public(async_mirror.AsyncSessionBase)))
def test_mirrored_method_is_a_coroutine_function_with_the_same_parameters(name: str) -> None:
    mirrored = getattr(AsyncSessionDB, name)
    assert inspect.iscoroutinefunction(mirrored)
    assert inspect.signature(mirrored) == inspect.signature(getattr(SessionDB, name))
