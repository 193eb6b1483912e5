"""The recovered rows of a damaged store, grouped by table and conversation.

Of several versions of a row, the newest is kept: counters only grow, and ends and redactions are final. Messages are
verified later, by their digests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from holdfast import types
from holdfast.salvage import page_reader

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
_KNOWN_ONLY = {"tombstones": "tn", "meta": "tt", "memories": "_ttnnI"}
_WITH_ROWID = {"messages", "conversations", "compactions"}
# How many columns a row of an older version may lack where it is recognised by its types.
_LATER = {"conversations": 3}


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
        self.conversations: dict[int, tuple[Any, ...]] = {}
        self.messages: dict[int, dict[int, list[FoundMessage]]] = defaultdict(lambda: defaultdict(list))
        self.sessions: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self.compactions: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self.hides: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        self.routes: dict[str, tuple[Any, ...]] = {}
        self.blobs: dict[str, str] = {}
        self.tombstones: dict[str, float] = {}
        self.names: dict[int, set[str]] = defaultdict(set)
        self.unrecognised: dict[str, int] = defaultdict(int)
        self.generation = 0
        self._memory_rows: dict[int, tuple[Any, ...]] = {}

    def gather(self, rows: Iterable[page_reader.Row]) -> None:
        for row in rows:
            kind = _kind(row)
            if kind is not None:
                shape = _SHAPES.get(kind, "")
                getattr(self, f"_{kind}")(row.rowid, _fit(row.values, shape) if shape else row.values)
            elif row.table in _SHAPES:
                self.unrecognised[row.table] += 1

    def memories(self) -> list[types.Memory]:
        """Return the valid memories, oldest first."""
        found = []
        for rowid, (_, owner, text, at, updated_at, source) in sorted(self._memory_rows.items()):
            learnt = self.conversations.get(source)
            if 0 < len(text) <= 500 and text.isprintable() and (owner.isprintable() and len(owner) <= 200):
                memory = types.Memory(id=rowid, owner=owner, text=text, at=float(at), updated_at=float(updated_at))
                found.append(msgspec.structs.replace(memory, source=learnt[1] if learnt else None))
        return found

    def known(self) -> list[int]:
        """Return the keys of all conversations of which any row was found, in the order of their creation."""
        return sorted(set(self.conversations) | set(self.messages) | set(self.sessions) | set(self.names))

    def _messages(self, rowid: int, values: tuple[Any, ...]) -> None:
        _, _, uid, role, at, body, digest, redacted_at = values
        if role in types.ROLES and rowid > 0:
            found = FoundMessage(uid, role, float(at), body, digest, redacted_at)
            self.messages[rowid >> 32][rowid & 0xFFFFFFFF].append(found)

    def _conversations(self, rowid: int, values: tuple[Any, ...]) -> None:
        known = self.conversations.get(rowid)
        if known is None or (values[8], values[9]) > (known[8], known[9]):
            self.conversations[rowid] = values
        self.names[rowid].add(values[1])

    def _sessions(self, _: int | None, values: tuple[Any, ...]) -> None:
        key, ordinal, *_rest = values
        known = self.sessions[key].get(ordinal)
        if known is None or values[8] is not None:
            self.sessions[key][ordinal] = values
        if ordinal == 1:
            self.names[key].add(values[2])

    def _compactions(self, _: int | None, values: tuple[Any, ...]) -> None:
        known = self.compactions[values[0]].get(values[1])
        if known is None or values[9] is not None:
            self.compactions[values[0]][values[1]] = values

    def _hides(self, _: int | None, values: tuple[Any, ...]) -> None:
        self.hides[values[0]].append(values[1:])

    def _routes(self, _: int | None, values: tuple[Any, ...]) -> None:
        key, _, version, _ = values
        if key not in self.routes or version > self.routes[key][2]:
            self.routes[key] = values

    def _blobs(self, _: int | None, values: tuple[Any, ...]) -> None:
        self.blobs[values[0]] = values[2]

    def _tombstones(self, _: int | None, values: tuple[Any, ...]) -> None:
        self.tombstones[values[0]] = float(values[1])

    def _memories(self, rowid: int, values: tuple[Any, ...]) -> None:
        known = self._memory_rows.get(rowid)
        if known is None or values[4] >= known[4]:
            self._memory_rows[rowid] = values

    def _meta(self, _: int | None, values: tuple[Any, ...]) -> None:
        if values[0] == "generation" and values[1].isascii() and values[1].isdigit():
            self.generation = max(self.generation, int(values[1]))

    def _name(self, _: int | None, values: tuple[Any, ...]) -> None:
        if 0 < values[1] < 2**31:
            self.names[values[1]].add(values[0])


def _fit(values: tuple[Any, ...], shape: str, most: int = 9) -> tuple[Any, ...]:
    """Fit a row to the columns of this version: add NULL for later columns, and drop those of newer versions."""
    missing = len(shape) - len(values)
    return values[: len(shape)] + (None,) * missing if -most <= missing <= most else ()


def _kind(row: page_reader.Row) -> str | None:
    if row.table in _SHAPES or row.table in _KNOWN_ONLY:
        shape = _SHAPES.get(row.table) or _KNOWN_ONLY[row.table]
        return row.table if page_reader.fits(_fit(row.values, shape), shape) else None
    if row.table is not None and not row.table.startswith("index of "):
        return None
    for kind, shape in _SHAPES.items() if row.table is None else ():
        if page_reader.fits(_fit(row.values, shape, _LATER.get(kind, 1)), shape) and (row.rowid is not None) == (
            kind in _WITH_ROWID
        ):
            return kind
    named = row.table in (None, "index of conversations") and page_reader.fits(row.values, "ti")
    first = row.table in (None, "index of sessions") and page_reader.fits(row.values, "tii") and row.values[2] == 1
    return "name" if row.rowid is None and (named or first) else None


def is_verifiable(row: page_reader.Row) -> bool:
    """Tell whether a row can be verified by itself: a message can, by its digest."""
    return _kind(row) == "messages"
