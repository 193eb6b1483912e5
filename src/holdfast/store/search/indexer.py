"""Keep the search index up to date with the log.

Writers never wait for the index. A process that cannot update it leaves that to the next search, which compares index
and log. Texts are read and tokenized before the index is locked; under the lock they are compared with the log again,
since a message may have been redacted in the meantime.
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
from holdfast.store.driver import Driver, Row, SearchIndex, Tx
from holdfast.store.search import query_parser, tokens

logger = logging.getLogger("holdfast.store")

# Limits of one batch: messages, and bytes together. A longer message is a batch of its own.
CHUNK = 1_000
ROOM = 2_000_000
# Number of messages on each side whose words count for a message.
NEAR = 2
# Conversations are compared in groups of 1,024 by their sums, and one by one where the sums differ.
SHIFT = 10

# The tag of messages that are indexed without text.
REDACTED = query_parser.tag("x", "redacted")

# Errors that a healthy index never raises. The index is rebuilt.
DAMAGE = (
    errors.StoreCorrupt,
    errors.StoreBroken,
    errors.StoreRefused,
    errors.StoreUnusable,
    errors.StoreMoved,
    errors.SchemaTooNew,
)
# Errors that are no reason to rebuild the index.
TRANSIENT = (errors.StoreBusy, errors.StoreFull, errors.StoreUnreachable)

T = TypeVar("T")
Progress = Callable[[int, int], None]
_decode = msgspec.json.Decoder(types.Body).decode


class Backlog(NamedTuple):
    """A conversation with messages that are not indexed."""

    key: int
    last_seq: int
    forked_at: int
    owner: str
    upto: int | None


class Batch(NamedTuple):
    """Messages to be indexed, and the number of messages and redactions in the log when they were read."""

    key: int
    after: int
    upto: int
    messages: int
    redacted: int
    documents: list[query_parser.Document[Any]]


class Indexer:
    """Updates the index of one store."""

    def __init__(self, store: Driver) -> None:
        self._log = store
        # FTS5 tokenizes texts itself; the tables on PostgreSQL take words.
        self._dialect: Any = query_parser if store.has_tokenizer else tokens
        # A role that may not write to the tables on PostgreSQL cannot rebuild them either.
        unusable = () if store.has_tokenizer else (errors.StoreUnusable,)
        self._transient = (*TRANSIENT, *unusable)
        self._damage = tuple(each for each in DAMAGE if each not in unusable)
        self._lock = threading.Lock()
        self._index: SearchIndex | None = None

    def close(self) -> None:
        if self._log.pid != os.getpid():
            return  # a thread of the parent process may have held the lock at the fork
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None

    def forget(self, conversation: int, seq: int | None = None) -> None:
        """Remove a message or a conversation from the index; `purge` removes its bytes from the files too.

        Never raises: a later update removes what is left.
        """
        try:
            if not self._exists():
                return
            if seq is None:
                self._open().write("forget", partial(_forget, key=conversation))
            else:
                self._forget_one(self._open(), conversation, seq)
        except self._transient as error:
            logger.info("The next search removes deleted messages from the index: %s", error)
        except errors.StoreError as error:
            logger.warning("Discarding the search index: %s", error)
            try:
                self._discard()
            except errors.StoreError as failure:
                logger.warning("Could not discard the search index: %s", failure)

    def purge(self, files: bool = True) -> None:
        """Remove deleted and redacted messages from the index; with `files`, also their bytes from its files."""
        if not self._exists():
            return
        try:
            index = self._open()
            if not self._belongs_to_store(index):
                self._discard()
                return
            self._forget_gone(index, self._compare(index)[0])
            self._forget_redacted(index)
            if files:
                index.write("forget", lambda tx: tx.run("index_merge"))
                index.scrub()
        except errors.StoreError as error:
            if not self._log.has_tokenizer and isinstance(error, self._transient):
                raise  # discarding means writing to the same tables
            logger.warning("Discarding the search index: %s", error)
            self._discard()

    def facts(self) -> dict[str, Any]:
        if not self._exists():
            return {"exists": False, "behind": None, "errors": []}
        try:
            index = self._open()
            backlog = sum(map(_missing_count, self._compare(index)[1]))
            return {"exists": True, "behind": backlog, "errors": index.integrity_errors()}
        except errors.StoreError as error:
            return {"exists": True, "behind": None, "errors": [str(error)]}

    # --- the index itself ----------------------------------------------------------------------------

    def _exists(self) -> bool:
        return self._index is not None or self._log.has_search_index()

    def _with_repair(self, work: Callable[[SearchIndex], T]) -> T:
        """Run a step on the index. If the index is damaged, discard it and run the step once more."""
        try:
            return work(self._open())
        except self._damage as error:
            logger.warning("Rebuilding the search index: %s", error)
            self._discard()
            return work(self._open())

    def _open(self) -> SearchIndex:
        if self._log.pid != os.getpid():
            raise errors.StoreForked()
        with self._lock:
            if self._index is None:
                self._index = self._log.open_search_index()
            return self._index

    def _read_both(self, index: SearchIndex, step: Callable[[Tx, Tx], T]) -> T:
        """Run a step with a transaction on the index and one on the log; on PostgreSQL they are the same."""
        if not self._log.has_tokenizer:
            return index.read(lambda tx: step(tx, tx))
        return index.read(lambda tx: self._log.read(lambda log_tx: step(tx, log_tx)))

    def _discard(self) -> None:
        self.close()
        self._log.drop_search_index()

    def _belongs_to_store(self, index: SearchIndex) -> bool:
        known, progress = index.read(lambda tx: (_meta(tx, "store"), tx.one("index_begun")))
        return known == self._log.read(_generation) or (known is None and progress is None)

    def _prepare(self, index: SearchIndex) -> SearchIndex:
        """Return the index ready for writing; discard it first if it was built from another store."""
        if index.read(lambda tx: tx.one("index_writable")) != (True,):
            raise errors.StoreUnusable(
                "The search index cannot be updated: the database or this role does not permit writes."
            )
        if not self._belongs_to_store(index):
            self._discard()
            index = self._open()
        if index.read(lambda tx: _meta(tx, "store")) is None:
            generation = self._log.read(_generation)
            index.write("state", lambda tx: tx.run("index_meta_set", key="store", value=generation))
        return index

    # --- updating ------------------------------------------------------------------------------------

    def _catch_up(self, index: SearchIndex, progress: Progress | None) -> int:
        state = self._log.read(_log_state)
        if index.read(lambda tx: _meta(tx, "state")) == state:
            return 0
        index = self._prepare(index)
        gone, backlog = self._compare(index)
        self._forget_gone(index, gone)
        self._forget_redacted(index)
        done = self._index_all(index, backlog, progress)
        index.write("state", lambda tx: tx.run("index_meta_set", key="state", value=state))
        return done

    def _catch_up_some(self, index: SearchIndex, keys: list[int]) -> int:
        """Update these conversations only, so that searching one conversation does not wait for the others."""
        if self._read_both(index, partial(is_current, keys=keys)):
            return 0
        index = self._prepare(index)
        self._forget_redacted(index)
        backlog = [each for key in keys for each in self._compare_range(index, key, key)[1]]
        return self._index_all(index, backlog, None)

    def _compare(self, index: SearchIndex) -> tuple[list[int], list[Backlog]]:
        """Return the keys of deleted conversations in the index, and the conversations with unindexed messages."""
        known = {row[0]: row[1:] for row in index.read(lambda tx: tx.all("index_thousands", shift=SHIFT))}
        there = {row[0]: row[1:] for row in self._log.read(lambda tx: tx.all("search_thousands", shift=SHIFT))}
        gone: list[int] = []
        backlog: list[Backlog] = []
        for each in sorted(key for key in known.keys() | there.keys() if known.get(key) != there.get(key)):
            some = self._compare_range(index, each << SHIFT, ((each + 1) << SHIFT) - 1)
            gone += some[0]
            backlog += some[1]
        return gone, backlog

    def _compare_range(self, index: SearchIndex, first: int, last: int) -> tuple[list[int], list[Backlog]]:
        """Do the same for a range of keys.

        Reads the index before the log: a conversation that only the index has was deleted. In the other order another
        process may have created and indexed it between the two reads.
        """
        upto: dict[int, int] = dict(index.read(lambda tx: tx.all("index_progress", first=first, last=last)))
        there = self._log.read(lambda tx: tx.all("search_conversations", first=first, last=last))
        gone = upto.keys() - {row[0] for row in there}
        every = (Backlog(key, last, forked_at, owner, upto.get(key)) for key, last, forked_at, owner in there)
        return sorted(gone), [each for each in every if _missing_count(each) > 0]

    def _forget_gone(self, index: SearchIndex, gone: list[int]) -> None:
        for key in gone:
            index.write("forget", partial(_forget, key=key))

    def _forget_redacted(self, index: SearchIndex) -> None:
        """Remove redacted messages that a process did not remove because it died or the index was locked."""
        now = self._log.read(_redactions)
        if index.read(lambda tx: _meta(tx, "redactions")) == now:
            return
        known = set(index.read(lambda tx: tx.all("index_redacted", tag=REDACTED)))
        for key, seq in self._log.read(lambda tx: tx.all("search_redacted")):
            if (key, seq) not in known:
                self._forget_one(index, key, seq)
        index.write("state", lambda tx: tx.run("index_meta_set", key="redactions", value=now))

    def _index_all(self, index: SearchIndex, backlog: list[Backlog], progress: Progress | None) -> int:
        done, total = 0, sum(map(_missing_count, backlog))
        for each in backlog:
            for count in self._index_one(index, each):
                done += count
                if progress:
                    progress(done, total)
        return done

    def _index_one(self, index: SearchIndex, backlog: Backlog) -> Iterator[int]:
        while True:
            row = index.read(lambda tx: tx.one("index_progress_of", conversation=backlog.key))
            start = max(row[0] if row else backlog.forked_at, backlog.forked_at)
            batch = self._next_batch(backlog, start) if start < backlog.last_seq else None
            if batch is None:
                return
            rows = list(self._dialect.index_rows(batch.key, batch.documents, start))
            if index.write("index", partial(self._put, batch=batch, rows=rows, known=row)):
                yield batch.upto - start

    def _next_batch(self, backlog: Backlog, start: int) -> Batch | None:
        """Return the next messages to index, and the last indexed ones again, which have new neighbours now."""
        limits = {"conversation": backlog.key, "after": start, "upto": backlog.last_seq, "limit": CHUNK, "room": ROOM}
        (upto,) = self._log.read(lambda tx: tx.one("export_reach", **limits)) or (start,)
        after = max(backlog.forked_at, start - 2 * NEAR)
        batch = self._read_batch(backlog.key, backlog.owner, after, upto)
        if batch is None:
            return None
        return batch._replace(documents=[each for each in batch.documents if each.seq > start - NEAR])

    def _read_batch(self, key: int, owner: str, after: int, upto: int) -> Batch | None:
        """Read and tokenize messages; None if the conversation was deleted."""
        messages = self._log.read(lambda tx: tx.all("messages_between", conversation=key, after=after, upto=upto))
        if not messages:
            return None
        documents = list(_documents(messages, query_parser.tag("o", owner), self._dialect.index_text))
        redacted = sum(not row[5] for row in messages)
        return Batch(key, after, messages[-1][0], len(messages), redacted, documents)

    def _is_unchanged(self, batch: Batch) -> bool:
        given = {"conversation": batch.key, "after": batch.after, "upto": batch.upto}
        return self._log.read(lambda tx: tx.one("search_stretch", **given)) == (batch.messages, batch.redacted)

    def _put(
        self, tx: Tx, batch: Batch, rows: list[dict[str, Any]], known: Row | None, replaced: Row | None = None
    ) -> bool:
        """Write a batch after the indexed messages, or in place of some (first seq, last seq).

        Returns False if another process updated the index, or the log changed, since the batch was read.
        """
        if tx.one("index_progress_of", conversation=batch.key) != known or not self._is_unchanged(batch):
            return False
        if replaced:
            tx.run("index_forget_between", conversation=batch.key, after=max(0, replaced[0] - 1), upto=replaced[1])
        for values in rows:
            tx.run("index_put", **values)
        if not replaced:
            tx.run("index_progress_set", conversation=batch.key, upto=batch.upto)
        return True

    def _forget_one(self, index: SearchIndex, key: int, seq: int) -> None:
        """Index a redacted message and its neighbours again; the neighbours are indexed with its words."""
        done = False
        while not done:
            row = index.read(lambda tx: tx.one("index_progress_of", conversation=key))
            here = self._log.read(lambda tx: tx.one("search_conversations", first=key, last=key))
            batch = self._read_batch(key, here[3], max(here[2], seq - 2 * NEAR - 1), seq + 2 * NEAR) if here else None
            if row is None or row[0] < seq or batch is None:
                return
            first, last = seq - NEAR, min(seq + NEAR, row[0])
            documents = [each for each in batch.documents if first <= each.seq <= last]
            rows = list(self._dialect.index_rows(key, documents, 0))
            replaced = (first, last)
            done = index.write("forget", partial(self._put, batch=batch, rows=rows, known=row, replaced=replaced))


def is_current(tx: Tx, log_tx: Tx, keys: list[int] | None) -> bool:
    """Return whether the index has all messages of these conversations (None: of the store)."""
    if keys is None:
        return _meta(tx, "state") == _log_state(log_tx)
    known = (_meta(tx, "store"), _meta(tx, "redactions"), _indexed_ends(tx, keys))
    return known == (_generation(log_tx), _redactions(log_tx), _log_ends(log_tx, keys))


def _log_state(tx: Tx) -> str:
    """Return a text that changes whenever the index must be updated."""
    return " ".join(map(str, (query_parser.INDEX_VERSION, *(tx.one("search_state") or ()))))


def _generation(tx: Tx) -> str:
    """Return a text that changes when the index must be rebuilt, because keys may name other conversations."""
    row = tx.one("meta_get", key="generation")
    return f"{query_parser.INDEX_VERSION}.{row[0] if row else None}"


def _redactions(tx: Tx) -> str:
    """Return a text that changes with every redaction."""
    return " ".join(map(str, tx.one("search_redactions") or ()))


def _meta(tx: Tx, key: str) -> str | None:
    row = tx.one("index_meta", key=key)
    return row[0] if row else None


def _indexed_ends(tx: Tx, keys: list[int]) -> dict[int, int]:
    """Return the last indexed seq of each conversation."""
    return {key: upto for each in keys for key, upto in tx.all("index_progress", first=each, last=each)}


def _log_ends(tx: Tx, keys: list[int]) -> dict[int, int]:
    """Return the last seq of each conversation that has messages of its own."""
    rows = (row for key in keys for row in tx.all("search_conversations", first=key, last=key))
    return {key: last_seq for key, last_seq, forked_at, _ in rows if last_seq > forked_at}


def _missing_count(each: Backlog) -> int:
    return each.last_seq - (each.forked_at if each.upto is None else each.upto)


def _forget(tx: Tx, *, key: int) -> None:
    tx.run("index_forget_between", conversation=key, after=0, upto=2**32 - 1)
    tx.run("index_forget_progress", conversation=key)


def _documents(rows: list[Row], owner: str, tokenize: Callable[[str], T]) -> Iterator[query_parser.Document[T]]:
    """Return each message as it is indexed: its words, its neighbours' words, and its tags."""
    decoded = [_decode(row[5]) if row[5] else types.Body() for row in rows]
    texts = [tokenize(query_parser.text_of(body)) for body in decoded]
    called: dict[str, str] = {}
    for at, (row, body) in enumerate(zip(rows, decoded, strict=True)):
        called.update({call.id: call.name for call in body.tool_calls})
        tools = {call.name for call in body.tool_calls} | {called.get(body.tool_call_id or "", "")} - {""}
        tags = [query_parser.tag("r", row[3]), *(query_parser.tag("t", tool) for tool in sorted(tools))]
        tags += [] if row[5] else [REDACTED]
        around = texts[max(0, at - NEAR) : at] + texts[at + 1 : at + 1 + NEAR]
        yield query_parser.Document(row[0], texts[at], around, tags, owner)
