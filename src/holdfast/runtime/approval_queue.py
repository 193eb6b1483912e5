"""The approval requests of one conversation, for one client that can answer them.

A request is answered once, by the client that is first, and is withdrawn from all others. The requests belong to
`agent.approvals`; what is pending is always read from there, so a client cannot show a request that is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, NamedTuple, TypeVar

from holdfast import events
from holdfast.agent import approvals as permissions

R = TypeVar("R")


class AnswerReceipt(NamedTuple):
    """The outcome of an answer."""

    accepted: bool
    """Whether the request was still pending."""
    notice: str | None
    """A sentence for the person, where the answer did not count, or not wholly."""


class ApprovalQueue:
    """The pending approval requests of a conversation, oldest first.

    Between `open` and `close` this client can answer. Without any client that can, requests are denied at once.
    """

    def __init__(self, approvals: permissions.Approvals, conversation_id: str) -> None:
        self._approvals, self.conversation_id = approvals, conversation_id
        """`conversation_id` may be changed while the queue is closed."""
        self._answering = ExitStack()
        self._unseen: asyncio.Queue[events.ApprovalAsked] = asyncio.Queue()

    def open(self) -> None:
        """Declare that this client can answer; may be called again."""
        before, self._answering = self._answering, ExitStack()
        self._answering.enter_context(self._approvals.accept_answers(self.conversation_id))
        before.close()

    def close(self) -> None:
        """Declare that this client cannot answer any more; pending requests are denied if no other client can."""
        self._answering.close()

    @property
    def pending(self) -> list[events.ApprovalAsked]:
        return [each.asked for each in self._approvals.pending(self.conversation_id)]

    def is_pending(self, request_id: str) -> bool:
        return self._find(request_id) is not None

    def put(self, request: events.ApprovalAsked) -> None:
        """Queue a request for `next`; for clients that show one request at a time."""
        self._unseen.put_nowait(request)

    async def next(self) -> events.ApprovalAsked:
        """Wait for the next queued request that is still pending."""
        while not self.is_pending((request := await self._unseen.get()).request_id):
            pass
        return request

    async def prompt(self, request_id: str, answer: Coroutine[Any, Any, R]) -> R | None:
        """Wait for the person's answer; cancel it and return None if the request is settled elsewhere."""
        request = self._find(request_id)
        if request is None:
            answer.close()
            return None
        asking = asyncio.create_task(answer)
        try:
            either: list[asyncio.Future[Any]] = [asking, request.decision]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])
        return None if asking.cancelled() else asking.result()

    async def answer(self, given: events.Approve) -> AnswerReceipt:
        """Settle a request with the answer of a person."""
        accepted = self.is_pending(given.request_id)
        return AnswerReceipt(accepted, await self._approvals.answer(self.conversation_id, given))

    def deny_unanswered(self, request_id: str, why: str) -> None:
        """Deny a request that could not be shown or answered; the audit log names no person."""
        self._approvals.expire(self.conversation_id, request_id, why)

    def _find(self, request_id: str) -> permissions.PendingApproval | None:
        found = self._approvals.pending(self.conversation_id)
        return next((each for each in found if each.asked.request_id == request_id), None)
