"""What tests of tools share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import processes as leashes


@pytest.fixture
def leash() -> Iterator[leashes.Leash]:
    """A test that has this fails when a process it started is still running at its end."""
    with leashes.leashed() as found:
        yield found
