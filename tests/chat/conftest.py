"""Fixtures of the chat tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.support.chat import ChatDriver, open_chat


@pytest.fixture
async def chat() -> AsyncIterator[ChatDriver]:
    async with open_chat() as driver:
        yield driver
