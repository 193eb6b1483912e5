"""What a tool may not do unasked, put to the person at the editor. Whatever is no clear yes is a no."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from acp import exceptions, schema

from holdfast import errors, events
from holdfast.acp import conversion
from holdfast.agent import approvals

logger = logging.getLogger("holdfast.acp")

BY = "the editor"
"""Who answers questions, as it is written down."""
NOT_ASKED = "The person could not be asked."


class Client(Protocol):
    """The editor at the other end. Raises ConnectionError when it is gone."""

    async def request_permission(
        self, session_id: str, tool_call: schema.ToolCallUpdate, options: list[schema.PermissionOption]
    ) -> schema.RequestPermissionResponse: ...


class Questions:
    """Those of one session that the editor has not answered. `remark` is told what came of an answer."""

    def __init__(
        self,
        client: Client,
        session_id: str,
        conversation_id: str,
        permissions: approvals.Approvals,
        remark: Callable[[str], object],
    ) -> None:
        self._client, self._session_id, self._conversation_id = client, session_id, conversation_id
        self._permissions, self._remark = permissions, remark
        self._asking: dict[str, asyncio.Task[None]] = {}

    def ask(self, asked: events.ApprovalAsked, request: schema.ToolCallUpdate) -> None:
        """Put it to the person, unless it was settled meanwhile."""
        open_ones = (each.asked.request_id for each in self._permissions.pending(self._conversation_id))
        if asked.request_id in open_ones:
            self._asking[asked.request_id] = asyncio.create_task(self._put(asked, request))

    def settled(self, request_id: str) -> None:
        """Nobody needs the answer any more."""
        if (asking := self._asking.pop(request_id, None)) is not None:
            asking.cancel()

    async def close(self) -> None:
        asking = [*self._asking.values()]
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    async def _put(self, asked: events.ApprovalAsked, request: schema.ToolCallUpdate) -> None:
        offered, given = conversion.choices(asked), None
        try:
            response = await self._client.request_permission(self._session_id, request, offered)
            given = events.Approve(asked.request_id, _chosen(response, offered), BY)
        except (exceptions.RequestError, ValueError, ConnectionError) as error:
            logger.warning("a question was not answered, and is denied: %s", error)
        self._asking.pop(asked.request_id, None)
        if given is None:
            # Nobody has said anything, and nobody is said to have.
            self._permissions.expire(self._conversation_id, asked.request_id, NOT_ASKED)
        elif remark := await self._permissions.answer(self._conversation_id, given):
            self._remark(remark)


def _chosen(response: schema.RequestPermissionResponse, offered: Sequence[schema.PermissionOption]) -> events.Answered:
    """What a person chose; ValueError where nobody could choose that."""
    match response.outcome:
        case schema.AllowedOutcome(option_id=chosen) if chosen not in (each.option_id for each in offered):
            raise ValueError(f"{errors.shown(chosen)} was not offered.")
        case _:
            return conversion.chosen(response)
