"""Brings the search index on to where the log is, and lets it forget what went.

The index never stops a write and is never waited for: who cannot bring it on leaves that to the next who searches,
who finds out by comparing. Texts are read and cut before the index is locked; under its lock, whatever was cut is
compared with the log once more, since a message may have been redacted meanwhile.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast import errors, types
from holdfast.store.driver import Driver, Row, Side, Tx
from holdfast.store.search import query_parser, tokens

logger = logging.getLogger("holdfast.store")

NAME = "search"
# So many messages are indexed at once, of so many bytes together; one that is longer, alone.
CHUNK = 1_000
ROOM = 2_000_000
# How many turns on each side lend a message their words.
NEAR = 2
# Conversations are compared by the thousand, and one by one where the sums differ.
SHIFT = 10

# Marks a message that is indexed without its text.
REDACTED = query_parser.tag("x", "redacted")

# What a healthy index never raises: it is made again.
DAMAGE = (
    errors.StoreCorrupt,
    errors.StoreBroken,
    errors.StoreRefused,
    errors.StoreUnusable,
    errors.StoreMoved,
    errors.SchemaTooNew,
)
# What passes, and is no reason to make it again.
HINDRANCE = (errors.StoreBusy, errors.StoreFull, errors.StoreUnreachable)

T = TypeVar("T")
Progress = Callable[[int, int], None]
_decode = msgspec.json.Decoder(types.Body).decode


class Behind(NamedTuple):
    """A conversation the index does not know to its end."""

    key: int
    last_seq: int
    forked_at: int
    owner: str
    upto: int | None


class Piece(NamedTuple):
    """A stretch of a log as the index is told of it, and how the log stood when it was cut."""

    key: int
    after: int
    upto: int
    messages: int
    redacted: int
    documents: list[query_parser.Document[Any]]


class Indexer:
    """The index of one store, beside it."""

    def __init__(self, store: Driver) -> None:
        self._log = store
        # An index that cuts and stems is given texts; another, words.
        self._speech: Any = query_parser if store.stems else tokens
        # Tables are not made again by whoever may not write there: he may not clear them either.
        unusable = () if store.stems else (errors.StoreUnusable,)
        self._hindrance = (*HINDRANCE, *unusable)
        self._damage = tuple(each for each in DAMAGE if each not in unusable)
        self._guard = threading.Lock()
        self._index: Side | None = None

    def close(self) -> None:
        if self._log.pid != os.getpid():
            return  # a thread of the parent may have held the guard at the fork
        with self._guard:
            if self._index is not None:
                self._index.close()
                self._index = None

    def forget(self, conversation: int, seq: int | None = None) -> None:
        """A message, or a whole conversation, is not found by its words any more; `purge` takes their bytes too.

        Never raises: what was removed is removed, and what the index owes it finds out when it is brought on.
        """
        try:
            if not self._begun():
                return
            if seq is None:
                self._opened().write("forget", partial(_forget, key=conversation))
            else:
                self._forget_one(self._opened(), conversation, seq)
        except self._hindrance as error:
            logger.info("The search index is told later of what was removed: %s", error)
        except errors.StoreError as error:
            logger.warning("The search index is thrown away: %s", error)
            self._let_go()

    def purge(self, files: bool = True) -> None:
        """The index knows nothing of what was deleted or redacted; with `files`, no byte of it is in its files."""
        if not self._begun():
            return
        try:
            index = self._opened()
            if not self._is_ours(index):
                self._throw_away()
                return
            self._forget_gone(index, self._compared(index)[0])
            self._forget_redacted(index)
            if files:
                index.write("forget", lambda tx: tx.run("index_merge"))
                index.scrub()
        except errors.StoreError as error:
            if not self._log.stems and isinstance(error, self._hindrance):
                raise  # tables can be cleared no sooner than they can be written
            logger.warning("The search index is thrown away: %s", error)
            self._throw_away()

    def facts(self) -> dict[str, Any]:
        if not self._begun():
            return {"exists": False, "behind": None, "complaints": []}
        try:
            index = self._opened()
            behind = sum(map(_missing, self._compared(index)[1]))
            return {"exists": True, "behind": behind, "complaints": index.complaints()}
        except errors.StoreError as error:
            return {"exists": True, "behind": None, "complaints": [str(error)]}

    # --- the index itself ----------------------------------------------------------------------------

    def _begun(self) -> bool:
        return self._index is not None or self._log.has_side(NAME)

    def _healing(self, work: Callable[[Side], T]) -> T:
        """Work on the index; one that is damaged is thrown away and made again, once."""
        try:
            return work(self._opened())
        except self._damage as error:
            logger.warning("The search index is made again: %s", error)
            self._throw_away()
            return work(self._opened())

    def _opened(self) -> Side:
        if self._log.pid != os.getpid():
            raise errors.StoreForked()
        with self._guard:
            if self._index is None:
                self._index = self._log.side(NAME)
            return self._index

    def _read_both(self, index: Side, step: Callable[[Tx, Tx], T]) -> T:
        """Run a step with a transaction of the index and one of the log, which are one where the index is tables."""
        if not self._log.stems:
            return index.read(lambda tx: step(tx, tx))
        return index.read(lambda tx: self._log.read(lambda log_tx: step(tx, log_tx)))

    def _throw_away(self) -> None:
        self.close()
        self._log.discard_side(NAME)

    def _let_go(self) -> None:
        try:
            self._throw_away()
        except errors.StoreError as error:
            logger.warning("The search index could not be thrown away: %s", error)

    def _generation(self) -> str:
        """Changes when all of the index has to be made again: keys may name other conversations then."""
        return self._log.read(_generation)

    def _is_ours(self, index: Side) -> bool:
        known, begun = index.read(lambda tx: (_noted(tx, "store"), tx.one("index_begun")))
        return known == self._generation() or (known is None and begun is None)

    def _ours(self, index: Side) -> Side:
        """The index, ready to be written; another one, when it was made of another store."""
        if index.read(lambda tx: tx.one("index_writable")) != (True,):
            raise errors.StoreUnusable(
                "The search index cannot be brought on here: the database takes no writes of ours."
            )
        if not self._is_ours(index):
            self._throw_away()
            index = self._opened()
        if index.read(lambda tx: _noted(tx, "store")) is None:
            generation = self._generation()
            index.write("state", lambda tx: tx.run("index_meta_set", key="store", value=generation))
        return index

    # --- bringing it on ------------------------------------------------------------------------------

    def _catch_up(self, index: Side, progress: Progress | None) -> int:
        state = self._log.read(_state)
        if index.read(lambda tx: _noted(tx, "state")) == state:
            return 0
        index = self._ours(index)
        gone, behind = self._compared(index)
        self._forget_gone(index, gone)
        self._forget_redacted(index)
        done = self._index_all(index, behind, progress)
        index.write("state", lambda tx: tx.run("index_meta_set", key="state", value=state))
        return done

    def _catch_up_some(self, index: Side, keys: list[int]) -> int:
        """Only these conversations: however large the store is, whoever searches one waits for one."""
        if self._read_both(index, partial(is_current, keys=keys)):
            return 0
        index = self._ours(index)
        self._forget_redacted(index)
        behind = [each for key in keys for each in self._between(index, key, key)[1]]
        return self._index_all(index, behind, None)

    def _compared(self, index: Side) -> tuple[list[int], list[Behind]]:
        """Conversations that the index knows and the log does not, and those that the index is behind of."""
        known = {row[0]: row[1:] for row in index.read(lambda tx: tx.all("index_thousands", shift=SHIFT))}
        there = {row[0]: row[1:] for row in self._log.read(lambda tx: tx.all("search_thousands", shift=SHIFT))}
        gone: list[int] = []
        behind: list[Behind] = []
        for each in sorted(key for key in known.keys() | there.keys() if known.get(key) != there.get(key)):
            some = self._between(index, each << SHIFT, ((each + 1) << SHIFT) - 1)
            gone += some[0]
            behind += some[1]
        return gone, behind

    def _between(self, index: Side, first: int, last: int) -> tuple[list[int], list[Behind]]:
        """Of the conversations with these keys, those that are gone, and those that the index is behind of.

        The index is looked at first: what it knows was there, and if the log does not have it then, it went. The
        other way round it may have come in between, and been indexed by somebody else.
        """
        upto: dict[int, int] = dict(index.read(lambda tx: tx.all("index_progress", first=first, last=last)))
        there = self._log.read(lambda tx: tx.all("search_conversations", first=first, last=last))
        gone = upto.keys() - {row[0] for row in there}
        every = (Behind(key, last, forked_at, owner, upto.get(key)) for key, last, forked_at, owner in there)
        return sorted(gone), [each for each in every if _missing(each) > 0]

    def _forget_gone(self, index: Side, gone: list[int]) -> None:
        for key in gone:
            index.write("forget", partial(_forget, key=key))

    def _forget_redacted(self, index: Side) -> None:
        """What nobody told the index of: a process died, or did not wait for it."""
        now = self._log.read(_redactions)
        if index.read(lambda tx: _noted(tx, "redactions")) == now:
            return
        told = set(index.read(lambda tx: tx.all("index_redacted", tag=REDACTED)))
        for key, seq in self._log.read(lambda tx: tx.all("search_redacted")):
            if (key, seq) not in told:
                self._forget_one(index, key, seq)
        index.write("state", lambda tx: tx.run("index_meta_set", key="redactions", value=now))

    def _index_all(self, index: Side, behind: list[Behind], progress: Progress | None) -> int:
        done, total = 0, sum(map(_missing, behind))
        for each in behind:
            for count in self._index_one(index, each):
                done += count
                if progress:
                    progress(done, total)
        return done

    def _index_one(self, index: Side, behind: Behind) -> Iterator[int]:
        while True:
            row = index.read(lambda tx: tx.one("index_progress_of", conversation=behind.key))
            begun = max(row[0] if row else behind.forked_at, behind.forked_at)
            piece = self._next(behind, begun) if begun < behind.last_seq else None
            if piece is None:
                return
            rows = list(self._speech.rows(piece.key, piece.documents, begun))
            if index.write("index", partial(self._put, piece=piece, rows=rows, known=row)):
                yield piece.upto - begun

    def _next(self, behind: Behind, begun: int) -> Piece | None:
        """From the last ones indexed on: those again, since their next neighbours are known only now."""
        stretch = {"conversation": behind.key, "after": begun, "upto": behind.last_seq, "limit": CHUNK, "room": ROOM}
        (upto,) = self._log.read(lambda tx: tx.one("export_reach", **stretch)) or (begun,)
        after = max(behind.forked_at, begun - 2 * NEAR)
        piece = self._cut(behind.key, behind.owner, after, upto)
        if piece is None:
            return None
        return piece._replace(documents=[each for each in piece.documents if each.seq > begun - NEAR])

    def _cut(self, key: int, owner: str, after: int, upto: int) -> Piece | None:
        """None when the conversation is gone."""
        stretch = self._log.read(lambda tx: tx.all("messages_between", conversation=key, after=after, upto=upto))
        if not stretch:
            return None
        documents = list(_documents(stretch, query_parser.tag("o", owner), self._speech.indexed))
        redacted = sum(not row[5] for row in stretch)
        return Piece(key, after, stretch[-1][0], len(stretch), redacted, documents)

    def _is_as_cut(self, piece: Piece) -> bool:
        given = {"conversation": piece.key, "after": piece.after, "upto": piece.upto}
        return self._log.read(lambda tx: tx.one("search_stretch", **given)) == (piece.messages, piece.redacted)

    def _put(self, tx: Tx, piece: Piece, rows: list[dict[str, Any]], known: Row | None) -> bool:
        """Whether it was: not when another was here first, or the log has changed."""
        if tx.one("index_progress_of", conversation=piece.key) != known or not self._is_as_cut(piece):
            return False
        for values in rows:
            tx.run("index_put", **values)
        tx.run("index_progress_set", conversation=piece.key, upto=piece.upto)
        return True

    # --- letting it forget ---------------------------------------------------------------------------

    def _forget_one(self, index: Side, key: int, seq: int) -> None:
        """Its neighbours are indexed with its words: they are indexed anew from what the log has now."""
        done = False
        while not done:
            row = index.read(lambda tx: tx.one("index_progress_of", conversation=key))
            here = self._log.read(lambda tx: tx.one("search_conversations", first=key, last=key))
            piece = self._cut(key, here[3], max(here[2], seq - 2 * NEAR - 1), seq + 2 * NEAR) if here else None
            if row is None or row[0] < seq or piece is None:
                return
            first, last = seq - NEAR, min(seq + NEAR, row[0])
            rows = list(self._speech.rows(key, [each for each in piece.documents if first <= each.seq <= last], 0))
            done = index.write("forget", partial(self._put_anew, piece=piece, rows=rows, known=row, first=first))

    def _put_anew(self, tx: Tx, piece: Piece, rows: list[dict[str, Any]], known: Row, first: int) -> bool:
        if tx.one("index_progress_of", conversation=piece.key) != known or not self._is_as_cut(piece):
            return False
        last = min(first + 2 * NEAR, known[0])
        tx.run("index_forget_between", conversation=piece.key, after=max(0, first - 1), upto=last)
        for values in rows:
            tx.run("index_put", **values)
        return True


def is_current(tx: Tx, log_tx: Tx, keys: list[int] | None) -> bool:
    """Whether the index has all of these conversations, or of all."""
    if keys is None:
        return _noted(tx, "state") == _state(log_tx)
    known = (_noted(tx, "store"), _noted(tx, "redactions"), _upto(tx, keys))
    return known == (_generation(log_tx), _redactions(log_tx), _ends(log_tx, keys))


def _state(tx: Tx) -> str:
    """Changes whenever the index has something to do."""
    return " ".join(map(str, (query_parser.CUT, *(tx.one("search_state") or ()))))


def _generation(tx: Tx) -> str:
    row = tx.one("meta_get", key="generation")
    return f"{query_parser.CUT}.{row[0] if row else None}"


def _redactions(tx: Tx) -> str:
    """All that was redacted, summed up."""
    return " ".join(map(str, tx.one("search_redactions") or ()))


def _noted(tx: Tx, key: str) -> str | None:
    row = tx.one("index_meta", key=key)
    return row[0] if row else None


def _upto(tx: Tx, keys: list[int]) -> dict[int, int]:
    """How far each is indexed."""
    return {key: upto for each in keys for key, upto in tx.all("index_progress", first=each, last=each)}


def _ends(tx: Tx, keys: list[int]) -> dict[int, int]:
    """How far each of them goes that has messages of its own."""
    rows = (row for key in keys for row in tx.all("search_conversations", first=key, last=key))
    return {key: last_seq for key, last_seq, forked_at, _ in rows if last_seq > forked_at}


def _missing(each: Behind) -> int:
    return each.last_seq - (each.forked_at if each.upto is None else each.upto)


def _forget(tx: Tx, *, key: int) -> None:
    tx.run("index_forget_between", conversation=key, after=0, upto=2**32 - 1)
    tx.run("index_forget_progress", conversation=key)


def _documents(rows: list[Row], owner: str, cut: Callable[[str], T]) -> Iterator[query_parser.Document[T]]:
    """What the index is told of each message: its words, its neighbours' words, and its tags."""
    decoded = [_decode(row[5]) if row[5] else types.Body() for row in rows]
    texts = [cut(query_parser.text_of(body)) for body in decoded]
    called: dict[str, str] = {}
    for at, (row, body) in enumerate(zip(rows, decoded, strict=True)):
        called.update({call.id: call.name for call in body.tool_calls})
        tools = {call.name for call in body.tool_calls} | {called.get(body.tool_call_id or "", "")} - {""}
        tags = [query_parser.tag("r", row[3]), *(query_parser.tag("t", tool) for tool in sorted(tools))]
        tags += [] if row[5] else [REDACTED]
        around = texts[max(0, at - NEAR) : at] + texts[at + 1 : at + 1 + NEAR]
        yield query_parser.Document(row[0], texts[at], around, tags, owner)
