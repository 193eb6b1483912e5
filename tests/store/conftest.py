"""What tests of a store on a server share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import postgres
from tests.store import hosts


@pytest.fixture
def pair() -> Iterator[hosts.Pair]:
    both = hosts.Pair(postgres.fresh())
    yield both
    both.close()
