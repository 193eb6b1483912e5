"""What goes wrong in a callback of the loop raises nowhere: here it fails the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _the_loop_has_nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert [each.getMessage() for each in caplog.get_records("call") if each.name == "asyncio"] == []
