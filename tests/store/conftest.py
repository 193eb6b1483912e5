"""What tests of a store on a server share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import postgres, two_hosts


@pytest.fixture
def pair() -> Iterator[two_hosts.Pair]:
    both = two_hosts.Pair(postgres.fresh())
    yield both
    both.close()
