"""Show a running turn in its chat: the typing indicator, a draft of the reply, and questions.

Questions are sent to the chat of the message and answered there by commands; after a time they are denied.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from holdfast import errors, events, types
from holdfast.agent import loop
from holdfast.gateway import gateway_context, outbox, platform, questions, replies
from holdfast.runtime import runtime as runtimes
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

TYPING_SECONDS = 4.0
"""The interval at which the typing indicator is renewed."""
NOT_ANSWERED = "The question was not answered in time."


class TurnProgress:
    """Follows the events of a conversation on behalf of one inbound message, or of a notice."""

    def __init__(
        self,
        context: gateway_context.GatewayContext,
        runtime: runtimes.Runtime,
        conversation_id: str,
        to: gateway_context.ReplyAddress,
        inbound: types.InboundMessage | None,
        uid: str,
    ) -> None:
        self._context, self._runtime, self._conversation_id, self._to = context, runtime, conversation_id, to
        self._inbound, self._uid = inbound, uid
        self._can = context.can(to.platform)
        self._questions: dict[str, asyncio.Task[None]] = {}
        self._draft: asyncio.Task[None] | None = None
        self._text = ""
        """The reply so far, for the draft."""
        self.is_own = self._is_relevant = False
        """Whether the running turn is that of the message; whether its questions belong to this chat."""
        self.on_own: Callable[[], object] = lambda: None
        """Called when `is_own` becomes true."""
        self.yielded = False
        """Whether the turn was interrupted in favour of a later message."""
        self.stored: dict[str, int] = {}
        """The messages stored meanwhile: seq by uid."""

    @property
    def seq(self) -> int | None:
        """The message that the turn began with; None until it is stored."""
        return self.stored.get(self._uid)

    @property
    def can_ask(self) -> bool:
        """Whether a question can be answered: only on the platform that the message came from."""
        return self._to.origin == self._to.platform and self._can.interactive

    def on_emitted(self, emitted: events.Emitted) -> None:
        """Handle an event. Turns that another chat began in the same conversation are not shown here."""
        match emitted.event:
            case events.MessageStored(seq, uid):
                self.stored[uid] = seq
                if uid == self._uid:
                    self.is_own = True
                    self.on_own()
            case events.TurnStarted(notice=notice):
                self._is_relevant = self.is_own or bool(notice)
            case events.ApprovalAsked() if self._is_relevant and self.can_ask:
                self._questions[emitted.event.request_id] = asyncio.create_task(self._ask(emitted.event, self.is_own))
            case events.ApprovalSettled(request_id):
                if (waiting := self._questions.pop(request_id, None)) is not None:
                    waiting.cancel()
            case events.TextDelta(text) if self.is_own and self._inbound and self._can.drafts is not None:
                self._text += text
                self._draft = self._draft or asyncio.create_task(self._edit_draft(self._inbound))
        self._forward(emitted.event)
        if isinstance(emitted.event, events.TurnFinished):
            self.is_own = self._is_relevant = False

    def _forward(self, event: events.AnyEvent) -> None:
        if self._can.progress is None or self._inbound is None or not self.is_own:
            return
        try:
            self._can.progress.on_event(self._inbound, event)
        except Exception:
            # The border to a platform: its errors do not affect the turn.
            logger.exception("%s failed to show the progress of a turn", self._to.platform)

    async def show_typing(self) -> None:
        """Renew the typing indicator until cancelled."""
        while self._can.typing is not None:
            pause = TYPING_SECONDS
            try:
                await self._can.typing.send_typing(self._to.address)
            except Exception as error:  # noqa: BLE001 -- the border to a platform; the indicator is optional
                logger.debug("%s failed to show the typing indicator: %s", self._to.platform, error)
                pause = max(pause, platform.requested_pause(error))
            await asyncio.sleep(pause)

    async def close(self) -> None:
        for waiting in self._questions.values():
            waiting.cancel()
        if self._draft is not None:
            # An edit that is under way must not overtake the final reply.
            self._draft.cancel()
            await asyncio.wait([self._draft])

    async def _edit_draft(self, inbound: types.InboundMessage) -> None:
        """Send a draft and edit it until cancelled. Another attempt at the same message continues the same draft."""
        drafts, shown = self._can.drafts, ""
        assert drafts is not None
        try:
            # A write goes on if its task is cancelled, and a draft that is stored after the reply would stay.
            posting = outbox.post_draft(self._context.db, self._to, inbound.id)
            draft = await loop.finish_despite_cancel(posting)
            self._context.wake_sender(self._to.platform)
            while draft is not None and draft.failed_at is None:
                await asyncio.sleep(drafts.draft_seconds)
                if draft.external is None:
                    draft = await self._context.db.mail.outgoing(draft.id)
                elif self._text != shown:
                    shown = await self._show_draft(drafts, draft.external, self._text, shown)
        except Exception as error:  # noqa: BLE001 -- the border to a platform; the draft is optional
            logger.warning("%s failed to edit a draft: %s", self._to.platform, error)

    async def _show_draft(self, drafts: platform.EditsDrafts, draft: str, text: str, shown: str) -> str:
        """Edit the draft and return its text; the one of the earlier edit if this one failed for now."""
        # A draft is one message: splitting the complete text would take longer with each edit.
        limit = self._context.platforms[self._to.platform].limit
        parts = replies.build(self._context, self._to, text[: 2 * limit])
        render = self._can.format.render if self._can.format is not None else str
        try:
            await drafts.edit_draft(self._to.address, draft, render(parts[0].text if parts else outbox.DRAFT_TEXT))
        except errors.SendFailed as error:
            logger.debug("%s failed to edit a draft: %s", self._to.platform, error)
            await asyncio.sleep(platform.requested_pause(error))
            return shown
        return text

    async def _ask(self, asked: events.ApprovalAsked, is_own: bool) -> None:
        """Send a question to the chat, and deny it if it is not answered in time."""
        try:
            # Sequentially, so that numbers are unique and the parts of two questions are not mixed.
            async with self._runtime.approvals.prompt_lock:
                await self._post_question(asked, self._inbound.id if is_own and self._inbound else None)
        except errors.HoldfastError as error:
            logger.warning("a question could not be sent and will be denied: %s", error)
        self._context.wake_sender(self._to.platform)
        await asyncio.sleep(self._context.settings.answer_within)
        self._runtime.approvals.expire(self._conversation_id, asked.request_id, NOT_ANSWERED)

    async def _post_question(self, asked: events.ApprovalAsked, inbound_id: int | None) -> None:
        number = await questions.next_number(self._context.db, self._conversation_id)
        text = questions.question_text(asked, number, explain=self._can.choices is None)
        parts = replies.build(self._context, self._to, text, kind="question")
        for index, part in enumerate(parts):
            key = questions.QuestionKey(number, asked.request_id, index, len(parts), bool(asked.remembers)).text
            await self._context.db.mail.post(
                part, key=key, inbound_id=inbound_id, conversation_id=self._conversation_id
            )


async def read_turn(db: async_db.AsyncSessionDB, conversation_id: str, asked: int) -> list[types.Message]:
    """Return the messages of the turn that a message began, including those of earlier attempts at it."""

    def is_same_turn(message: types.Message) -> bool:
        return message.role != "user" or message.uid.startswith(loop.STEERED)

    return list(itertools.takewhile(is_same_turn, await db.transcript(conversation_id, asked)))


@asynccontextmanager
async def follow(
    context: gateway_context.GatewayContext,
    runtime: runtimes.Runtime,
    conversation_id: str,
    to: gateway_context.ReplyAddress,
    inbound: types.InboundMessage | None = None,
    uid: str = "",
) -> AsyncIterator[TurnProgress]:
    """Follow the turns of a conversation until the end of the block; `uid` is that of the message's log entry."""
    progress = TurnProgress(context, runtime, conversation_id, to, inbound, uid)
    with runtime.subscribe(
        conversation_id, can_approve=progress.can_ask, takes_inbox=False, on_event=progress.on_emitted
    ):
        has_typing = context.can(to.platform).typing is not None
        typing = asyncio.create_task(progress.show_typing()) if has_typing else None
        try:
            yield progress
        finally:
            if typing is not None:
                typing.cancel()
                await asyncio.wait([typing])
            await progress.close()
