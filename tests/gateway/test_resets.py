"""When a chat begins anew by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from holdfast.gateway import routes, settings

HOUR = 3600.0


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A place whose clocks are changed twice a year."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


def test_without_a_policy_a_chat_never_begins_anew() -> None:
    assert not routes.is_reset_due(settings.ResetPolicy(), 0.0, 1e10)


@pytest.mark.parametrize(
    ("hours", "silent", "due"), [(1, 0.99, False), (1, 1, True), (24, 23.9, False), (0.5, 1, True)]
)
def test_after_so_many_hours_without_a_word_it_does(hours: float, silent: float, due: bool) -> None:
    assert routes.is_reset_due(settings.ResetPolicy("idle", hours=hours), 1e9, 1e9 + silent * HOUR) is due


@pytest.mark.parametrize(
    ("last", "now", "due"),
    [
        ("2026-05-01 03:59", "2026-05-01 04:00", True),
        ("2026-05-01 04:00", "2026-05-01 23:59", False),
        ("2026-05-01 23:00", "2026-05-02 03:59", False),
        ("2026-05-01 23:00", "2026-05-02 04:01", True),
        ("2026-04-01 12:00", "2026-05-02 03:00", True),
        ("2026-03-28 05:00", "2026-03-29 03:30", False),  # the night with 23 hours
        ("2026-03-28 05:00", "2026-03-29 04:00", True),
        ("2026-10-24 05:00", "2026-10-25 03:59", False),  # the one with 25
        ("2026-10-24 05:00", "2026-10-25 04:00", True),
        ("2026-12-31 12:00", "2027-01-01 04:00", True),
    ],
)
def test_at_an_hour_of_the_day_it_does(last: str, now: str, due: bool) -> None:
    assert routes.is_reset_due(settings.ResetPolicy("daily", hour=4), at(last), at(now)) is due


def test_a_clock_that_went_back_begins_nothing_anew() -> None:
    for when in ("idle", "daily"):
        assert not routes.is_reset_due(settings.ResetPolicy(when), at("2026-05-02 05:00"), at("2026-05-01 05:00"))  # type: ignore[arg-type]
