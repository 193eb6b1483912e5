"""Times for people."""

from __future__ import annotations

import datetime


def when(at: float) -> str:
    """Return the local date and minute of a Unix time; `@` and the number for a time that the calendar cannot show."""
    try:
        moment = datetime.datetime.fromtimestamp(at, datetime.UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"@{at:.0f}"
    return moment.strftime("%Y-%m-%d %H:%M")
