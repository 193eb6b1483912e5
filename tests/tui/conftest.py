"""Fixtures of the full-screen tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.tui import TuiDriver, open_tui


@pytest.fixture
async def tui() -> AsyncIterator[TuiDriver]:
    async with open_tui() as driver:
        yield driver
