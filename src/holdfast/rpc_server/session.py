"""A session that a client has open: its key, options, prompts and events, and how it is closed.

The conversation never changes; the key is its head and follows it. Every event goes through one subscription, and only
its delivery changes the key, so no event has a key that the client was not informed of.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import errors, events, types
from holdfast.compaction import base as compaction
from holdfast.rpc import frames
from holdfast.rpc import peer as peers
from holdfast.rpc_server import event_messages, session_info, wire_types
from holdfast.runtime import approval_queue, attachments, subscriptions, wording
from holdfast.runtime import runtime as runtimes
from holdfast.store import message_codec, titles

logger = logging.getLogger("holdfast.rpc_server")

CLOSE_REASON = "tui_close"
REVIEW_SECONDS = 5.0
"""Seconds that the review of the last turn may take when its conversation is ended."""
END_ATTEMPTS = 3
"""Attempts to end a conversation whose client is gone."""
MAX_PROMPTS = 1_000
"""Queued prompts of one session."""
MAX_QUEUED_CHARACTERS = 16_000_000
"""Characters of the queued prompts of one session; the last one may exceed it."""
DROPPED = "The prompt was removed from the queue before its turn began."


class QueuedPrompt(NamedTuple):
    """A prompt of this client that is queued or being answered."""

    uid: str
    message: events.Submit
    answered: asyncio.Future[events.TurnResult]


class ClientSession:
    """A session of one client."""

    def __init__(
        self, runtime: runtimes.Runtime, client: peers.Peer, conversation_id: str, key: str, poll_seconds: float
    ) -> None:
        self._runtime, self.client = runtime, client
        self.gone = False
        """Whether the client has disconnected. Until the session is closed, another client may adopt it."""
        self.conversation_id, self.key = conversation_id, key
        self.ids = {conversation_id, key}
        """Every id that the session is known to have had."""
        self.order = asyncio.Lock()
        """Serializes requests that change the session; held for quick ones only."""
        self._messages = event_messages.EventMessageBuilder(wire_types.SessionOptions())
        self._images: list[attachments.ImageData] = []
        self._prompts: list[QueuedPrompt] = []
        self._finished_uids = set[str]()
        """Prompts whose turn has reported its end, but whose future is not done yet."""
        self._stored_uid: str | None = None
        self._turn_uid: str | None = None
        self._running = runtime.running(conversation_id)
        self._command_output: events.AnyEvent | None = None
        """An event that the response to a command contains already."""
        self._sent_version: tuple[object, ...] = ()
        """The version of the conversation that the client was informed of last."""
        self._deletion_sent = False
        self._closing: asyncio.Task[bool] | None = None
        self._hurried = asyncio.Event()
        self.approvals = approval_queue.ApprovalQueue(runtime.approvals, conversation_id)
        self.subscription = subscriptions.Subscription[wire_types.EventPayload](
            runtime,
            conversation_id,
            self._deliver,
            receive=self._receive,
            poll_seconds=poll_seconds,
        )
        self.subscription.start()
        self.approvals.open()

    # --- state ---------------------------------------------------------------------------------------

    @property
    def options(self) -> wire_types.SessionOptions:
        return self._messages.options

    def set_options(self, given: wire_types.OptionChanges, images: list[attachments.ImageData] | None) -> None:
        """Change the given options; `images` are the decoded images of the options, or None."""
        if images is not None:
            self._images = images
        changed = {
            name: value
            for name in ("columns", "show_reasoning", "tool_progress")
            if (value := getattr(given, name)) is not UNSET
        }
        self._messages.options = msgspec.structs.replace(self.options, images=len(self._images), **changed)

    async def info(self) -> wire_types.SessionState:
        """Return the current state. Raises the error of a store that fails."""
        return await self._build_info(self.running)

    async def _build_info(self, running: bool, previous: str | None = None) -> wire_types.SessionState:
        found = await subscriptions.find_conversation(self._runtime.db, self.conversation_id)
        self._sent_version = _version(found)
        return await session_info.build_info(
            self._runtime,
            self.conversation_id,
            found,
            key=self.key,
            running=running,
            options=self.options,
            previous=previous,
        )

    @property
    def running(self) -> bool:
        """Whether a turn runs that the client was informed of."""
        return self._running and self._runtime.running(self.conversation_id)

    async def refresh(self) -> None:
        """Make the key the current head and inform the client. If the store fails, the key stays."""
        if await self._head() != self.key:
            self.subscription.request_check()
            with suppress(TimeoutError):
                # A client that does not read cannot be informed first.
                async with asyncio.timeout(subscriptions.FLUSH_SECONDS):
                    await self.subscription.flush()

    async def _head(self, default: str | None = None) -> str:
        """Return the current head; if the store fails, the default or the current key."""
        try:
            return (await self._runtime.db.snapshot(self.conversation_id)).head_id
        except errors.NoSuchSession:
            return self.key
        except errors.HoldfastError as error:
            logger.warning("the head of %s could not be read: %s", self.conversation_id, error)
            return default or self.key

    # --- prompts and commands ------------------------------------------------------------------------

    async def submit(
        self,
        text: str,
        images: Sequence[wire_types.ImageParams] = (),
        uid: str | None = None,
        content: types.Content | None = None,
    ) -> wire_types.SubmitResult:
        """Submit a prompt with the attached images, or with its own `content`. The caller holds `order`."""
        if len(self._prompts) > MAX_PROMPTS:
            raise errors.LimitReached(f"{MAX_PROMPTS:,} prompts are queued already. Wait for some of them.")
        if sum(len(each.message.text) for each in self._prompts) > MAX_QUEUED_CHARACTERS:
            raise errors.LimitReached(
                f"Prompts of more than {MAX_QUEUED_CHARACTERS:,} characters are queued already. Wait for some of them."
            )
        if content is None:
            attached = [*self._images, *decode_images(images)]
            if not attached and not text.strip():
                raise errors.RpcRefused(frames.INVALID_PARAMS, "The prompt is empty: send text or an image.")
            attachments.check_count(len(attached))
            if attached:
                parts = [await attachments.store_image(self._runtime.db, each) for each in attached]
                content = [{"type": "text", "text": text}, *parts] if text else parts
            self.set_options(wire_types.OptionChanges(), [])
        return self._submit(events.Submit(text, uid or message_codec.generate_uid(), content))

    def _submit(self, message: events.Submit) -> wire_types.SubmitResult:
        uid = message.uid or ""
        ahead = self._runtime.ahead(self.conversation_id)
        answered = self._runtime.submit(self.conversation_id, message)
        prompt = QueuedPrompt(uid, message, answered)
        self._prompts.append(prompt)
        self._finished_uids.discard(uid)
        answered.add_done_callback(lambda _: self._finish_prompt(prompt))
        return wire_types.SubmitResult(session_id=self.key, uid=uid, queued=ahead)

    def _finish_prompt(self, prompt: QueuedPrompt) -> None:
        """Send the end of a prompt, unless its turn has sent it."""
        self._prompts.remove(prompt)
        if prompt.answered.cancelled():
            self.subscription.put(event_messages.unfinished_prompt(prompt.uid, None, DROPPED))
        elif (error := prompt.answered.exception()) is not None and prompt.uid not in self._finished_uids:
            reason = str(error) if isinstance(error, errors.HoldfastError) else "The turn failed."
            self.subscription.put(event_messages.unfinished_prompt(prompt.uid, "failed", reason))
        self._finished_uids.discard(prompt.uid)

    def _running_uid(self) -> str | None:
        """Return the uid of the prompt of this client whose turn runs."""
        waiting = self._runtime.waiting(self.conversation_id)
        started = (each for each in self._prompts if not any(each.message is other for other in waiting))
        return next((each.uid for each in started if not each.answered.done()), None)

    async def run_command(self, line: str) -> tuple[list[runtimes.SenderEvent], list[wire_types.OutputLine]]:
        """Run a slash command; return its outcomes and its output, which is not sent as events again."""
        outcomes: list[runtimes.SenderEvent] = []
        output: list[wire_types.OutputLine] = []

        def collect(event: events.AnyEvent) -> None:
            if (sentence := wording.describe(event)) is None:
                return
            is_answer = isinstance(event, events.Answer)
            output.append(wire_types.OutputLine(level="answer" if is_answer else sentence.level, text=sentence.text))
            if is_answer or (isinstance(event, events.Notice) and event.level != "info"):
                # Others may report progress, so they are sent as events at once, too.
                self._command_output = event

        await self._runtime.send(self.conversation_id, events.Command(line), outcomes.append, collect)
        return outcomes, output

    async def compress(self, focus: str | None, keep_exchanges: int | None) -> compaction.CompactionResult:
        """Compact the conversation now; all clients of the conversation are informed."""
        runtime, conversation_id = self._runtime, self.conversation_id
        if await subscriptions.find_conversation(runtime.db, conversation_id) is None:
            raise errors.HoldfastError("Nothing to compress: the conversation has no messages yet.")
        agent = await runtime.agents.get(conversation_id)
        return await agent.compress_context(
            focus, force=True, keep_exchanges=keep_exchanges, emit=lambda event: runtime.publish(conversation_id, event)
        )

    async def title(self, wanted: str | UnsetType | None) -> tuple[str | None, bool]:
        """Return the title, after setting or removing it if requested, and whether the first prompt will set it."""
        runtime, conversation_id = self._runtime, self.conversation_id
        found = await subscriptions.find_conversation(runtime.db, conversation_id)
        if isinstance(wanted, UnsetType):
            pending = session_info.pending_title(runtime, conversation_id)
            return (pending, True) if pending is not None else (found.title if found else None, False)
        if found is None:
            title = titles.clean(wanted) if wanted is not None else None
            runtime.want_title(conversation_id, title)
            return title, title is not None
        title = await runtime.db.set_session_title(conversation_id, wanted)
        runtime.want_title(conversation_id, None)  # It replaces one that could not be set earlier.
        runtime.publish(conversation_id, events.Titled(title))
        return title, False

    # --- events --------------------------------------------------------------------------------------

    def _receive(self, event: events.AnyEvent) -> subscriptions.Received | None:
        if event is self._command_output:
            return None
        match event:
            case events.MessageStored(uid=uid, role="user"):
                self._stored_uid = uid
            case events.TurnStarted():
                self._turn_uid = self._running_uid() or self._stored_uid
            case events.TurnFinished():
                running = self._running_uid()
                self._finished_uids.update([running] if running else [])
                finished, self._turn_uid, self._stored_uid = self._turn_uid or running, None, None
                return subscriptions.Received(event, finished)
        return subscriptions.Received(event, self._turn_uid)

    def disconnect(self) -> None:
        """The client has disconnected. Another one may adopt the session until it is closed."""
        self.gone = True
        self.hurry()

    def adopt(self, client: peers.Peer) -> None:
        """Continue with another client."""
        self.client, self.gone = client, False
        self._hurried.clear()
        self.approvals.open()

    def resend_approvals(self) -> None:
        """Send the pending approval requests again."""
        for request in self.approvals.pending:
            self.subscription.put(event_messages.approval_request(request))

    async def _deliver(self, item: subscriptions.Item[wire_types.EventPayload]) -> None:
        match item:
            case wire_types.WireValue():
                await self._send(item)
            case subscriptions.Received(event, uid):
                await self._send_event(event, uid)
            case subscriptions.LogChanged() if not self.gone:
                await self._check_conversation()

    async def _send_event(self, event: events.AnyEvent, uid: str | None) -> None:
        match event:
            case events.TurnStarted():
                self._running = True
            case events.Compacted(session_id):
                await self._set_key(await self._head(session_id))
            case events.Titled():
                await self._send_info()
            case events.TurnFinished():
                # The key is updated before the reply is sent: a client may close the session as soon as it reads it.
                self._running = False
                await self._set_key(await self._head(), always=True)
        if (message := self._messages.build(event, uid)) is not None:
            await self._send(message)

    async def _check_conversation(self) -> None:
        """Send the state if another process changed the conversation."""
        try:
            found = await subscriptions.find_conversation(self._runtime.db, self.conversation_id)
        except errors.ConversationDeleted as error:
            if not self._deletion_sent:
                self._deletion_sent = True
                await self._send(wire_types.ErrorNotice(text=str(error)))
            return
        except errors.HoldfastError as error:
            logger.debug("the state of %s could not be read: %s", self.conversation_id, error)
            return
        if found is not None:
            await self._set_key(found.head_id, always=_version(found) != self._sent_version)

    async def _set_key(self, head: str, always: bool = False) -> None:
        previous, self.key = self.key, head
        self.ids.add(head)
        if previous != head or always:
            await self._send_info(previous if previous != head else None)

    async def _send_info(self, previous: str | None = None) -> None:
        try:
            # `_running` is as of the event: the turn may be over by now.
            info = await self._build_info(self._running, previous)
        except errors.HoldfastError as error:
            logger.warning("the state of %s could not be read: %s", self.conversation_id, error)
            return
        await self._send(info)

    async def _send(self, payload: wire_types.EventPayload) -> None:
        message_type = wire_types.EVENT_TYPES[type(payload)]
        while not self.gone:
            client = self.client
            try:
                await client.notify("event", wire_types.EventParams(message_type, self.key, payload))
            except errors.Gone:
                # Another client may have adopted the session meanwhile.
                self.gone = self.gone or self.client is client
            else:
                return

    # --- closing -------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Wait until every prompt is answered and its events are sent, after the end of the client's input.

        The client cannot answer approval requests any more: they are denied unless another one can.
        """
        self.approvals.close()
        while running := [prompt.answered for prompt in self._prompts]:
            await asyncio.wait(running)
        await self.subscription.drain()

    def close(self, is_alone: Callable[[], bool]) -> asyncio.Task[bool]:
        """Close the session once; the result is whether its conversation was ended. The caller holds `order`.

        The last session of a conversation ends it; `is_alone` is called right before.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(is_alone))
        return self._closing

    @property
    def is_unused(self) -> bool:
        """Whether no prompt is queued and no request to the session is running."""
        return not self._prompts and not self.order.locked()

    @property
    def closing(self) -> bool:
        return self._closing is not None

    async def wait_closed(self) -> None:
        """Wait for the end of a close, successful or not."""
        if self._closing is not None:
            await asyncio.wait([self._closing])

    async def _close(self, is_alone: Callable[[], bool]) -> bool:
        runtime, conversation_id = self._runtime, self.conversation_id
        for prompt in tuple(self._prompts):
            runtime.drop(conversation_id, prompt.message)
        if is_alone() or self._running_uid() is not None:
            runtime.interrupt(conversation_id)
        if running := [prompt.answered for prompt in self._prompts]:
            await asyncio.wait(running)
        self.subscription.stop()
        self.approvals.close()
        if is_alone():
            await runtime.wait_idle(conversation_id)
        await self.subscription.finish()
        ended = is_alone() and await self._end_conversation(is_alone)
        await self._flush()
        if ended:
            self.key = await self._head()
        return ended

    def hurry(self) -> None:
        """Do not wait for the client when the session is closed."""
        self._hurried.set()

    def abandon(self) -> None:
        """Receive, answer and send nothing more."""
        self.approvals.close()
        self.subscription.abandon()

    async def _flush(self) -> None:
        """Wait until the client has read all events, or need not: the response to the close follows them."""
        waiting = [asyncio.create_task(self.subscription.drain()), asyncio.create_task(self._hurried.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await self.subscription.close()

    async def _end_conversation(self, is_alone: Callable[[], bool]) -> bool:
        """Run the closing hooks and end the conversation, unless another client has opened it meanwhile."""
        # A client that waits for the response can resume the session and close it again.
        for _ in range(END_ATTEMPTS if self._hurried.is_set() else 1):
            try:
                return await self._runtime.end(
                    self.conversation_id, CLOSE_REASON, is_unused=is_alone, review_seconds=REVIEW_SECONDS
                )
            except errors.HoldfastError as error:
                logger.warning("%s could not be ended: %s", self.key, error)
        return False


def _version(found: types.Conversation | None) -> tuple[object, ...]:
    """Return a value that changes with every change of a conversation that clients are informed of."""
    return (found.epoch, found.last_seq, found.title) if found else ()


def decode_images(images: Sequence[wire_types.ImageParams]) -> list[attachments.ImageData]:
    """Decode the images of a request. Raises RpcRefused for an invalid one."""
    return [attachments.decode_image(image.data, f"Image {number}") for number, image in enumerate(images, 1)]
