"""Append in a single round trip: the one optimisation of the write path on PostgreSQL.

The digest of a message covers its seq, so the client has to predict the seq before it sends the message. The function
`append_message` (sql/postgres/functions.sql) locks the conversation, checks it and the lease, and inserts the message
if the prediction is right and nothing is special. Otherwise it changes nothing and returns no row, and the driver runs
the ordinary transaction (log.append). A wrong prediction costs time and nothing else.

Concurrent appends of one event loop to different conversations share a round trip and a commit (`append_to_each`). Of
these, none waits for a lock: a conversation that another process has locked is left to the transaction.

While other processes write to the same conversation, the client makes digests for several possible numbers, and the
commit does not wait for the disk while it holds the lock. Before the append is acknowledged, `flush_wal` waits for the
disk in a transaction of its own (docs/decisions/0044).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast import types
from holdfast.store import log, message_codec

MAX_CONVERSATIONS = 4096
# Digests made for a contended conversation, and the longest body (characters) that is worth hashing so often.
CANDIDATES = 16
MAX_HASHED = 4096
# Characters of message bodies that one statement may carry.
MAX_BATCH = 16 * 1024 * 1024


class Tail(NamedTuple):
    """The end of a log as this process saw it last."""

    conversation_id: str
    last_seq: int
    candidates: int = 1
    """How many of the next numbers are prepared for: more than one while other processes write there."""


class Tails:
    """Predicts the next seq of conversations, by any session id that was appended to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, Tail] = {}

    def values(self, request: log.AppendRequest, now: float | None) -> dict[str, Any] | None:
        """Build the parameters of `append_message`; None if this request needs the ordinary transaction."""
        if len(request.messages) > 1 or request.create is not None:
            return None
        (message,), lease, tail = request.messages, request.lease, self._predict(request)
        if tail is None or (lease is not None and lease.conversation_id != tail.conversation_id):
            return None
        contended = tail.candidates > 1
        candidates = tail.candidates if len(message.body) <= MAX_HASHED else 1
        return {
            "session": request.session_id,
            "conversation": tail.conversation_id,
            "expect_head": request.expect_head,
            "is_retry": request.is_retry,
            "seen": tail.last_seq,
            "uid": message.uid,
            "role": message.role,
            "at": float(message.at),
            "body": message.body,
            "digests": b"".join(
                message_codec.digest(tail.conversation_id, seq, message.uid, message.role, message.body)
                for seq in range(tail.last_seq + 1, tail.last_seq + 1 + candidates)
            ),
            "purpose": lease.purpose if lease else None,
            "token": lease.token if lease else None,
            "holder": lease.holder if lease else None,
            "now": now,
            "unsynced": contended,
        }

    def group_values(
        self, requests: Sequence[log.AppendRequest], now: float | None
    ) -> tuple[list[int], dict[str, Any]] | None:
        """Build the parameters of `append_to_each`, and say which of the requests are in it."""
        columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        included: list[int] = []
        size = 0
        for index, request in enumerate(requests):
            values = self.values(request, now)
            if values is None or values["unsynced"]:
                continue
            size += len(request.messages[0].body)
            if size > MAX_BATCH:
                break
            included.append(index)
            for name, source in _COLUMNS.items():
                columns[name].append(values[source])
        return (included, {**columns, "now": now}) if included else None

    def _predict(self, request: log.AppendRequest) -> Tail | None:
        tail, lease = self._known.get(request.session_id), request.lease
        if tail is None and lease is not None and lease.conversation_id == request.session_id:
            return Tail(lease.conversation_id, lease.snapshot.last_seq)
        return tail

    def note(self, session_id: str, receipts: Sequence[types.Receipt]) -> None:
        """Remember where the log ended after an append of this process."""
        last, added = receipts[-1], sum(not receipt.duplicate for receipt in receipts)
        known = self._known.get(session_id)
        candidates = 1
        if known is not None and last.seq != known.last_seq + added:
            candidates = CANDIDATES  # another process has appended, too
        elif known is not None:
            candidates = max(1, known.candidates - 1)
        with self._lock:
            if known is None and len(self._known) >= MAX_CONVERSATIONS:
                self._known.pop(next(iter(self._known)))
            self._known[session_id] = Tail(last.conversation_id, last.seq, candidates)


_COLUMNS = {
    "sessions": "session",
    "conversations": "conversation",
    "expect_heads": "expect_head",
    "retries": "is_retry",
    "seen": "seen",
    "uids": "uid",
    "roles": "role",
    "ats": "at",
    "bodies": "body",
    "digests": "digests",
    "purposes": "purpose",
    "tokens": "token",
    "holders": "holder",
}
"""The parameters of `append_to_each`, and the parameter of `append_message` that each is an array of."""


def receipt(request: log.AppendRequest, conversation_id: str, row: tuple[Any, ...]) -> types.Receipt:
    seq, session_id, epoch = row
    moved_from = request.session_id if session_id != request.session_id else None
    uid = request.messages[0].uid
    return types.Receipt(seq, uid, session_id, conversation_id, epoch, moved_from, False, False)
