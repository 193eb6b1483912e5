"""A chat that is being processed in this process, and its running turn."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast import events, types
from holdfast.agent import commands
from holdfast.gateway import message_policy, platform, routes, turn_progress
from holdfast.runtime import runtime as runtimes


class ActiveChat:
    """A chat that is being processed. `notify` may be called at any time."""

    def __init__(self, route: str) -> None:
        self.route = route
        self.has_news = False
        """Whether a message may have arrived since the chat was last read."""
        self._is_woken = False
        self._disturbed: asyncio.Future[None] | None = None
        self.notices = set[str]()
        """Conversations of this chat with open inbox entries."""
        self.behind: Sequence[types.InboundMessage] = ()
        """The messages that waited behind the current one when it was begun."""
        self.inbox_empty = False
        """Whether the inbox of the conversation was empty when the chat was read."""
        self.has_more = False
        """Whether other messages wait, so that the lease is still needed."""
        self.attempts = 0

    def notify(self) -> None:
        """A message may have arrived."""
        self.has_news = True
        self.wake()

    def wake(self) -> None:
        self._is_woken = True
        if self._disturbed is not None and not self._disturbed.done():
            self._disturbed.set_result(None)

    def clear_news(self) -> None:
        """Called before the chat is read: later messages set `has_news` again."""
        self.has_news = False
        self._is_woken = False

    async def wait_undisturbed(self, turn: asyncio.Future[Any], seconds: float) -> None:
        """Wait until a turn ends, a message may have arrived, or the time is over."""
        if self._is_woken:
            return
        self._disturbed = asyncio.get_running_loop().create_future()
        await asyncio.wait([turn, self._disturbed], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self._disturbed = None


class RunningTurn:
    """A running turn, or slow command, and the messages that arrive meanwhile."""

    def __init__(
        self,
        runtime: runtimes.Runtime,
        conversation_id: str,
        inbound: types.InboundMessage | None,
        progress: turn_progress.TurnProgress,
        message: events.Submit | None = None,
    ) -> None:
        self.runtime, self.conversation_id, self.inbound = runtime, conversation_id, inbound
        self.progress, self.message = progress, message
        self.seen = {inbound.id} if inbound else set[int]()
        self.steered: dict[str, types.InboundMessage] = {}
        """Messages added to the turn, by the uid they get in the log once the model receives them."""
        self.turn: asyncio.Future[Any] | None = None

    @property
    def over(self) -> bool:
        return self.turn is not None and self.turn.done()

    @property
    def included(self) -> set[int]:
        """The messages that the turn began with or that were added to it."""
        own = {self.inbound.id} if self.inbound else set[int]()
        return own | {each.id for each in self.steered.values()}

    def withdraw(self) -> None:
        """Stop the turn, or do not begin it; its message has no reply."""
        self.progress.yielded = True
        # A message that still waits behind another turn of its conversation must not stop that turn.
        if self.message is None or not self.runtime.drop(self.conversation_id, self.message):
            self.runtime.interrupt(self.conversation_id)

    def action_for(
        self, mode: message_policy.BusyMode, inbound: types.InboundMessage, ahead: bool
    ) -> message_policy.Action | None:
        """Return what to do with a message that arrived during the turn; None: not known yet.

        A message is added only to a turn that its sender can mean: one that began with a message of theirs, which is
        in the log. `ahead`: an earlier message waits, so this one waits, too, unless it acts on the turn.
        """
        if (deleted := platform.deleted_key(inbound)) is not None:
            return "withdraw" if self.inbound is not None and deleted == self.inbound.key else "later"
        action = message_policy.action_during_turn(mode, inbound.text, not inbound.parts)
        if action == "later" or (action == "now" and ahead and not commands.runs_during_turn(inbound.text)):
            return "later"  # What a command shows may depend on the messages before it.
        if action == "now":
            return action
        own, waits = self.inbound, ahead and message_policy.steering_text(inbound.text) is None
        if own is None or waits or (routes.is_shared(inbound.route) and own.sender != inbound.sender):
            return "later"
        return action if self.progress.is_own else None
