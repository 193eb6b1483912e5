"""Times as people read them."""

from __future__ import annotations

import datetime


def when(at: float) -> str:
    """The day and the minute, on this machine's clock; what no clock shows is given as its number."""
    try:
        moment = datetime.datetime.fromtimestamp(at, datetime.UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"@{at:.0f}"
    return moment.strftime("%Y-%m-%d %H:%M")
