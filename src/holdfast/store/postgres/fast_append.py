"""Append in a single round trip: the one optimisation of the write path on PostgreSQL.

The digest of a message covers its seq, so the client has to predict the seq before it sends the message. The function
`append_message` (sql/postgres/functions.sql) locks the conversation, checks it and the lease, and inserts the message
if the prediction is right and the conversation is live. Otherwise it changes nothing and returns no row, and the driver
runs the ordinary transaction (log.append). A wrong prediction costs time and nothing else.

Concurrent appends of one event loop to different conversations share a round trip and a commit (`append_to_each`). It
waits for no lock: it skips a conversation that another process has locked, and the driver appends to it in a
transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from holdfast import types
from holdfast.store import log, message_codec

MAX_CONVERSATIONS = 4096
# Characters of message bodies in one `append_to_each`.
MAX_GROUP_CHARS = 16 * 1024 * 1024


class TailCache:
    """Predicts the next seq of conversations that this process has appended to. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tails: dict[str, int] = {}
        """The last seq of a conversation, as this process saw it last."""
        self._conversations: dict[str, str] = {}
        """The conversation of a session id."""

    def build_parameters(self, request: log.AppendRequest, now: float | None) -> dict[str, Any] | None:
        """Build the parameters of `append_message`; None if this request needs the ordinary transaction."""
        lease = request.lease
        # The statement checks that the session belongs to the conversation of the lease.
        conversation_id = lease.conversation_id if lease else self._conversations.get(request.session_id, "")
        seen = self._tails.get(conversation_id)
        if lease is not None and (seen is None or seen < lease.snapshot.last_seq):
            seen = lease.snapshot.last_seq
        if len(request.messages) > 1 or request.create is not None or seen is None:
            return None
        (message,) = request.messages
        return {
            "session": request.session_id,
            "conversation": conversation_id,
            "expect_head": request.expect_head,
            "may_be_stored": request.may_be_stored,
            "seen": seen,
            "uid": message.uid,
            "role": message.role,
            "at": float(message.at),
            "body": message.body,
            "digest": message_codec.digest(conversation_id, seen + 1, message.uid, message.role, message.body),
            "purpose": lease.purpose if lease else None,
            "token": lease.token if lease else None,
            "holder": lease.holder if lease else None,
            "now": now,
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
            if parameters is None:
                continue
            size += len(request.messages[0].body)
            if size > MAX_GROUP_CHARS:
                break
            included.append(index)
            rows.append(parameters)
        return included, {name: [row[name] for row in rows] for name in (rows[0] if rows else ())} | {"now": now}

    def record_append(self, conversation_id: str, last_seq: int) -> None:
        """Record a committed append of this process."""
        self._store(self._tails, conversation_id, last_seq)

    def record_session(self, session_id: str, receipt: types.Receipt) -> None:
        """Record the conversation of a session id, given the last receipt of an append to it."""
        if session_id not in self._conversations:
            self._store(self._conversations, session_id, receipt.conversation_id)
        if receipt.conversation_id not in self._tails:  # created by this append
            self._store(self._tails, receipt.conversation_id, receipt.seq)

    def _store(self, cache: dict[str, Any], key: str, value: object) -> None:
        with self._lock:
            if key not in cache and len(cache) >= MAX_CONVERSATIONS:
                cache.pop(next(iter(cache)))
            cache[key] = value
