"""Hints that another process changed a conversation, so that readers look now instead of at their next poll.

A hint says where to look, never what changed. It may be late, duplicated, lost or forged by any client of the
database: readers look into the store and trust only that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, get_args

# The longest id, route key or platform name in a hint, in characters.
MAX_NAME_CHARACTERS = 500
# A transaction that changes more conversations sends a single `lost`.
MAX_HINTS = 1_000

HintKind = Literal["moved", "came", "freed", "arrived", "outgoing", "lost"]
HINT_KINDS: tuple[HintKind, ...] = get_args(HintKind)

# Queries that change a conversation, and the kind of hint they cause.
_BY_CONVERSATION: dict[str, HintKind] = {
    "message_insert": "moved",
    "conversation_update": "moved",
    "erase_conversation": "moved",
    "inbox_insert": "came",
    "lease_delete": "freed",
    "erase_leases": "freed",
}
# Queries whose hint is about one of their parameters.
_BY_PARAMETER: dict[str, tuple[HintKind, str]] = {
    "arrival_insert": ("arrived", "route"),
    "lease_release": ("freed", "conversation_id"),
    "post_insert": ("outgoing", "platform"),
    "reply_insert": ("outgoing", "platform"),
}


class Hint(NamedTuple):
    """`moved`: the log, head or view changed; `came`: the inbox has a new message; `freed`: a lease was released.

    `arrived` names a route and `outgoing` a platform instead of a conversation. `lost` means that hints may have been
    missed.
    """

    kind: HintKind
    conversation_id: str = ""

    def is_about(self, conversation_id: str) -> bool:
        return self.kind == "lost" or self.conversation_id == conversation_id


LOST = Hint("lost")


class HintRecorder:
    """Collects the hints of one transaction, to be sent after its commit, and the range it appends to each log."""

    def __init__(self) -> None:
        self._ids: dict[int, str] = {}
        self.hints = set[Hint]()
        self.appended: dict[str, tuple[int, int]] = {}
        """The first and last appended seq, by conversation."""

    def record_lock(self, row: tuple[Any, ...]) -> None:
        """Remember the id of a locked conversation. One created in this transaction has no readers yet."""
        self._ids[row[0]] = row[1]

    def record_change(self, query: str, values: dict[str, Any]) -> None:
        kind = _BY_CONVERSATION.get(query)
        if query in _BY_PARAMETER:
            self.hints.add(Hint(_BY_PARAMETER[query][0], values[_BY_PARAMETER[query][1]]))
        elif kind is not None:
            id_ = self._ids.get(values["conversation" if "conversation" in values else "key"])
            if id_ is not None:
                self.hints.add(Hint(kind, id_))
                if query == "message_insert":
                    first, _ = self.appended.get(id_, (values["seq"], 0))
                    self.appended[id_] = (first, values["seq"])


def encode(hints: Iterable[Hint], sender: str) -> list[str]:
    """Return the NOTIFY payloads: sender, kind, name."""
    payloads = [f"{sender} {hint.kind} {hint.conversation_id}" for hint in hints]
    return payloads if len(payloads) <= MAX_HINTS else [f"{sender} lost "]


def decode(payload: str, own_sender: str) -> Hint | None:
    """Return the hint of a payload, or None for the driver's own and for malformed ones."""
    sender, _, rest = payload.partition(" ")
    kind, space, id_ = rest.partition(" ")
    known = next((each for each in HINT_KINDS if each == kind), None)
    if known is None or not space or sender == own_sender:
        return None
    if known == "lost":
        return LOST
    return Hint(known, id_) if id_.isprintable() and 0 < len(id_) <= MAX_NAME_CHARACTERS else None
