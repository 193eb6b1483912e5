"""Hints: a word to others that a conversation has changed, so that they look now and not when they would have.

A hint says where to look, never what is there. It may come late, twice or not at all, and anybody who is let into the
database may send one: whoever hears it looks into the store and believes only that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

# The longest id, route key or platform name that a hint carries.
MAX_NAME = 500

Kind = Literal["moved", "came", "freed", "arrived", "outgoing", "lost"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# More conversations than these at once are not named one by one.
MOST = 1_000

_TOLD: dict[str, Kind] = {
    "message_insert": "moved",
    "conversation_moves": "moved",
    "erase_conversation": "moved",
    "inbound_insert": "came",
    "lease_delete": "freed",
    "erase_leases": "freed",
}
"""The queries that change what somebody may wait for."""
_NAMED: dict[str, tuple[Kind, str]] = {
    "arrival_insert": ("arrived", "route"),
    "outgoing_insert": ("outgoing", "platform"),
}
"""Those that say themselves what is to be looked at."""


class Hint(NamedTuple):
    """`moved`: its log, head or view; `came`: something is in its inbox; `freed`: a lease of it.

    `arrived` is about a route and `outgoing` about a platform, which stand in the place of the conversation's id.
    `lost` is about everything: hints may have been missed.
    """

    kind: Kind
    conversation_id: str = ""

    def is_about(self, conversation_id: str) -> bool:
        return self.kind == "lost" or self.conversation_id == conversation_id


LOST = Hint("lost")


class Noted:
    """What there is to tell of one transaction, if it is committed."""

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}
        self.hints = set[Hint]()

    def locked(self, row: tuple[Any, ...]) -> None:
        """A conversation that was locked: its key and its id. One that was born here is known to nobody yet."""
        self._ids[row[0]] = row[1]

    def changed(self, query: str, values: dict[str, Any]) -> None:
        kind = _TOLD.get(query)
        if query in _NAMED:
            self.hints.add(Hint(_NAMED[query][0], values[_NAMED[query][1]]))
        elif kind is not None:
            id_ = self._ids.get(values["conversation" if "conversation" in values else "key"])
            if id_ is not None:
                self.hints.add(Hint(kind, id_))


def written(hints: Iterable[Hint], sender: str) -> list[str]:
    """As they are sent: by whom, of which kind, about what."""
    texts = [f"{sender} {hint.kind} {hint.conversation_id}" for hint in hints]
    return texts if len(texts) <= MOST else [f"{sender} lost "]


def read(text: str, own: str) -> Hint | None:
    """What was sent; nothing when it is our own, or not one of ours at all."""
    sender, _, rest = text.partition(" ")
    kind, space, id_ = rest.partition(" ")
    known = next((each for each in KINDS if each == kind), None)
    if known is None or not space or sender == own:
        return None
    if known == "lost":
        return LOST
    return Hint(known, id_) if id_.isprintable() and 0 < len(id_) <= MAX_NAME else None
