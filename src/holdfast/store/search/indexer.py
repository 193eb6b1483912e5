"""Keep the search index up to date with the log.

Writers never wait for the index. A process that cannot update it leaves that to the next search, which compares index
and log. Texts are read and tokenized before the index is locked; under the lock they are compared with the log again,
since a message may have been redacted in the meantime.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast import errors, types
from holdfast.store.driver import Driver, Progress, Row, SearchIndex, Tx
from holdfast.store.search import fts5_index, postgres_index, query_parser

logger = logging.getLogger("holdfast.store")

# A longer message is a batch of its own.
MAX_BATCH_MESSAGES = 1_000
MAX_BATCH_BYTES = 2_000_000
# Number of messages on each side whose words count for a message.
NEIGHBOURS = 2

# The tag of messages that are indexed without text.
REDACTED_TAG = query_parser.tag("x", "redacted")

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
_decode = msgspec.json.Decoder(types.Body).decode


class IndexBacklog(NamedTuple):
    """A conversation with messages that are not indexed; `upto` is the last indexed one."""

    key: int
    last_seq: int
    forked_at: int
    owner: str
    upto: int | None

    @property
    def size(self) -> int:
        return self.last_seq - (self.forked_at if self.upto is None else self.upto)


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
        self._dialect: Any = fts5_index if store.has_tokenizer else postgres_index
        # A role that may not write to the tables on PostgreSQL cannot rebuild them either.
        unusable = () if store.has_tokenizer else (errors.StoreUnusable,)
        self._transient = (*TRANSIENT, *unusable)
        self._damage = tuple(each for each in DAMAGE if each not in unusable)
        self._lock = threading.Lock()
        self._index: SearchIndex | None = None
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._release()

    def _release(self) -> None:
        """Close the index; unless the store is closed, the next call opens it again."""
        if self._log.pid != os.getpid():
            return  # a thread of the parent process may have held the lock at the fork
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None

    def remove(self, conversation: int) -> None:
        """Remove a conversation from the index; `purge` removes its bytes from the files too.

        The next search indexes it again, if it still exists. Never raises: a later update removes what is left.
        """
        try:
            if self._exists():
                _forget(self._open(), [conversation])
        except self._transient as error:
            logger.info("The next search removes deleted messages from the index: %s", error)
        except errors.StoreError as error:
            logger.warning("Discarding the search index: %s", error)
            try:
                self.discard()
            except errors.StoreError as failure:
                logger.warning("Could not discard the search index: %s", failure)

    def purge(self, files: bool = True) -> None:
        """Remove deleted and redacted messages from the index; with `files`, also their bytes from its files."""
        # The tables on PostgreSQL keep the bytes of deleted rows, even if the index is empty now.
        if not self._exists() and (self._log.has_tokenizer or not files):
            return
        try:
            index = self._open()
            if not self._belongs_to_store(index):
                self.discard()
                return
            self._forget_redacted(index)
            _forget(index, self._compare(index)[0])
            if files:
                index.write("forget", lambda tx: tx.run("index_merge"))
                index.scrub()
        except errors.StoreError as error:
            if not self._log.has_tokenizer and isinstance(error, self._transient):
                raise  # discarding means writing to the same tables
            logger.warning("Discarding the search index: %s", error)
            self.discard()

    def info(self) -> dict[str, Any]:
        if not self._exists():
            return {"exists": False, "behind": None, "errors": []}
        try:
            index = self._open()
            backlog = sum(each.size for each in self._compare(index)[1])
            return {"exists": True, "behind": backlog, "errors": index.integrity_errors()}
        except errors.StoreError as error:
            return {"exists": True, "behind": None, "errors": [str(error)]}

    # --- the index itself ----------------------------------------------------------------------------

    def _exists(self) -> bool:
        return self._index is not None or self._log.has_search_index()

    def _with_repair(self, work: Callable[[SearchIndex], T]) -> T:
        """Run a step on the index, once more if it is damaged, or if another thread discarded it meanwhile."""
        try:
            return work(self._open())
        except errors.StoreClosed:
            pass  # If the store itself is closed, the next line raises the same error.
        except self._damage as error:
            logger.warning("Rebuilding the search index: %s", error)
            self.discard()
        return work(self._open())

    def _open(self) -> SearchIndex:
        if self._log.pid != os.getpid():
            raise errors.StoreForked()
        with self._lock:
            if self._is_closed:
                raise errors.StoreClosed()
            if self._index is None:
                self._index = self._log.open_search_index()
            return self._index

    def _read_both(self, index: SearchIndex, step: Callable[[Tx, Tx], T]) -> T:
        """Run a step with a transaction on the index and one on the log; on PostgreSQL they are the same."""
        if not self._log.has_tokenizer:
            return index.read(lambda tx: step(tx, tx))
        return index.read(lambda tx: self._log.read(lambda log_tx: step(tx, log_tx)))

    def discard(self) -> None:
        self._release()
        self._log.drop_search_index()

    def _belongs_to_store(self, index: SearchIndex) -> bool:
        known, progress = index.read(lambda tx: (_read_meta(tx, "store"), tx.one("index_begun")))
        return known == self._log.read(_generation) or (known is None and progress is None)

    def _prepare(self, index: SearchIndex) -> SearchIndex:
        """Return the index ready for writing; discard it first if it was built from another store."""
        if index.read(lambda tx: tx.one("index_writable")) != (True,):
            raise errors.StoreUnusable(
                "The search index cannot be updated: the database or this role does not permit writes."
            )
        if not self._belongs_to_store(index):
            self.discard()
            index = self._open()
        if index.read(lambda tx: _read_meta(tx, "store")) is None:
            generation = self._log.read(_generation)
            index.write("state", lambda tx: tx.run("index_meta_set", key="store", value=generation))
        return index

    # --- updating ------------------------------------------------------------------------------------

    def _catch_up(self, index: SearchIndex, progress: Progress | None) -> int:
        known, state = self._read_both(index, lambda tx, log_tx: (_read_meta(tx, "state"), _log_state(log_tx)))
        if known == state:
            return 0
        index = self._prepare(index)
        self._forget_redacted(index)
        deleted, backlog = self._compare(index)
        _forget(index, deleted)
        done = self._index_all(index, backlog, progress)
        index.write("state", lambda tx: tx.run("index_meta_set", key="state", value=state))
        return done

    def _compare(self, index: SearchIndex) -> tuple[list[int], list[IndexBacklog]]:
        """Return the keys of deleted conversations in the index, and the conversations with unindexed messages.

        Read the index before the log: then a conversation that only the index has was deleted. In the other order
        another process may have created and indexed it between the two reads.
        """
        upto: dict[int, int] = dict(index.read(lambda tx: tx.all("index_progress")))
        there = self._log.read(lambda tx: tx.all("search_conversations"))
        deleted = upto.keys() - {row[0] for row in there}
        every = (IndexBacklog(key, last, forked_at, owner, upto.get(key)) for key, last, forked_at, owner in there)
        return sorted(deleted), [each for each in every if each.size > 0]

    def _forget_redacted(self, index: SearchIndex) -> None:
        """Remove the conversations with messages that were redacted after they were indexed.

        Needed if a process did not do so because it died or the index was locked.
        """
        now = self._log.read(_redactions)
        if index.read(lambda tx: _read_meta(tx, "redactions")) == now:
            return
        known = set(index.read(lambda tx: tx.all("index_redacted", tag=REDACTED_TAG)))
        redacted = self._log.read(lambda tx: tx.all("search_redacted"))
        _forget(index, sorted({key for key, seq in redacted if (key, seq) not in known}))
        index.write("state", lambda tx: tx.run("index_meta_set", key="redactions", value=now))

    def _index_all(self, index: SearchIndex, backlog: list[IndexBacklog], progress: Progress | None) -> int:
        done, total = 0, sum(each.size for each in backlog)
        for each in backlog:
            for count in self._index_one(index, each):
                done += count
                if progress:
                    progress(done, total)
        return done

    def _index_one(self, index: SearchIndex, backlog: IndexBacklog) -> Iterator[int]:
        """Index the messages of a conversation; yield the size of each batch."""
        while True:
            row = index.read(lambda tx: tx.one("index_progress_of", conversation=backlog.key))
            start = max(row[0] if row else backlog.forked_at, backlog.forked_at)
            batch = self._next_batch(backlog, start) if start < backlog.last_seq else None
            if batch is None:
                return
            rows = list(self._dialect.index_rows(batch.key, batch.documents, start))
            if index.write("index", partial(self._write_batch, batch=batch, rows=rows, known=row)):
                yield batch.upto - start

    def _next_batch(self, backlog: IndexBacklog, start: int) -> Batch | None:
        """Read and tokenize the next messages to index, and the last indexed ones, which have new neighbours now.

        None if the conversation was deleted.
        """
        key, limits = backlog.key, {"upto": backlog.last_seq, "limit": MAX_BATCH_MESSAGES, "room": MAX_BATCH_BYTES}
        (upto,) = self._log.read(lambda tx: tx.one("export_reach", conversation=key, after=start, **limits)) or (start,)
        after = max(backlog.forked_at, start - 2 * NEIGHBOURS)
        messages = self._log.read(lambda tx: tx.all("messages_between", conversation=key, after=after, upto=upto))
        if not messages:
            return None
        documents = _documents(messages, query_parser.tag("o", backlog.owner), self._dialect.index_text)
        redacted = sum(not row[5] for row in messages)
        new = [each for each in documents if each.seq > start - NEIGHBOURS]
        return Batch(key, after, messages[-1][0], len(messages), redacted, new)

    def _write_batch(self, tx: Tx, batch: Batch, rows: list[dict[str, Any]], known: Row | None) -> bool:
        """Write a batch; return False if another process updated the index, or the log changed, since it was read."""
        # First: on PostgreSQL this query takes the lock, and the log must be compared under the lock.
        progress = tx.one("index_progress_of", conversation=batch.key)
        range_ = {"conversation": batch.key, "after": batch.after, "upto": batch.upto}
        counts = self._log.read(lambda log_tx: log_tx.one("search_range_counts", **range_))
        if progress != known or counts != (batch.messages, batch.redacted):
            return False
        for values in rows:
            tx.run("index_put", **values)
        tx.run("index_progress_set", conversation=batch.key, upto=batch.upto)
        return True


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


def _read_meta(tx: Tx, key: str) -> str | None:
    row = tx.one("index_meta", key=key)
    return row[0] if row else None


def _forget(index: SearchIndex, keys: Iterable[int]) -> None:
    """Remove conversations from the index."""
    for key in keys:

        def step(tx: Tx, key: int = key) -> None:
            tx.run("index_forget", conversation=key)
            tx.run("index_forget_progress", conversation=key)

        index.write("forget", step)


def _documents(rows: list[Row], owner: str, tokenize: Callable[[str], T]) -> Iterator[query_parser.Document[T]]:
    """Return each message as it is indexed: its words, its neighbours' words, and its tags."""
    decoded = [_decode(row[5]) if row[5] else types.Body() for row in rows]
    texts = [tokenize(query_parser.message_text(body)) for body in decoded]
    called: dict[str, str] = {}
    for at, (row, body) in enumerate(zip(rows, decoded, strict=True)):
        called.update({call.id: call.name for call in body.tool_calls})
        tools = {call.name for call in body.tool_calls} | {called.get(body.tool_call_id or "", "")} - {""}
        tags = [query_parser.tag("r", row[3]), *(query_parser.tag("t", tool) for tool in sorted(tools))]
        tags += [] if row[5] else [REDACTED_TAG]
        around = texts[max(0, at - NEIGHBOURS) : at] + texts[at + 1 : at + 1 + NEIGHBOURS]
        yield query_parser.Document(row[0], texts[at], around, tags, owner)
