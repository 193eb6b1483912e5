"""Stores with a conversation that is long enough to compact."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast import AsyncSessionDB
from tests.support import agents, conversations
from tests.support.compaction import fill


@pytest.fixture
async def talk(db: AsyncSessionDB) -> AsyncSessionDB:
    """A store with the conversation `talk`."""
    await fill(db)
    return db


@pytest.fixture
async def still_talk() -> AsyncIterator[AsyncSessionDB]:
    """The same with a clock that stands still, so that no lease expires by itself."""
    async with agents.store(clock=conversations.Clock()) as db:
        await fill(db)
        yield db
