"""What was read already in a conversation and has not changed since: it need not be said again.

A model that reads a file twice is told where it has it. If it asks once more, it gets the text: perhaps it cannot see
what it was told to look at. All is forgotten when the view of the conversation changes, since what was read may not
be in it any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST = 500

Key = tuple[str, str, int, int]
"""The conversation, the real path, the first line and how many."""


class Reads:
    """What one agent has read. `epoch` gives anything that differs when the view of the conversation has changed."""

    def __init__(self, epoch: Callable[[], object] = lambda: None) -> None:
        self._epoch = epoch
        self._at: object = None
        self._known: OrderedDict[Key, tuple[object, str]] = OrderedDict()

    def before(self, key: Key, seen: object) -> str | None:
        """The call that has read just this; None where none did, or where its answer was referred to just now."""
        self._settle()
        known = self._known.pop(key, None)
        return known[1] if known is not None and known[0] == seen else None

    def note(self, key: Key, seen: object, call_id: str) -> None:
        """It is about to be told, in answer to this call."""
        self._settle()
        self._known[key] = (seen, call_id)
        while len(self._known) > MOST:
            self._known.popitem(last=False)

    def forget(self, path: str) -> None:
        """The file was changed."""
        for key in [key for key in self._known if key[1] == path]:
            del self._known[key]

    def _settle(self) -> None:
        now = self._epoch()
        if now != self._at:
            self._known.clear()
            self._at = now
