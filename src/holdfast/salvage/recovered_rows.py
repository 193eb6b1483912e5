"""The recovered rows of a damaged store, grouped by table and conversation.

Of several versions of a row, the newest is kept: counters only grow, and ends and redactions are final. Messages are
verified later, by their digests.
"""

from __future__ import annotations

from collections import defaultdict, namedtuple
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast import types
from holdfast.salvage import page_reader

# The types of the columns of each table: i, n (number), t, b; capital: or NULL; _ NULL only.
_SHAPES = {
    "messages": "_ittntbN",
    "conversations": "_tttTniIiiiIITIIIITT",
    "compactions": "iiIiiiItnNB",
    "sessions": "iitIItTnNTiI",
    "hides": "iiiiI",
    "routes": "tIin",
    "blobs": "titnN",
}
# These have too few columns to be recognised by their types.
_SHORT_SHAPES = {"tombstones": "tn", "meta": "tt", "memories": "_ttnnI"}
_WITH_ROWID = {"messages", "conversations", "compactions"}
# How many columns a row of an older version may lack where it is recognised by its types.
_LATER_COLUMNS = {"conversations": 3}
_TYPES: dict[str, tuple[type, ...]] = {"i": (int,), "n": (int, float), "t": (str,), "b": (bytes,), "_": ()}

ConversationValues = namedtuple(
    "ConversationValues",
    "key id owner source title created_at head live epoch last_seq fence compaction_epoch redo_epoch forked_from "
    "forked_at forked_epoch origin active_slot folder metadata",
)
SessionValues = namedtuple(
    "SessionValues",
    "conversation ordinal id parent live source model started_at ended_at end_reason first_seq last_seq",
)
CompactionValues = namedtuple(
    "CompactionValues", "conversation epoch base_epoch session cut_seq seen_seq token body at redacted_at digest"
)
HideValues = namedtuple("HideValues", "conversation epoch from_seq to_seq shown_epoch")
RouteValues = namedtuple("RouteValues", "key conversation version updated_at")
MemoryValues = namedtuple("MemoryValues", "id owner text at updated_at source")

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class FoundMessage(NamedTuple):
    """A message as found in the file, not verified."""

    uid: str
    role: types.Role
    at: float
    body: str
    digest: bytes
    redacted_at: float | None


