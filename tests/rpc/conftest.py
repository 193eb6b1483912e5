"""What goes wrong in a callback of the loop, or of a connection, raises nowhere: here it fails the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _the_loop_has_nothing_to_complain_of(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    from_there = [
        each for each in caplog.get_records("call") if each.name in ("asyncio", "holdfast.rpc.websocket_transport")
    ]
    assert [each.getMessage() for each in from_there] == []
