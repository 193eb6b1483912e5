"""Fixtures of the gateway tests."""

from __future__ import annotations

import pytest

from holdfast.gateway import notices, outbox, router


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the router, the outbox and notices poll and retry after some milliseconds."""
    monkeypatch.setattr(router, "MIN_PAUSE", 0.01)
    monkeypatch.setattr(router, "MAX_PAUSE", 0.01)
    monkeypatch.setattr(router, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(outbox, "MIN_RETRY", 0.01)
    monkeypatch.setattr(outbox, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(notices, "RETRY_SECONDS", 0.02)
