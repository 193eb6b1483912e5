"""The types of AsyncSessionDB are those of every public method of SessionDB and its facets."""

from __future__ import annotations

from tests.support import async_stubs


def test_stub_is_up_to_date() -> None:
    assert async_stubs.PATH.read_text("utf-8") == async_stubs.generate(), "Run `python -m tests.support.async_stubs`."
