"""Process the inbound messages of a chat, oldest first, each to exactly one outcome.

Correctness comes from the store: the conversation of a message is fixed there before its turn, its uid is derived from
the platform's id, and its outcome and reply are one transaction. If a process dies, another one finishes its work; two
processes that work on the same message write its effects once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from time import monotonic
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast import errors, events, fault_points, types
from holdfast.agent import commands as registry
from holdfast.agent import loop
from holdfast.agent.commands import turns
from holdfast.gateway import (
    active_chat,
    chat_leases,
    commands,
    gateway_context,
    message_policy,
    outbox,
    platform,
    replies,
    routes,
    spans,
    turn_progress,
)
from holdfast.model import request_common
from holdfast.runtime import inbox_messages
from holdfast.runtime import runtime as runtimes
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

MAX_READ = 200
"""How many waiting messages of a chat are read."""
MAX_HARMLESS = 50
"""How many attempts may fail for reasons other than the message before they count."""
RECHECK_SECONDS = 5.0
"""Access is checked again for a message that waited for longer."""
MAX_ATTEMPTS = 5
"""The maximum number of attempts to process a message."""
GAVE_UP = "This message could not be processed in {count} attempts and was given up. Please send it again."
NO_ACCESS = "This message was not processed: you do not have access to its conversation anymore."
FILE_SAVED = "The file {name} is in the working folder: {path}"
FILE_NOT_SAVED = (
    "The file {name} could not be saved in the working folder ({error}). If it is text, read_output reads it: {digest}"
)
STOPPING = "the gateway is stopping"
# After these the same message is processed again, here or in another process.
_RETRY_EXITS: frozenset[events.Exit] = frozenset(("busy", "store", "lease_lost"))


class RetryLater(Exception):
    """A message cannot be processed now."""


class Withdrawn(Exception):
    """A message was withdrawn before its turn began."""


class Worker:
    """Processes chats. `stopping`: begin nothing new, and leave interrupted turns to other processes."""

    def __init__(self, context: gateway_context.GatewayContext) -> None:
        self.context = context
        self.bindings = routes.RouteBindings(context.db, context.settings.reset, context.clock)
        self.stopping = False
        self._slots = asyncio.Semaphore(context.settings.chats)
        self.queued = 0
        """The number of chats that wait for a slot. If there are any, a chat gives up its slot after each message."""
        self.harmless = Counter[int]()
        """Attempts that failed for reasons other than the message, by inbound message."""

    async def process(self, chat: active_chat.ActiveChat) -> None:
        """Process all open messages of a chat. Raises Busy if another process works on it, or RetryLater."""
        self.queued += 1
        try:
            await self._slots.acquire()
        finally:
            self.queued -= 1
        try:
            await ChatWorker(self, chat).run()
        finally:
            self._slots.release()

    def is_given_up(self, inbound: types.InboundMessage) -> bool:
        """Return whether a message failed too often. Attempts that failed for other reasons do not count."""
        counted = inbound.attempts - min(self.harmless[inbound.id], MAX_HARMLESS)
        return counted >= MAX_ATTEMPTS

    def is_late(self, inbound: types.InboundMessage) -> bool:
        return self.context.clock() - inbound.at > RECHECK_SECONDS

    def select(self, waiting: Sequence[types.InboundMessage], route: types.Route) -> tuple[int, str, list[int]] | None:
        """Return the first message, its conversation and the messages joined to it, within the reading transaction.

        None if that needs further reads or checks.
        """
        first, behind = waiting[0], waiting[1:]
        is_fixed = bool(first.target or platform.read_terms(first).conversation_id)
        target = None if is_fixed else self.bindings.known_target(route, routes.principal_of(first))
        if target is None or self.is_given_up(first) or self.is_late(first) or withdrawal(first, behind):
            return None
        return first.id, target, [each.id for each in self.joined(first, behind)]

    def joined(
        self, inbound: types.InboundMessage, behind: Sequence[types.InboundMessage]
    ) -> list[types.InboundMessage]:
        """Return the messages that are answered together with a message: those of the same sender right after it."""
        found = list[types.InboundMessage]()
        is_message = message_policy.message_text(inbound.text) is not None
        if self.context.settings.busy not in message_policy.JOINING or inbound.attempts or not is_message:
            return found
        for each in behind[: message_policy.MAX_JOINED - 1]:
            if message_policy.message_text(each.text) is None or each.sender != inbound.sender or each.attempts:
                break
            if withdrawal(each, behind):
                break
            found.append(each)
        return found


class ChatWorker:
    """Processes one chat under its lease."""

    held: chat_leases.HeldChatLease

    def __init__(self, worker: Worker, chat: active_chat.ActiveChat) -> None:
        self._worker, self._chat = worker, chat
        self._context, self._db = worker.context, worker.context.db

    async def run(self) -> None:
        worker, chat = self._worker, self._chat
        if worker.stopping:
            return
        taken = await async_db.await_or_release(self._take_next(), self._release_taken)
        if taken.lease is None:
            return
        async with chat_leases.hold(self._db, taken.lease) as self.held:
            fault_points.reach("gateway", "claimed")
            while taken.waiting or chat.notices:
                if taken.waiting:
                    chat.attempts = taken.waiting[0].attempts
                    await self._process_first(taken)
                else:
                    await self._answer_notices(chat.notices.pop())
                # Before the next message is taken: taking it begins it, and a command must not be begun twice.
                if self.held.released or worker.stopping:
                    return
                if worker.queued:
                    chat.has_news = True  # The chat continues behind those that wait for its slot.
                    return
                taken = await self._take_next(self.held.lease)

    async def _take_next(self, lease: types.ChatLease | None = None) -> types.NextInbound:
        """Read the open messages under a lease, and begin the first one if `select` can tell its conversation."""
        chat, ttl = self._chat, chat_leases.TTL_SECONDS
        chat.clear_news()
        chat.has_more = False
        return await self._db.mail.begin_next_inbound(
            chat.route, self._worker.select, lease=lease, idle=bool(chat.notices), ttl=ttl, limit=MAX_READ
        )

    async def _release_taken(self, taken: types.NextInbound) -> None:
        if taken.lease is not None:
            await chat_leases.release(self._db, taken.lease)

    async def _process_first(self, taken: types.NextInbound) -> None:
        chat, worker = self._chat, self._worker
        inbound, behind = taken.waiting[0], taken.waiting[1:]
        chat.has_more, chat.behind = bool(behind), behind
        if await self._settle_unprocessed(inbound, behind):
            return
        joined = worker.joined(inbound, behind)
        begun = taken.begun
        if begun is None:
            if worker.is_late(inbound) and not await self._context.may_speak(inbound.platform, inbound.sender):
                await self._settle(inbound, "refused", None)
                return
            target = await self._target(inbound)
            if target is None:
                await self._settle(inbound, "refused", NO_ACCESS)
                return
            begun = await self._db.mail.begin_inbound(self.held.lease, inbound.id, target, [each.id for each in joined])
        fault_points.reach("gateway", "begun")
        if begun is None:
            return
        self._context.metrics.count_attempt(begun.attempts)
        chat.has_more, chat.behind = len(behind) > len(joined), behind[len(joined) :]
        chat.inbox_empty = taken.inbox_empty
        if message_policy.message_text(begun.text) is None:
            await self._run_command(begun, behind)
        else:
            await self._answer_message(begun)

    async def _target(self, inbound: types.InboundMessage) -> str | None:
        """Return the conversation of a message; None if the sender was linked to its owner and is not anymore."""
        principal = routes.principal_of(inbound)
        fixed = inbound.target or platform.read_terms(inbound).conversation_id
        if fixed is None:
            return await self._worker.bindings.target(inbound.route, principal)
        try:
            owner = (await self._db.conversation(fixed)).owner
        except errors.NoSuchSession:
            return fixed
        return fixed if principal.may_read(owner) else None

    async def _settle_unprocessed(self, inbound: types.InboundMessage, behind: Sequence[types.InboundMessage]) -> bool:
        """Settle a message that was withdrawn, replaced by an edit, or given up; return whether it was."""
        outcome, text = withdrawal(inbound, behind), None
        if outcome is None and self._worker.is_given_up(inbound):
            outcome, text = "gave_up", GAVE_UP.format(count=inbound.attempts)
        if outcome is None:
            return False
        uid = uid_of(inbound)
        # Settled with the log entry that an earlier attempt made: redacting the entry then redacts the message, too.
        seq = await self._find_seq(inbound, uid) or await self._find_seq(inbound, loop.steering_uid(uid))
        await self._settle(inbound, outcome, text, seq=seq, conversation_id=inbound.target if seq else None)
        return True

    # --- a message -----------------------------------------------------------------------------------

    async def _answer_message(self, inbound: types.InboundMessage) -> None:
        if inbound.attempts > 1:
            # It may have been added to a turn before a process died.
            seq = await self._find_seq(inbound, loop.steering_uid(uid_of(inbound)))
            if seq is not None:
                await self._settle(inbound, "steered", None, seq=seq, conversation_id=inbound.target)
                return
        every = [inbound]
        if inbound.attempts > 1 or self._context.settings.busy in message_policy.JOINING:
            every += await self._db.mail.joined_inbound(inbound.id)
        text = "\n\n".join(filter(None, (message_policy.message_text(each.text) for each in every)))
        quoting = [await self._resolve_quote(each) for each in every]
        notes = [await self._save_file(routes.principal_of(inbound), part) for part in received_files(every)]
        content = replies.user_content(quoting, text, routes.is_shared(inbound.route), notes)
        terms = platform.read_terms(every[-1])
        submit = events.Submit(text, uid_of(inbound), content, inbound.route, terms.instructions, terms.max_output)
        await self._answer(inbound, submit)

    async def _resolve_quote(self, inbound: types.InboundMessage) -> types.InboundMessage:
        """Add the text of the quoted message if the platform did not send it."""
        quote = platform.read_extra(inbound, platform.Quote)
        if quote is None or quote.text:
            return inbound
        quoted = await self._db.mail.inbound_by_key(inbound.platform, quote.key)
        if quoted is None or quoted.route != inbound.route:
            return inbound
        known = msgspec.structs.replace(quote, text=quoted.text, name=quoted.name)
        return msgspec.structs.replace(inbound, parts=[msgspec.to_builtins(known), *inbound.parts])

    async def _save_file(self, principal: routes.Principal, part: dict[str, Any]) -> str:
        """Save a received file in the working folder, and return the note for the model."""
        name, digest, error = repr(part["name"]), part["blob"], "no working folder"
        try:
            if self._context.save_file is not None:
                path = await self._context.save_file(principal, digest, part["name"])
                return FILE_SAVED.format(name=name, path=path)
        except (errors.HoldfastError, OSError) as failure:
            logger.warning("could not save a received file: %s", failure)
            error = str(failure)
        return FILE_NOT_SAVED.format(name=name, digest=digest, error=error)

    async def _find_seq(self, inbound: types.InboundMessage, uid: str) -> int | None:
        """Return the log entry of a message in its conversation, if there is one."""
        try:
            return None if inbound.target is None else await self._db.find_seq(inbound.target, uid)
        except errors.NoSuchSession:
            return None

    async def _answer(self, inbound: types.InboundMessage, message: events.Submit, prefix: str = "") -> None:
        """Run the turn of a message, and store its outcome with the reply; `prefix` precedes the reply."""
        conversation_id = inbound.target or ""
        try:
            result, progress = await self._run_turn(inbound, conversation_id, message)
        except Withdrawn:
            await self._settle(inbound, "interrupted", None)
            return
        if result.failed and progress.seq is None:
            principal = routes.principal_of(inbound)
            other = await self._worker.bindings.other_target(inbound.route, conversation_id, principal)
            if other is not None:
                result, progress = await self._run_turn(inbound, other, message)
        fault_points.reach("gateway", "answered")
        is_stored = progress.seq is not None
        messages: Sequence[types.Message] = result.messages
        if progress.seq is not None and inbound.attempts > 1:
            messages = await turn_progress.read_turn(self._db, result.conversation_id, progress.seq)
        # A turn that yielded to the next message is answered with that one.
        text = None if result.interrupted and progress.yielded else replies.result_text(result)
        await self._settle(
            inbound,
            _outcome(result, text),
            "\n".join(each for each in (prefix, text) if each) or None,
            seq=progress.seq,
            conversation_id=result.conversation_id if is_stored else None,
            answer_seq=await self._answer_seq(result, progress.seq) if is_stored else None,
            attachments=replies.find_attachments(messages),
        )

    async def _answer_seq(self, result: events.TurnResult, asked: int | None) -> int | None:
        """Return the log entry with the text of the reply, also if an earlier attempt stored it."""
        if result.messages and result.messages[-1].role == "assistant":
            return result.messages[-1].seq
        if asked is None or not result.final_response:
            return None
        after = await self._db.transcript(result.conversation_id, asked)
        return next((each.seq for each in after if each.role == "assistant" and not each.tool_calls), None)

    async def _run_turn(
        self, inbound: types.InboundMessage, conversation_id: str, message: events.Submit
    ) -> tuple[events.TurnResult, turn_progress.TurnProgress]:
        """Run a turn and return its result. Raises RetryLater if there is none."""
        with spans.span(
            "holdfast.turn",
            platform=inbound.platform,
            arrival=inbound.id,
            attempts=inbound.attempts,
            session=conversation_id,
        ) as set_attribute:
            running, answered = await self._submit(inbound, conversation_id, message)
            await self._settle_steered(running)
            if answered.cancelled():
                raise Withdrawn if running.progress.yielded else RetryLater(STOPPING)
            if (error := answered.exception()) is not None:
                raise RetryLater("the turn failed with an internal error") from error
            result = answered.result()
            if result.exit_reason in _RETRY_EXITS or (self._worker.stopping and result.interrupted):
                self._worker.harmless[inbound.id] += 1
                raise RetryLater(result.error or STOPPING)
            set_attribute("exit_reason", result.exit_reason)
            return result, running.progress

    async def _submit(
        self, inbound: types.InboundMessage, conversation_id: str, message: events.Submit
    ) -> tuple[active_chat.RunningTurn, asyncio.Future[events.TurnResult]]:
        """Submit a message to the runtime and wait until its turn is over."""
        chat, to = self._chat, gateway_context.reply_address(inbound)
        async with (
            self._context.runtimes.use(routes.principal_of(inbound)) as runtime,
            turn_progress.follow(self._context, runtime, conversation_id, to, inbound, message.uid or "") as progress,
        ):
            running, began = active_chat.RunningTurn(runtime, conversation_id, inbound, progress, message), monotonic()
            inbox_empty = chat.inbox_empty and conversation_id == inbound.target
            answered = runtime.submit(conversation_id, message, inbox_empty=inbox_empty)
            chat.inbox_empty = False
            await self._wait_for(running, answered)
            self._context.metrics.observe_turn(monotonic() - began)
        return running, answered

    # --- messages that arrive during a turn ------------------------------------------------------------

    async def _wait_for(self, running: active_chat.RunningTurn, turn: asyncio.Future[Any]) -> None:
        """Wait for a turn, and handle the messages that arrive meanwhile."""
        chat, running.turn = self._chat, turn
        waiting: Sequence[types.InboundMessage] | None = chat.behind
        try:
            while not turn.done():
                try:
                    if waiting is None:
                        chat.clear_news()
                        waiting = await self._db.mail.open_inbound(chat.route, MAX_READ)
                    await self._handle_arrivals(running, waiting)
                except errors.StoreError as error:
                    # Retried, because a command must reach a turn that runs for long.
                    logger.warning("could not read the messages of %s during a turn: %s", chat.route, error)
                    chat.has_more = True
                waiting = None
                await chat.wait_undisturbed(turn, self._context.settings.poll)
        except errors.LeaseLost:
            logger.info("another process works on %s now", chat.route)
        except Exception:
            # The messages wait for the end of the turn, as they do by default.
            logger.exception("could not handle messages during a turn")
            chat.has_more = True
        if not turn.done():
            await asyncio.wait([turn])

    async def _handle_arrivals(self, running: active_chat.RunningTurn, waiting: Sequence[types.InboundMessage]) -> None:
        ahead = undecided = False
        for inbound in waiting:
            seen = inbound.id in running.seen
            action = "later" if seen else running.action_for(self._context.settings.busy, inbound, ahead)
            if action is None:
                undecided, running.progress.on_own = True, self._chat.wake
            if running.over:
                break
            if not seen and action is not None and (action in ("now", "withdraw") or not undecided):
                running.seen.add(inbound.id)
                await self._handle_arrival(running, inbound, waiting, action)
            # A message stays behind those that wait before it; those added to the turn do not wait.
            ahead = ahead or (action != "now" and inbound.id not in running.included)
        self._chat.has_more = self._chat.has_more or any(inbound.id not in running.seen for inbound in waiting)

    async def _handle_arrival(
        self,
        running: active_chat.RunningTurn,
        inbound: types.InboundMessage,
        waiting: Sequence[types.InboundMessage],
        action: message_policy.Action,
    ) -> None:
        self._chat.has_more = self._chat.has_more or action != "now"
        if action == "interrupt":
            running.progress.yielded = True
            running.runtime.interrupt(running.conversation_id)
        if action == "withdraw":
            running.withdraw()
        if action not in ("now", "steer") or inbound.attempts:
            return  # It is processed after the turn.
        try:
            begun = await self._db.mail.begin_inbound(self.held.lease, inbound.id, running.conversation_id)
        except errors.StoreError:
            running.seen.discard(inbound.id)  # Handled again at the next poll.
            raise
        if begun is None:
            return
        if action == "now":
            own = {inbound.id, running.inbound.id if running.inbound else 0}
            await self._run_command(begun, [each for each in waiting if each.id not in own], running)
            return
        uid, text = uid_of(inbound), message_policy.message_text(inbound.text) or ""
        if routes.is_shared(inbound.route):
            text = request_common.content_text(replies.user_content([inbound], text, shared=True) or text)
        if running.runtime.steer(running.conversation_id, text, uid):
            running.steered[loop.steering_uid(uid)] = inbound
            if message_policy.steering_text(inbound.text) is not None:
                running.runtime.send_to_chat(running.conversation_id, inbound.route, turns.STEERED)

    async def _settle_steered(self, running: active_chat.RunningTurn) -> None:
        """Settle the messages that the model received during the turn; others are processed after it."""
        for uid, inbound in running.steered.items():
            if (seq := running.progress.stored.get(uid)) is not None:
                conversation_id = running.conversation_id
                await self._settle(inbound, "steered", None, seq=seq, conversation_id=conversation_id, is_final=False)

    # --- a command -----------------------------------------------------------------------------------

    async def _run_command(
        self,
        inbound: types.InboundMessage,
        waiting: Sequence[types.InboundMessage],
        running: active_chat.RunningTurn | None = None,
    ) -> None:
        conversation_id = running.conversation_id if running else inbound.target or ""
        if inbound.attempts > 1:
            repeated = None if running else await commands.find_submitted(self._db, inbound, uid_of(inbound))
            if repeated is not None:
                await self._answer(inbound, repeated)
                return
            result = commands.CommandResult(commands.NOT_REPEATED.format(line=f"/{registry.split(inbound.text)[0]}"))
        elif refusal := await commands.check_permission(self._context, inbound):
            result = commands.CommandResult(refusal)
        else:
            result = await self._execute(inbound, conversation_id, waiting, running)
        text = commands.format_reply(self._context, inbound, result.text)
        for dropped in result.dropped:
            await self._db.mail.settle_inbound(self.held.lease, dropped, "dropped")
        if result.submit is not None and running is None:
            submitted, content = result.submit.text, result.submit.content
            if content is None:
                content = replies.user_content([inbound], submitted, routes.is_shared(inbound.route))
            await self._answer(inbound, events.Submit(submitted, uid_of(inbound), content, inbound.route), text)
            return
        existing = await self._existing(conversation_id)
        await self._settle(inbound, "command", text, conversation_id=existing, is_final=running is None)

    async def _execute(
        self,
        inbound: types.InboundMessage,
        conversation_id: str,
        waiting: Sequence[types.InboundMessage],
        running: active_chat.RunningTurn | None,
    ) -> commands.CommandResult:
        # A process that was suspended since the command was begun, and lost its lease, must not run it.
        await self._check_lease()
        fault_points.reach("gateway", "commanded")
        async with self._context.runtimes.use(routes.principal_of(inbound)) as runtime:
            others = [each for each in waiting if running is None or each.id not in running.included]
            work = commands.run(self._context, runtime, self._worker.bindings, inbound, conversation_id, others)
            command = registry.find(inbound.text)
            if running is not None or command is None or not command.slow:
                return await work
            return await self._run_slow(inbound, runtime, work)

    async def _run_slow(
        self,
        inbound: types.InboundMessage,
        runtime: runtimes.Runtime,
        work: Coroutine[Any, Any, commands.CommandResult],
    ) -> commands.CommandResult:
        """Run a slow command while messages are handled, so that another command can stop it."""
        conversation_id, task = inbound.target or "", asyncio.create_task(work)
        to = gateway_context.reply_address(inbound)
        try:
            async with turn_progress.follow(self._context, runtime, conversation_id, to, inbound) as progress:
                await self._wait_for(active_chat.RunningTurn(runtime, conversation_id, inbound, progress), task)
        finally:
            task.cancel()
            await asyncio.wait([task])
        return task.result()

    async def _check_lease(self) -> None:
        """Raise LeaseLost if the lease is lost. If the store does not answer, the command runs all the same."""
        try:
            await self._db.mail.renew_chat_lease(self.held.lease)
        except errors.StoreError as error:
            logger.warning("could not renew a chat lease: %s", error)

    async def _existing(self, conversation_id: str) -> str | None:
        """Return a conversation if it exists."""
        try:
            return (await self._db.snapshot(conversation_id)).conversation_id
        except errors.NoSuchSession:
            return None

    # --- notices -------------------------------------------------------------------------------------

    async def _answer_notices(self, conversation_id: str) -> None:
        """Let the runtime answer the inbox of a conversation; it stores the outcomes itself."""
        self._chat.behind = ()
        try:
            home = await self._context.last_chat(conversation_id)
        except errors.NoSuchSession:
            return
        if home is None:
            return
        to = gateway_context.reply_address(home)
        async with (
            self._context.runtimes.use(routes.principal_of(home)) as runtime,
            turn_progress.follow(self._context, runtime, conversation_id, to) as progress,
        ):
            running = active_chat.RunningTurn(runtime, conversation_id, None, progress)
            if await runtime.deliver(conversation_id):
                await self._wait_for(running, asyncio.create_task(runtime.wait_idle(conversation_id)))
        await self._settle_steered(running)

    # --- the outcome ---------------------------------------------------------------------------------

    async def _settle(
        self,
        inbound: types.InboundMessage,
        outcome: str,
        text: str | None,
        *,
        seq: int | None = None,
        conversation_id: str | None = None,
        answer_seq: int | None = None,
        attachments: Mapping[str, str] = MappingProxyType({}),
        is_final: bool = True,
    ) -> None:
        """Store the outcome and the reply in one transaction.

        If nothing waits, or other chats wait for the slot of this one, the lease is released with it; unless `is_final`
        is false, because the lease is still needed.
        """
        chat, to = self._chat, gateway_context.reply_address(inbound)
        outgoing = replies.build(self._context, to, text, attachments=attachments, seq=answer_seq)
        if not outgoing and self._context.can(to.platform).drafts is not None:
            # An empty reply deletes the draft.
            draft = await outbox.find_draft(self._db, inbound.id)
            empty = types.NewOutgoing(platform=to.platform, chat=to.chat, address=to.address)
            outgoing = [empty] if draft is not None else []
        has_more = bool(chat.has_more or chat.has_news or chat.notices)
        is_last = is_final and (not has_more or self._worker.queued > 0)
        try:
            is_first = await self._db.mail.settle_inbound(
                self.held.lease,
                inbound.id,
                outcome,
                seq=seq,
                conversation_id=conversation_id,
                outgoing=outgoing,
                release=is_last,
            )
        except errors.NoSuchSession:
            # The conversation was deleted concurrently, with everything in it.
            is_first = await self._db.mail.settle_inbound(self.held.lease, inbound.id, "deleted")
            is_last = False
        fault_points.reach("gateway", "settled")
        self._worker.harmless.pop(inbound.id, None)
        if is_first and platform.deleted_key(inbound) is None:
            self._context.metrics.count_outcome(inbound.platform, outcome)
        self.held.released = is_last and is_first
        if self.held.released and has_more:
            chat.has_news = True  # The chat continues behind those that wait for its slot.
        if outgoing:
            self._context.wake_sender(to.platform)


def uid_of(inbound: types.InboundMessage) -> str:
    """Return the uid of the log entry of a message, which is the same in every attempt."""
    return inbox_messages.uid_of(f"{inbound.platform}:{inbound.key}")


def received_files(inbound: Sequence[types.InboundMessage]) -> list[dict[str, Any]]:
    """Return the parts of messages that refer to received files."""
    return [part for each in inbound for part in each.parts if part.get("type") == "file"]


def withdrawal(inbound: types.InboundMessage, behind: Sequence[types.InboundMessage]) -> str | None:
    """Return the outcome of a message that is not processed; None if it is to be processed. Pure.

    Its deletion or, unless its processing had begun, its new text waits behind it; or it is itself a deletion.
    """
    if platform.deleted_key(inbound) is not None:
        return "dropped"
    versions = {inbound.key, platform.edited_key(inbound) or inbound.key}
    for each in behind:
        if platform.deleted_key(each) == inbound.key:
            return "interrupted"
        if not inbound.attempts and platform.edited_key(each) in versions:
            return "replaced"
    return None


def _outcome(result: events.TurnResult, text: str | None) -> str:
    if result.interrupted:
        return "interrupted"
    if result.failed:
        return "failed"
    return "answered" if text else "silent"