class RecoveredRows:
    """Rows by table, and by the key of their conversation."""

    def __init__(self) -> None:
        self.conversations: dict[int, ConversationValues] = {}
        self.messages: dict[int, dict[int, list[FoundMessage]]] = defaultdict(lambda: defaultdict(list))
        self.sessions: dict[int, dict[int, SessionValues]] = defaultdict(dict)
        self.compactions: dict[int, dict[int, CompactionValues]] = defaultdict(dict)
        self.hides: dict[int, list[HideValues]] = defaultdict(list)
        self.routes: dict[str, RouteValues] = {}
        self.media_types: dict[str, str] = {}
        self.tombstones: dict[str, float] = {}
        self.ids: dict[int, set[str]] = defaultdict(set)
        self.unrecognised = 0
        self.generation = 0
        self._memories: dict[int, MemoryValues] = {}

    def gather(self, rows: Iterable[page_reader.RecoveredRow]) -> None:
        # Rows that their table leads to come last, because of two equally new versions the later one is kept.
        for row in sorted(rows, key=lambda row: row.table is not None):
            found = _recognise(row)
            if found is not None:
                self._add_to_conversation(found[0], row.rowid or 0, found[1])
            elif row.table in _SHAPES:
                self.unrecognised += 1

    def _add_to_conversation(self, table: str, rowid: int, values: tuple[Any, ...]) -> None:
        match table:
            case "messages":
                _, _, uid, role, at, body, digest, redacted_at = values
                if role in types.ROLES and rowid > 0:
                    message = FoundMessage(uid, role, float(at), body, digest, redacted_at)
                    self.messages[rowid >> 32][rowid & 0xFFFFFFFF].append(message)
            case "conversations":
                conversation = ConversationValues(*values)
                _keep_newest(self.conversations, rowid, conversation, lambda row: (row.epoch, row.last_seq))
                self.ids[rowid].add(conversation.id)
            case "sessions":
                session = SessionValues(*values)
                of_conversation = self.sessions[session.conversation]
                _keep_newest(of_conversation, session.ordinal, session, lambda row: row.ended_at is not None)
                if session.ordinal == 1:
                    self.ids[session.conversation].add(session.id)
            case "compactions":
                made = CompactionValues(*values)
                _keep_newest(
                    self.compactions[made.conversation], made.epoch, made, lambda row: row.redacted_at is not None
                )
            case "hides":
                self.hides[values[0]].append(HideValues(*values))
            case "ids":
                if 0 < values[1] < 2**31:
                    self.ids[values[1]].add(values[0])
            case _:
                self._add_to_store(table, rowid, values)

    def _add_to_store(self, table: str, rowid: int, values: tuple[Any, ...]) -> None:
        match table:
            case "routes":
                _keep_newest(self.routes, values[0], RouteValues(*values), lambda row: row.version)
            case "blobs":
                self.media_types[values[0]] = values[2]
            case "tombstones":
                self.tombstones[values[0]] = float(values[1])
            case "memories":
                _keep_newest(self._memories, rowid, MemoryValues(*values), lambda row: row.updated_at)
            case "meta":
                if values[0] == "generation" and values[1].isascii() and values[1].isdigit():
                    self.generation = max(self.generation, int(values[1]))

    def memories(self) -> Iterator[types.Memory]:
        """Yield the valid memories, oldest first."""
        for rowid, row in sorted(self._memories.items()):
            is_text = 0 < len(row.text) <= 500 and row.text.isprintable()
            if is_text and len(row.owner) <= 200 and row.owner.isprintable():
                source = self.conversations.get(row.source)
                values = {**row._asdict(), "id": rowid, "source": source.id if source else None}
                yield msgspec.convert(values, types.Memory)

    def conversation_keys(self) -> list[int]:
        """Return the keys of all conversations of which any row was found, in the order of their creation."""
        return sorted(set(self.conversations) | set(self.messages) | set(self.sessions) | set(self.ids))


def _keep_newest(rows: dict[K, V], key: K, row: V, version: Callable[[V], Any]) -> None:
    if key not in rows or version(row) >= version(rows[key]):
        rows[key] = row


def _recognise(row: page_reader.RecoveredRow) -> tuple[str, tuple[Any, ...]] | None:
    """Return the table of a row, and its values fitted to the columns of this version.

    Entries of the indexes on ids belong to the table "ids".
    """
    shape = _SHAPES.get(row.table or "") or _SHORT_SHAPES.get(row.table or "")
    if row.table is not None and shape:
        values = _fit(row.values, shape, 9)
        return (row.table, values) if _has_types(values, shape) else None
    for table, shape in _SHAPES.items() if row.table is None else ():
        values = _fit(row.values, shape, _LATER_COLUMNS.get(table, 1))
        if _has_types(values, shape) and (row.rowid is not None) == (table in _WITH_ROWID):
            return table, values
    named = row.table in (None, "index of conversations") and _has_types(row.values, "ti")
    first = row.table in (None, "index of sessions") and _has_types(row.values, "tii") and row.values[2] == 1
    return ("ids", row.values) if row.rowid is None and (named or first) else None


def _fit(values: tuple[Any, ...], shape: str, most: int) -> tuple[Any, ...]:
    """Add NULL for later columns, and drop those of newer versions; return () if more than `most` differ."""
    missing = len(shape) - len(values)
    return values[: len(shape)] + (None,) * missing if -most <= missing <= most else ()


def _has_types(values: Sequence[page_reader.Value], shape: str) -> bool:
    return len(values) == len(shape) and all(
        not letter.islower() if value is None else isinstance(value, _TYPES[letter.lower()])
        for value, letter in zip(values, shape, strict=True)
    )


def is_message(row: page_reader.RecoveredRow) -> bool:
    found = _recognise(row)
    return found is not None and found[0] == "messages"
