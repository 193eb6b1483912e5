"""Append in a single round trip: the one optimisation of the write path on PostgreSQL.

The digest of a message covers its seq, so the client has to predict the seq before it sends the message. The function
`append_message` (sql/postgres/functions.sql) locks the conversation, checks it and the lease, and inserts the message
if the prediction is right and the conversation is live. Otherwise it changes nothing and returns no row, and the driver
runs the ordinary transaction (log.append). A wrong prediction costs time and nothing else.

Concurrent appends of one event loop to different conversations share a round trip and a commit (`append_to_each`). It
waits for no lock: it skips a conversation that another process has locked, and the driver appends to it in a
transaction.

While other processes write to the same conversation, the client computes digests for several possible seqs, and the
commit does not wait for the disk while it holds the lock. Before the append is acknowledged, `flush_wal` waits for the
disk in a separate transaction (docs/decisions/0044).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast import types
from holdfast.store import log, message_codec

MAX_CONVERSATIONS = 4096
# The number of predicted seqs in a contended conversation, and the longest body in characters for which so many digests
# are computed.
CANDIDATES = 16
MAX_HASHED_CHARS = 4096
# Characters of message bodies in one `append_to_each`.
MAX_GROUP_CHARS = 16 * 1024 * 1024


class LogTail(NamedTuple):
    """The end of a log as this process saw it last."""

    last_seq: int
    candidates: int = 1
    """The number of predicted seqs: more than one while other processes append to the same log."""


class TailCache:
    """Predicts the next seq of conversations that this process has appended to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[str, LogTail] = {}
        self._conversations: dict[str, str] = {}
        """The conversation of a session id."""

    def build_parameters(self, request: log.AppendRequest, now: float | None) -> dict[str, Any] | None:
        """Build the parameters of `append_message`; None if this request needs the ordinary transaction."""
        conversation_id, tail = self._predict(request)
        if len(request.messages) > 1 or request.create is not None or tail is None:
            return None
        (message,), lease = request.messages, request.lease
        candidates = tail.candidates if len(message.body) <= MAX_HASHED_CHARS else 1
        return {
            "session": request.session_id,
            "conversation": conversation_id,
            "expect_head": request.expect_head,
            "may_be_stored": request.may_be_stored,
            "seen": tail.last_seq,
            "uid": message.uid,
            "role": message.role,
            "at": float(message.at),
            "body": message.body,
            "digests": b"".join(
                message_codec.digest(conversation_id, seq, message.uid, message.role, message.body)
                for seq in range(tail.last_seq + 1, tail.last_seq + 1 + candidates)
            ),
            "purpose": lease.purpose if lease else None,
            "token": lease.token if lease else None,
            "holder": lease.holder if lease else None,
            "now": now,
            "unsynced": tail.candidates > 1,
        }

    def build_group_parameters(
        self, requests: Sequence[log.AppendRequest], now: float | None
    ) -> tuple[list[int], dict[str, Any]]:
        """Build the parameters of `append_to_each`, which are arrays of those of `append_message`.

        Return the indexes of the requests that are included, and the parameters.
        """
        included, rows, size = list[int](), list[dict[str, Any]](), 0
        for index, request in enumerate(requests):
            parameters = self.build_parameters(request, now)
            if parameters is None or parameters["unsynced"]:
                continue
            size += len(request.messages[0].body)
            if size > MAX_GROUP_CHARS:
                break
            included.append(index)
            rows.append(parameters)
        return included, {name: [row[name] for row in rows] for name in (rows[0] if rows else ())} | {"now": now}

    def _predict(self, request: log.AppendRequest) -> tuple[str, LogTail | None]:
        lease = request.lease
        if lease is None:
            conversation_id = self._conversations.get(request.session_id, "")
            return conversation_id, self._tails.get(conversation_id)
        # The statement checks that the session belongs to the conversation of the lease.
        conversation_id, tail = lease.conversation_id, self._tails.get(lease.conversation_id)
        if tail is None or tail.last_seq < lease.snapshot.last_seq:
            tail = LogTail(lease.snapshot.last_seq)
            self._store(self._tails, conversation_id, tail)
        return conversation_id, tail

    def record_append(self, conversation_id: str, first_seq: int, last_seq: int) -> None:
        """Record a committed append of this process."""
        known, candidates = self._tails.get(conversation_id), 1
        if known is not None and first_seq != known.last_seq + 1:
            candidates = CANDIDATES  # another process has appended, too
        elif known is not None:
            candidates = max(1, known.candidates - 1)
        self._store(self._tails, conversation_id, LogTail(last_seq, candidates))

    def record_session(self, session_id: str, receipt: types.Receipt) -> None:
        """Record the conversation of a session id, given the last receipt of an append to it."""
        if session_id not in self._conversations:
            self._store(self._conversations, session_id, receipt.conversation_id)
        if receipt.conversation_id not in self._tails:  # created by this append
            self._store(self._tails, receipt.conversation_id, LogTail(receipt.seq))

    def _store(self, cache: dict[str, Any], key: str, value: object) -> None:
        with self._lock:
            if key not in cache and len(cache) >= MAX_CONVERSATIONS:
                cache.pop(next(iter(cache)))
            cache[key] = value
