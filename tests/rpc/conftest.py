"""Errors in callbacks of the event loop or of a connection are only logged: here they fail the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_logged_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    loggers = ("asyncio", "holdfast.rpc.websocket_transport")
    assert [each.getMessage() for each in caplog.get_records("call") if each.name in loggers] == []
