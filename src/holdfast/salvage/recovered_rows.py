"""What is left of a store: rows that were carved out of its file, by what they are. Pure.

Of several rows for one thing the newest is the true one: counters only grow, and ends and redactions are
final. Whether a message is what was written is for others to see.
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
# Too plain to be told by their shape alone.
_KNOWN_ONLY = {"tombstones": "tn", "meta": "tt", "memories": "_ttnnI"}
_WITH_ROWID = {"messages", "conversations", "compactions"}
# How many columns rows of older versions may lack, where nothing but their shape tells what they are.
_LATER = {"conversations": 3}


class Found(NamedTuple):
    """A message as it lies in the file."""

    uid: str
    role: types.Role
    at: float
    body: str
    digest: bytes
    redacted_at: float | None


class Remains:
    """Rows by what they are, keyed by the inner key of their conversation."""

    def __init__(self) -> None:
        self.conversations: dict[int, tuple[Any, ...]] = {}
        self.messages: dict[int, dict[int, list[Found]]] = defaultdict(lambda: defaultdict(list))
        self.sessions: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self.compactions: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self.hides: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        self.routes: dict[str, tuple[Any, ...]] = {}
        self.blobs: dict[str, str] = {}
        self.tombstones: dict[str, float] = {}
        self.names: dict[int, set[str]] = defaultdict(set)
        self.strange: dict[str, int] = defaultdict(int)
        self.generation = 0
        self._remembered: dict[int, tuple[Any, ...]] = {}

    def gather(self, rows: Iterable[page_reader.Row]) -> None:
        for row in rows:
            kind = _kind(row)
            if kind is not None:
                shape = _SHAPES.get(kind, "")
                getattr(self, f"_{kind}")(row.rowid, _fitted(row.values, shape) if shape else row.values)
            elif row.table in _SHAPES:
                self.strange[row.table] += 1

    def memories(self) -> list[types.Memory]:
        """What was remembered, oldest first, as far as it is what a memory may be."""
        found = []
        for rowid, (_, owner, text, at, updated_at, source) in sorted(self._remembered.items()):
            learnt = self.conversations.get(source)
            if 0 < len(text) <= 500 and text.isprintable() and (owner.isprintable() and len(owner) <= 200):
                memory = types.Memory(id=rowid, owner=owner, text=text, at=float(at), updated_at=float(updated_at))
                found.append(msgspec.structs.replace(memory, source=learnt[1] if learnt else None))
        return found

    def known(self) -> list[int]:
        """Every conversation there is a trace of, in the order they were made."""
        return sorted(set(self.conversations) | set(self.messages) | set(self.sessions) | set(self.names))

    def _messages(self, rowid: int, values: tuple[Any, ...]) -> None:
        _, _, uid, role, at, body, digest, redacted_at = values
        if role in types.ROLES and rowid > 0:
            found = Found(uid, role, float(at), body, digest, redacted_at)
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
        known = self._remembered.get(rowid)
        if known is None or values[4] >= known[4]:
            self._remembered[rowid] = values

    def _meta(self, _: int | None, values: tuple[Any, ...]) -> None:
        if values[0] == "generation" and values[1].isascii() and values[1].isdigit():
            self.generation = max(self.generation, int(values[1]))

    def _name(self, _: int | None, values: tuple[Any, ...]) -> None:
        if 0 < values[1] < 2**31:
            self.names[values[1]].add(values[0])


def _fitted(values: tuple[Any, ...], shape: str, most: int = 9) -> tuple[Any, ...]:
    """Columns that were added later are not in older rows, and those of newer versions are not for us."""
    missing = len(shape) - len(values)
    return values[: len(shape)] + (None,) * missing if -most <= missing <= most else ()


def _kind(row: page_reader.Row) -> str | None:
    if row.table in _SHAPES or row.table in _KNOWN_ONLY:
        shape = _SHAPES.get(row.table) or _KNOWN_ONLY[row.table]
        return row.table if page_reader.fits(_fitted(row.values, shape), shape) else None
    if row.table is not None and not row.table.startswith("index of "):
        return None
    for kind, shape in _SHAPES.items() if row.table is None else ():
        if page_reader.fits(_fitted(row.values, shape, _LATER.get(kind, 1)), shape) and (row.rowid is not None) == (
            kind in _WITH_ROWID
        ):
            return kind
    named = row.table in (None, "index of conversations") and page_reader.fits(row.values, "ti")
    first = row.table in (None, "index of sessions") and page_reader.fits(row.values, "tii") and row.values[2] == 1
    return "name" if row.rowid is None and (named or first) else None


def proves_itself(row: page_reader.Row) -> bool:
    """Whether a row of unknown standing can be told true from false: a message can, by its digest."""
    return _kind(row) == "messages"
