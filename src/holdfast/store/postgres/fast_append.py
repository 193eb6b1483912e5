"""Where logs ended when this process saw them last.

A guess, and nothing rests on it: a message's digest covers its number, so whoever wants to write one with a
single question to the database has to guess the number before it knows it. A wrong guess costs a second question.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

MOST = 4096
# Where others write too, the next numbers are made ready for as well.
SPREAD = 16
LONG = 4096


class Place(NamedTuple):
    """Where the next message goes: the conversation and its head, by their numbers and by their ids."""

    key: int
    head: int
    conversation_id: str
    head_id: str


class Tip(NamedTuple):
    """The last number of a conversation's log, and how many of the next ones may be somebody else's."""

    place: Place
    last_seq: int
    spread: int = 1

    def digests(self, body: str) -> int:
        """For how many numbers digests are worth being made: one takes longer, the longer the text is."""
        return self.spread if len(body) < LONG else 1


class Tips:
    """By any session id that was written to."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._known: dict[str, Tip] = {}

    def get(self, session_id: str) -> Tip | None:
        return self._known.get(session_id)

    def follow(self, session_ids: Iterable[str], head: int, head_id: str) -> None:
        """The conversation of these has a new head, and as many messages as before."""
        with self._guard:
            for session_id in session_ids:
                if tip := self._known.get(session_id):
                    self._known[session_id] = tip._replace(place=tip.place._replace(head=head, head_id=head_id))

    def note(self, session_id: str, place: Place, last_seq: int, messages: int = 1) -> None:
        """After so many messages of our own, the last of which has that number."""
        known = self._known.get(session_id)
        # A number was skipped: others write here as well. Once they have stopped, that is forgotten again.
        skipped = known is not None and last_seq != known.last_seq + messages
        spread = SPREAD if skipped else max(1, known.spread - 1) if known else 1
        with self._guard:
            if known is None and len(self._known) >= MOST:
                self._known.pop(next(iter(self._known)))
            self._known[session_id] = Tip(place, last_seq, spread)
