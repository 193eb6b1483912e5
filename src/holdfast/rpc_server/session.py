"""A session that a client has open: its key, what it is told of, its prompts, and how it is left.

The conversation stays the same for life; the key is its head, and follows it. Everything a client is told goes through
one backlog, and only whoever works that off changes the key: so no event has a key that was not told before.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import NamedTuple, Protocol, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from holdfast import errors, events, types
from holdfast.compaction import base as compaction
from holdfast.rpc_server import attachments, event_messages, event_queue, wire_types
from holdfast.rpc_server import notifications as rpc_server_notifications
from holdfast.rpc_server import session_info as standing
from holdfast.runtime import runtime
from holdfast.store import message_codec, notifications, titles

logger = logging.getLogger("holdfast.terminal")

CLOSE = "tui_close"
FLUSH = 1.0
"""Seconds a client may take to read what it is still to be told, before others go on without it."""
REVIEW = 5.0
"""Seconds that the review of the last turn may still take when its conversation is left."""
WAITING = 1_000
"""Prompts of one session that may wait."""
DROPPED = "It was taken back before its turn began."


class Client(Protocol):
    """The program at the other end."""

    async def notify(self, method: str, params: object) -> None:
        """Raises Gone when nobody is there any more."""


class Prompt(NamedTuple):
    """A message of this client's on its way."""

    uid: str
    message: events.Submit
    answered: asyncio.Future[events.TurnResult]


class Held:
    """One of the sessions of one client."""

    def __init__(self, door: runtime.Runtime, client: Client, conversation_id: str, key: str) -> None:
        self._door, self.client = door, client
        self.gone = False
        """Whether its client vanished. Until it is closed, another one may take it up."""
        self.conversation_id, self.key = conversation_id, key
        self.ids = {conversation_id, key}
        """Every id it is known to have had."""
        self.order = asyncio.Lock()
        """What changes a session is done in the order it was asked for. Held for what is quick, and nothing else."""
        self._teller = event_messages.Teller(wire_types.Chosen())
        self._images: list[attachments.Picture] = []
        self._backlog = event_queue.Backlog()
        self._prompts: list[Prompt] = []
        self._waiting = 0
        self.spoken = False
        """Whether a prompt was taken: then its client knows that it is open."""
        self._over = set[str]()
        self._stored: str | None = None
        self._turn: str | None = None
        self._running = door.running(conversation_id)
        self._skipped: events.AnyEvent | None = None
        self._looking: event_queue.Look | None = None
        self._closing: asyncio.Task[bool] | None = None
        self._mark: standing.Mark | None = None
        """Where the conversation stood when the client was told last."""
        self._deleted = False
        self._hurried, self._left = asyncio.Event(), False
        self._listening, self._answering = ExitStack(), ExitStack()
        self._attend()
        self._begin_telling()

    def _attend(self) -> None:
        """Hear what happens, and answer; not for one who is gone."""
        door, here = self._door, self.conversation_id
        self._listening.enter_context(door.subscribe(here, on_event=self._heard))
        self._listening.enter_context(door.db.notifications.listen(self._hinted))
        if not self.gone:
            self._answer()

    def _answer(self) -> None:
        before, self._answering = self._answering, ExitStack()
        self._answering.enter_context(self._door.approvals.accept_answers(self.conversation_id))
        before.close()

    # --- how it stands -------------------------------------------------------------------------------

    @property
    def options(self) -> wire_types.Chosen:
        return self._teller.options

    def choose(self, wanted: wire_types.Options, pictures: list[attachments.Picture] | None) -> None:
        """Change what is given; the pictures are those of the options, read."""
        if pictures is not None:
            self._images = pictures
        given = {
            name: value
            for name in ("columns", "show_reasoning", "tool_progress")
            if (value := getattr(wanted, name)) is not UNSET
        }
        self._teller.options = msgspec.structs.replace(self._teller.options, images=len(self._images), **given)

    @property
    def size(self) -> int:
        """The bytes of what waits here to be asked."""
        return self._waiting + sum(len(each.data) for each in self._images)

    async def info(self) -> wire_types.Info:
        """How it stands now; raises what keeps the store from telling."""
        return await self._standing(standing.Own(self.key, self.running, self.options))

    async def _standing(self, own: standing.Own) -> wire_types.Info:
        found = await standing.begun(self._door.db, self.conversation_id)
        self._mark = standing.mark(found)
        return await standing.session(self._door, self.conversation_id, found, own)

    @property
    def running(self) -> bool:
        """Whether a turn runs that the client was told of. One that broke down had no end to tell of."""
        return self._running and self._door.running(self.conversation_id)

    async def follow(self) -> None:
        """Have the key be the head, whoever moved it; the client is told. Where the store cannot say, it stays."""
        if await self._head() != self.key and not self._telling.done():
            # Who does not read what it is told cannot be told it first.
            await asyncio.wait([self._look().done], timeout=FLUSH)

    def glance(self) -> None:
        """Others may have written. During a turn of ours its end is soon enough, and nobody hears of it who is gone."""
        if not (self.running or self.gone or self.closing):
            self._look()

    async def _head(self, otherwise: str | None = None) -> str:
        """The head now; where the store cannot say, the other one or the key that there is."""
        try:
            return (await self._door.db.snapshot(self.conversation_id)).head_id
        except errors.NoSuchSession:
            return self.key
        except errors.HoldfastError as error:
            logger.warning("the head of %s could not be looked up: %s", self.conversation_id, error)
            return otherwise or self.key

    def _look(self) -> event_queue.Look:
        """One look is enough for all that came before it."""
        if self._looking is None:
            self._looking = event_queue.Look(asyncio.get_running_loop().create_future())
            self._backlog.put(self._looking)
        return self._looking

    # --- what is said --------------------------------------------------------------------------------

    async def submit(
        self,
        text: str,
        images: Sequence[wire_types.Image] = (),
        uid: str | None = None,
        content: types.Content | None = None,
    ) -> wire_types.Submitted:
        """A prompt, and with it what is attached; a `content` has its own parts. For those who have the `order`."""
        if len(self._prompts) > WAITING:
            raise errors.LimitReached(f"{WAITING:,} prompts wait already. Wait for some of them.")
        if content is None:
            pictures = [*self._images, *attachments.read(images)]
            if not pictures and not text.strip():
                raise errors.RpcRefused(wire_types.INVALID, "A prompt has words, or an image.")
            if len(pictures) > attachments.MOST:
                raise errors.RpcRefused(wire_types.INVALID, f"A prompt has at most {attachments.MOST} images.")
            content = await attachments.content(self._door.db, text, pictures)
            self.choose(wire_types.Options(), [])
        return self._submitted(events.Submit(text, uid or message_codec.generate_uid(), content))

    def _submitted(self, message: events.Submit) -> wire_types.Submitted:
        uid = message.uid or ""
        before = self._door.ahead(self.conversation_id)
        answered = self._door.submit(self.conversation_id, message)
        prompt = Prompt(uid, message, answered)
        self._prompts.append(prompt)
        self._waiting += sys.getsizeof(message.text)
        self.spoken = True
        self._over.discard(uid)
        answered.add_done_callback(lambda _: self._answered(prompt))
        return wire_types.Submitted(session_id=self.key, uid=uid, queued=before)

    def _answered(self, prompt: Prompt) -> None:
        """Whatever became of a prompt, its client is told once that it is over."""
        self._prompts.remove(prompt)
        self._waiting -= sys.getsizeof(prompt.message.text)
        if prompt.answered.cancelled():
            self._backlog.put(event_messages.unfinished(prompt.uid, None, DROPPED))
        elif (error := prompt.answered.exception()) is not None and prompt.uid not in self._over:
            why = str(error) if isinstance(error, errors.HoldfastError) else "The turn failed."
            self._backlog.put(event_messages.unfinished(prompt.uid, "failed", why))
        self._over.discard(prompt.uid)

    def _own(self) -> str | None:
        """The uid of the prompt of this client's whose turn runs, if it is one of them."""
        waiting = self._door.waiting(self.conversation_id)
        taken = (each for each in self._prompts if not any(each.message is other for other in waiting))
        return next((each.uid for each in taken if not each.answered.done()), None)

    async def carry_out(self, line: str) -> tuple[list[runtime.SenderEvent], list[wire_types.Line]]:
        """A slash command: what is for whoever asked, and what it said. That is not told as events once more."""
        told: list[runtime.SenderEvent] = []
        said: list[wire_types.Line] = []

        def own(event: events.AnyEvent) -> None:
            match event:
                case events.Answer(words):
                    said.append(wire_types.Line(level="answer", text=words))
                    self._skipped = event
                case events.Notice(words, "info"):
                    # It may be about what is under way, and is told at once as well.
                    said.append(wire_types.Line(level="info", text=words))
                case events.Notice(words, level):
                    said.append(wire_types.Line(level=level, text=words))
                    self._skipped = event
                case events.Compacted():
                    said.append(wire_types.Line(level="info", text=event.text))
                case events.Titled(title):
                    said.append(wire_types.Line(level="info", text=f"The title is {title} now."))

        await self._door.send(self.conversation_id, events.Command(line), told.append, own)
        return told, said

    async def compress(self, focus: str | None, keep_exchanges: int | None) -> compaction.Compaction:
        """Compact now, and wait for it; everybody who listens is told."""
        door, here = self._door, self.conversation_id
        if await standing.begun(door.db, here) is None:
            raise errors.HoldfastError("The conversation begins with its first prompt: there is nothing to compress.")
        agent = await door.agents.get(here)
        return await agent.compress_context(
            focus, force=True, keep_exchanges=keep_exchanges, emit=lambda event: door.publish(here, event)
        )

    async def title(self, wanted: str | UnsetType | None) -> tuple[str | None, bool]:
        """The title, given or taken away where that is wanted; and whether it only comes with the first prompt."""
        door, here = self._door, self.conversation_id
        found = await standing.begun(door.db, here)
        if isinstance(wanted, UnsetType):
            pending = standing.pending_title(door, here)
            return (pending, True) if pending is not None else (found.title if found else None, False)
        if found is None:
            title = titles.clean(wanted) if wanted is not None else None
            door.want_title(here, title)
            return title, title is not None
        given = await door.db.set_session_title(here, wanted)
        # One that could not be given earlier is not wanted any more.
        door.want_title(here, None)
        door.publish(here, events.Titled(given))
        return given, False

    # --- what is heard -------------------------------------------------------------------------------

    def _heard(self, emitted: events.Emitted) -> None:
        event = emitted.event
        if event is self._skipped:
            return
        match event:
            case events.MessageStored(uid=uid, role="user"):
                self._stored = uid
            case events.TurnStarted():
                self._turn = self._own() or self._stored
            case events.TurnFinished():
                own = self._own()
                self._turn = self._turn or own
                self._over.update([own] if own else [])
        self._backlog.put(event_queue.Heard(event, self._turn))
        if isinstance(event, events.TurnFinished):
            self._turn = self._stored = None

    def _hinted(self, hint: notifications.Hint) -> None:
        """Another process wrote."""
        if hint.kind in ("moved", "lost") and hint.is_about(self.conversation_id):
            self.glance()

    def vanish(self) -> None:
        """Its client is gone; it may come back for what is not being closed."""
        self.gone = True
        self.hurry()

    def take_up(self, client: Client) -> None:
        """Go on with this client."""
        self.client, self.gone = client, False
        self._hurried.clear()
        self._answer()

    def ask_again(self) -> None:
        """Tell the client of what is asked and not answered yet."""
        for question in self._door.approvals.pending(self.conversation_id):
            self._backlog.put(rpc_server_notifications.Told("approval.request", event_messages.asked(question.asked)))

    # --- what is told --------------------------------------------------------------------------------

    def _begin_telling(self) -> None:
        self._telling = asyncio.create_task(self._tell())
        self._telling.add_done_callback(self._broke_down)

    def _broke_down(self, telling: asyncio.Task[None]) -> None:
        """What is wrong with one thing keeps nothing behind it from being told, whatever it is."""
        if not telling.cancelled() and (error := telling.exception()) is not None:
            logger.error("a client could not be told of something in %s", self.conversation_id, exc_info=error)
            if not self._left:
                self._begin_telling()

    async def _tell(self) -> None:
        while True:
            item = await self._backlog.first()
            try:
                match item:
                    case rpc_server_notifications.Told():
                        await self._send(item)
                    case event_queue.Look():
                        self._looking = None
                        await self._looked()
                    case event_queue.Heard(event, uid):
                        await self._tell_of(event, uid)
                    case _:
                        assert_never(item)
            except (errors.HoldfastError, ValueError, TypeError, RecursionError):
                # What cannot be looked up, or be JSON, keeps nothing behind it from being told.
                logger.exception("a client could not be told of something in %s", self.conversation_id)
            finally:
                self._backlog.done()
                if isinstance(item, event_queue.Look) and not item.done.done():
                    item.done.set_result(None)

    async def _tell_of(self, event: events.AnyEvent, uid: str | None) -> None:
        match event:
            case events.TurnStarted():
                self._running = True
            case events.Compacted(session_id):
                # It may have moved on since.
                await self._moved(await self._head(session_id))
            case events.Titled():
                await self._send_info()
            case events.TurnFinished():
                # The key is the head before the reply is told: whoever reads the reply may close at once.
                self._running = False
                await self._moved(await self._head(), always=True)
        for told in self._teller.tell(event, uid):
            await self._send(told)

    async def _looked(self) -> None:
        """Tell how it stands, where that is another way than it was told."""
        try:
            found = await standing.begun(self._door.db, self.conversation_id)
        except errors.ConversationDeleted as error:
            if not self._deleted:
                self._deleted = True
                await self._send(
                    rpc_server_notifications.Told("error", rpc_server_notifications.Failure(text=str(error)))
                )
            return
        except errors.HoldfastError as error:
            logger.debug("how %s stands could not be looked up: %s", self.conversation_id, error)
            return
        if found is not None:
            await self._moved(found.head_id, always=standing.mark(found) != self._mark)

    async def _moved(self, head: str, always: bool = False) -> None:
        previous, self.key = self.key, head
        self.ids.add(head)
        if previous != head or always:
            await self._send_info(previous if previous != head else None)

    async def _send_info(self, previous: str | None = None) -> None:
        # What is told is as of the event: by now the turn may be over.
        own = standing.Own(self.key, self._running, self.options, previous)
        try:
            info = await self._standing(own)
        except errors.HoldfastError as error:
            logger.warning("how %s stands could not be looked up: %s", self.conversation_id, error)
            return
        await self._send(rpc_server_notifications.Told("session.info", info))

    async def _send(self, told: rpc_server_notifications.Told) -> None:
        while not self.gone:
            client = self.client
            try:
                await client.notify("event", rpc_server_notifications.Event(told.type, self.key, told.payload))
            except errors.Gone:
                # Another one may have taken it up meanwhile, and is told.
                self.gone = self.gone or self.client is client
            else:
                return

    # --- leaving -------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Until every prompt of the client is over and it was told so. One that asks nothing more answers nothing more,
        either: what it would have to permit is denied, unless another one can."""
        self._answering.close()
        while running := [prompt.answered for prompt in self._prompts]:
            await asyncio.wait(running)
        await self._backlog.told_all()

    def close(self, alone: Callable[[], bool]) -> asyncio.Task[bool]:
        """Let go of it, once for all who ask for it; whether that ended the conversation's head. For those who have the
        `order`.

        Who is `alone` in having it open ends it, which is asked when it is time. Where the store fails, that is raised,
        and it is open again.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(alone))
        return self._closing

    @property
    def closing(self) -> bool:
        return self._closing is not None

    async def closed(self) -> None:
        """Until it is, or could not be."""
        if self._closing is not None:
            await asyncio.wait([self._closing])

    async def _close(self, alone: Callable[[], bool]) -> bool:
        door, here = self._door, self.conversation_id
        for prompt in tuple(self._prompts):
            door.drop(here, prompt.message)
        if alone() or self._own() is not None:
            door.interrupt(here)
        if running := [prompt.answered for prompt in self._prompts]:
            await asyncio.wait(running)
        self._listening.close()
        self._answering.close()
        if alone():
            await door.wait_idle(here)
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH):
                await self._backlog.told_all()
        try:
            ended = alone() and await self._ended(alone)
        except errors.HoldfastError:
            self._closing = None
            self._attend()
            raise
        await self._told_all()
        if ended:
            self.key = await self._head()
        return ended

    def hurry(self) -> None:
        """Once it is closed, its client is not waited for any longer."""
        self._hurried.set()

    def abandon(self) -> None:
        """Leave it as it is: hear, answer and tell nothing more."""
        self._listening.close()
        self._answering.close()
        self._left = True
        self._telling.cancel()

    async def _told_all(self) -> None:
        """Until the client was told all there is, or need not be: its answer comes behind that by the same way."""
        waiting = [asyncio.create_task(self._backlog.told_all()), asyncio.create_task(self._hurried.wait())]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        self._left = True
        for task in (*waiting, self._telling):
            task.cancel()
        await asyncio.wait([*waiting, self._telling])
        if self._looking is not None and not self._looking.done.done():
            self._looking.done.set_result(None)

    async def _ended(self, alone: Callable[[], bool]) -> bool:
        """Tell those who want to hear of it, and end the head: the store knows which one that is."""
        door, here = self._door, self.conversation_id
        if (agent := door.agents.peek(here)) is not None:
            # What is summed up now could not be committed any more.
            await agent.context_window.close()
            await agent.memory.wait_for_review(REVIEW)
            await agent.leave()
        try:
            # Somebody may have opened it meanwhile.
            ended = alone() and await door.db.end_conversation(here, CLOSE)
        except errors.NoSuchSession:
            ended = False
        door.want_title(here, None)
        return ended
