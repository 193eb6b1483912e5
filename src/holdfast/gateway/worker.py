"""One chat at work: what came in on its route, oldest first, each to its one outcome.

Nothing here is believed: which session a message goes to is fixed in the store before its turn, its uid is made from
the platform's own, and its outcome and its reply are one transaction. So whoever dies here in the middle leaves what
another finishes, and two who work on the same thing write it once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Coroutine, Sequence
from time import monotonic
from typing import Any

from holdfast import errors, events, fault_points, types
from holdfast.agent import loop
from holdfast.gateway import (
    active_chats,
    busy_policy,
    chat_leases,
    commands,
    gateway_context,
    platform,
    reply_text,
    route_binding,
    route_keys,
    spans,
    turn_progress,
)
from holdfast.gateway import outgoing as gateway_outgoing
from holdfast.runtime import inbox
from holdfast.runtime import runtime as runtimes
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

LOOK = 200
"""How many of those that wait in one chat are looked at."""
EVERY = 1.0
"""Seconds after which a chat is looked at again beside its turn, where nobody says that something came."""
MOST_HARMLESS = 50
"""So many attempts may come to nothing for reasons that are not the message's; then it is given up, too."""
WAITED = 5.0
"""Seconds after which it is asked again whether somebody may speak."""
MOST_WITHDRAWN = 10_000
GAVE_UP = "I began to work on this message {count} times and never came to an end, so I leave it. Please send it again."
# After these the same message is worked on again, here or elsewhere.
_LATER: frozenset[events.Exit] = frozenset(("busy", "store", "lease_lost"))


class Later(Exception):
    """It cannot be worked on now; after a while it may."""


class Withdrawn(Exception):
    """The client of a message has gone before its turn began."""


class Worker:
    """Works on chats. `stopping`: takes up nothing new, and leaves what is stopped to others."""

    def __init__(self, home: gateway_context.House) -> None:
        self._home, self._db = home, home.db
        self._bound = route_binding.Binding(home.db, home.settings.reset, home.clock)
        self.claims = chat_leases.Claims(home.db)
        self.stopping = False
        self.crowded = False
        """Whether other chats wait for room: then one thing is worked on at a time, and the next one in turn."""
        self._harmless = Counter[int]()
        """Attempts that came to nothing without harm, so that they do not count."""
        self._withdrawn: OrderedDict[int, None] = OrderedDict()
        """Arrivals whose clients have gone."""
        self._running: dict[int, tuple[active_chats.Running, events.Submit, asyncio.Future[events.TurnResult]]] = {}
        """The turns under way, by arrival."""

    def withdraw(self, arrival: types.InboundMessage) -> None:
        """Stop the turn of an arrival, or do not begin it: its client has gone."""
        self._withdrawn[arrival.id] = None
        if len(self._withdrawn) > MOST_WITHDRAWN:
            self._withdrawn.popitem(last=False)
        self._stop_withdrawn(arrival.id)

    def _stop_withdrawn(self, arrival_id: int) -> None:
        if arrival_id not in self._withdrawn or arrival_id not in self._running:
            return
        running, message, answered = self._running[arrival_id]
        if answered.done():
            return  # The conversation may be in another turn by now.
        running.watch.gave_way = True
        # A message that still waits behind another turn of its conversation leaves that turn alone.
        if not running.runtime.drop(running.here, message):
            running.runtime.interrupt(running.here)

    async def work(self, lane: active_chats.Lane) -> None:
        """All that is open in a chat, until nothing is left. Busy where another works on it; Later."""
        taken = await async_db.await_or_release(self._taken_up(lane), self._untaken)
        if taken.lease is None:
            return
        async with self.claims.held(taken.lease) as held:
            fault_points.reach("gateway", "claimed")
            while taken.waiting or lane.notices:
                if taken.waiting:
                    lane.attempts = taken.waiting[0].attempts
                    await self._one(held, lane, taken)
                else:
                    await self._notices(held, lane, lane.notices.pop())
                # What is taken up is begun, and a command that was begun is not begun again: so not here.
                if held.given_back or self.stopping or self.crowded:
                    return
                taken = await self._taken_up(lane, held.claim)

    async def _taken_up(self, lane: active_chats.Lane, claim: types.ChatLease | None = None) -> types.NextInbound:
        """What is open in the chat, claimed, and the first of it begun where there is nothing to think about."""
        lane.look()
        lane.more = False
        return await self._db.mail.begin_next_inbound(
            lane.route, self._choose, lease=claim, idle=bool(lane.notices), ttl=self.claims.ttl, limit=LOOK
        )

    async def _untaken(self, taken: types.NextInbound) -> None:
        if taken.lease is not None:
            await self.claims.give_back(taken.lease)

    def _choose(self, waiting: Sequence[types.InboundMessage], route: types.Route) -> tuple[int, str, list[int]] | None:
        """The first one, in the conversation that its route names. None where that is not all there is to it."""
        first = waiting[0]
        target = first.target or platform.terms_of(first).conversation_id or self._bound.plainly(route)
        if target is None or self._is_enough(first) or self._is_late(first):
            return None
        return first.id, target, [each.id for each in self._joined(first, waiting[1:])]

    async def _one(self, held: chat_leases.Held, lane: active_chats.Lane, taken: types.NextInbound) -> None:
        arrival, behind = taken.waiting[0], taken.waiting[1:]
        lane.more, lane.behind = bool(behind), behind
        if arrival.id in self._withdrawn:
            seq = await self._in_log(arrival, uid_of(arrival))
            there = arrival.target if seq else None
            await self._settle(held, lane, arrival, "interrupted", None, seq=seq, conversation_id=there)
            return
        if self._is_enough(arrival):
            uid, said = uid_of(arrival), GAVE_UP.format(count=arrival.attempts)
            # With the message that it may have become: what is redacted there goes here, too.
            seq = await self._in_log(arrival, uid) or await self._in_log(arrival, loop.steering_uid(uid))
            there = arrival.target if seq else None
            await self._settle(held, lane, arrival, "gave_up", said, seq=seq, conversation_id=there)
            return
        joined = self._joined(arrival, behind)
        begun = taken.begun
        if begun is None:
            if self._is_late(arrival) and not await self._home.may_speak(arrival.platform, arrival.sender):
                await self._settle(held, lane, arrival, "refused", None)
                return
            named = arrival.target or platform.terms_of(arrival).conversation_id
            target = named or await self._bound.target(arrival.route)
            begun = await self._db.mail.begin_inbound(held.claim, arrival.id, target, [each.id for each in joined])
        fault_points.reach("gateway", "begun")
        if begun is None:
            return
        self._home.meter.begun(begun.attempts)
        lane.more, lane.behind = len(behind) > len(joined), behind[len(joined) :]
        lane.inbox_empty = taken.inbox_empty
        if busy_policy.message(begun.text) is None:
            await self._command(held, lane, begun, behind)
        else:
            await self._message(held, lane, begun)

    def _is_enough(self, arrival: types.InboundMessage) -> bool:
        """Whether work on it was begun so often that it is given up. Where somebody else was at work, or the store
        could not be had, that is not because of the message."""
        counted = arrival.attempts - min(self._harmless[arrival.id], MOST_HARMLESS)
        return counted >= self._home.settings.attempts

    def _is_late(self, arrival: types.InboundMessage) -> bool:
        return self._home.clock() - arrival.at > WAITED

    def _joined(
        self, arrival: types.InboundMessage, behind: Sequence[types.InboundMessage]
    ) -> list[types.InboundMessage]:
        """What is answered together with a message: the messages of the same person that came right after it."""
        joined = list[types.InboundMessage]()
        if (
            self._home.settings.busy not in busy_policy.JOINING
            or arrival.attempts
            or busy_policy.message(arrival.text) is None
        ):
            return joined
        for each in behind[: busy_policy.ONE_AS_MANY - 1]:
            if busy_policy.message(each.text) is None or each.sender != arrival.sender or each.attempts:
                break
            joined.append(each)
        return joined

    # --- a message -----------------------------------------------------------------------------------

    async def _message(self, held: chat_leases.Held, lane: active_chats.Lane, arrival: types.InboundMessage) -> None:
        # A turn may have been told it before a process died.
        told = loop.steering_uid(uid_of(arrival))
        if arrival.attempts > 1 and (seq := await self._in_log(arrival, told)) is not None:
            await self._settle(held, lane, arrival, "steered", None, seq=seq, conversation_id=arrival.target)
            return
        every = [arrival]
        if arrival.attempts > 1 or self._home.settings.busy in busy_policy.JOINING:
            every += await self._db.mail.joined_inbound(arrival.id)
        text = busy_policy.together([busy_policy.message(each.text) or "" for each in every])
        content = gateway_outgoing.content(every, text, route_keys.is_shared(arrival.route))
        terms = platform.terms_of(every[-1])
        submit = events.Submit(text, uid_of(arrival), content, arrival.route, terms.instructions, terms.max_output)
        await self._answer(held, lane, arrival, submit)

    async def _in_log(self, arrival: types.InboundMessage, uid: str) -> int | None:
        """Where it stands in the log of the conversation it goes to, if it does."""
        try:
            return None if arrival.target is None else await self._db.find_seq(arrival.target, uid)
        except errors.NoSuchSession:
            return None

    async def _answer(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        arrival: types.InboundMessage,
        message: events.Submit,
        said: str = "",
    ) -> None:
        """Its turn, and the outcome with the reply; `said` is told before it."""
        here = arrival.target or ""
        try:
            result, watch = await self._turn(held, lane, arrival, here, message)
        except Withdrawn:
            await self._settle(held, lane, arrival, "interrupted", None)
            return
        if result.failed and watch.seq is None:
            other = await self._bound.elsewhere(arrival.route, here)
            if other is not None:
                result, watch = await self._turn(held, lane, arrival, other, message)
        fault_points.reach("gateway", "answered")
        stored = watch.seq is not None
        history = len(await self._db.context(result.conversation_id)) if result.failed and stored else 0
        # One that gave way to the next message is answered with that.
        text = None if result.interrupted and watch.gave_way else reply_text.of(result, history)
        await self._settle(
            held,
            lane,
            arrival,
            _outcome(result, text),
            "\n".join(each for each in (said, text) if each) or None,
            seq=watch.seq,
            conversation_id=result.conversation_id if stored else None,
            answer=await self._answer_seq(result, watch.seq) if stored else None,
            attachments=gateway_outgoing.pictures(result.messages),
        )

    async def _answer_seq(self, result: events.TurnResult, asked: int | None) -> int | None:
        """The message whose words the reply has, also where it was said before a process died."""
        if result.messages and result.messages[-1].role == "assistant":
            return result.messages[-1].seq
        if asked is None or not result.final_response:
            return None
        after = await self._db.transcript(result.conversation_id, asked)
        return next((each.seq for each in after if each.role == "assistant" and not each.tool_calls), None)

    async def _turn(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        arrival: types.InboundMessage,
        here: str,
        message: events.Submit,
    ) -> tuple[events.TurnResult, turn_progress.Watch]:
        """The result of its turn. Later where that is no outcome."""
        with spans.span(
            "holdfast.turn", platform=arrival.platform, arrival=arrival.id, attempts=arrival.attempts, session=here
        ) as put:
            result, watch = await self._took(held, lane, arrival, here, message)
            put("exit_reason", result.exit_reason)
            return result, watch

    async def _took(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        arrival: types.InboundMessage,
        here: str,
        message: events.Submit,
    ) -> tuple[events.TurnResult, turn_progress.Watch]:
        where = gateway_context.place_of(arrival)
        async with (
            self._home.desks.at(owner_of(arrival)) as runtime,
            turn_progress.watched(self._home, runtime, here, where, arrival, message.uid or "") as watch,
        ):
            running, began = active_chats.Running(runtime, here, arrival, watch), monotonic()
            answered = runtime.submit(here, message, inbox_empty=lane.inbox_empty and here == arrival.target)
            lane.inbox_empty = False
            self._running[arrival.id] = running, message, answered
            self._stop_withdrawn(arrival.id)
            try:
                await self._while(held, lane, running, answered)
            finally:
                del self._running[arrival.id]
            self._home.meter.turn(monotonic() - began)
        await self._settle_steered(held, lane, running, watch)
        if answered.cancelled():
            raise Withdrawn if arrival.id in self._withdrawn else Later("The gateway stops.")
        if (error := answered.exception()) is not None:
            raise Later("The turn failed in a way that nobody expected.") from error
        result = answered.result()
        if result.exit_reason in _LATER or (self.stopping and result.interrupted):
            self._harmless[arrival.id] += 1
            raise Later(result.error or "The gateway stops.")
        return result, watch

    # --- beside a turn -------------------------------------------------------------------------------

    async def _while(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        running: active_chats.Running,
        turn: asyncio.Future[Any],
    ) -> None:
        """Wait for a turn, looking at what comes in beside it."""
        if not lane.behind:
            await lane.quiet(turn, EVERY)
        if turn.done():
            return  # Nothing came, which is most often so.
        beside = asyncio.create_task(self._beside(held, lane, running))
        try:
            await asyncio.wait([turn])
            running.over = True
            lane.wake()
            await asyncio.wait([beside])
        finally:
            beside.cancel()
            await asyncio.wait([beside])
        error = None if beside.cancelled() else beside.exception()
        if isinstance(error, errors.LeaseLost):
            logger.info("another process works on %s by now", lane.route)
        elif error is not None:
            # What came beside the turn waits for its end, as it does by default.
            logger.error("what came in beside a turn could not be looked at", exc_info=error)

    async def _beside(self, held: chat_leases.Held, lane: active_chats.Lane, running: active_chats.Running) -> None:
        waiting = lane.behind
        while not running.over:
            try:
                await self._those_beside(held, lane, running, waiting)
                await lane.came(EVERY)
                if not running.over:
                    lane.look()
                    waiting = await self._db.mail.open_inbound(lane.route, LOOK)
            except errors.StoreError as error:
                # What cannot be read now is looked at again: a turn that runs long must not be deaf to /stop.
                logger.warning("what came in beside a turn of %s could not be looked at: %s", lane.route, error)
                lane.more = True
                if not running.over:
                    lane.look()
                    await lane.came(EVERY)
        lane.more = lane.more or any(arrival.id not in running.seen for arrival in waiting)

    async def _those_beside(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        running: active_chats.Running,
        waiting: Sequence[types.InboundMessage],
    ) -> None:
        ahead = undecided = False
        for arrival in waiting:
            seen = arrival.id in running.seen
            what = "later" if seen else running.place(self._home.settings.busy, arrival, ahead)
            if what is None:
                undecided, running.watch.when_mine = True, lane.wake
            if running.over:
                return
            if not seen and what is not None and (what == "now" or not undecided):
                running.seen.add(arrival.id)
                await self._one_beside(held, lane, running, arrival, waiting, what)
            # A message stays behind what waits before it; what the turn was told is in it.
            ahead = ahead or (what != "now" and arrival.id not in running.within)

    async def _one_beside(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        running: active_chats.Running,
        arrival: types.InboundMessage,
        waiting: Sequence[types.InboundMessage],
        what: busy_policy.Beside,
    ) -> None:
        lane.more = lane.more or what != "now"
        if what == "interrupt":
            running.watch.gave_way = True
            running.runtime.interrupt(running.here)
        if what not in ("now", "steer") or arrival.attempts:
            return  # Its place is behind the turn.
        try:
            begun = await self._db.mail.begin_inbound(held.claim, arrival.id, running.here)
        except errors.StoreError:
            running.seen.discard(arrival.id)  # Nothing was done with it: it is looked at again.
            raise
        if begun is None:
            return
        if what == "now":
            own = {arrival.id, running.arrival.id if running.arrival else 0}
            others = [each for each in waiting if each.id not in own]
            await self._command(held, lane, begun, others, running)
            return
        uid = uid_of(arrival)
        if running.runtime.steer(running.here, busy_policy.message(arrival.text) or "", uid):
            running.steered[loop.steering_uid(uid)] = arrival

    async def _settle_steered(
        self, held: chat_leases.Held, lane: active_chats.Lane, running: active_chats.Running, watch: turn_progress.Watch
    ) -> None:
        """What the model was told is answered with the turn; what it was not is a message like any other."""
        for uid, arrival in running.steered.items():
            if (seq := watch.stored.get(uid)) is not None:
                lane.more = True  # The claim is still needed.
                await self._settle(held, lane, arrival, "steered", None, seq=seq, conversation_id=running.here)

    # --- a command -----------------------------------------------------------------------------------

    async def _command(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        arrival: types.InboundMessage,
        waiting: Sequence[types.InboundMessage],
        running: active_chats.Running | None = None,
    ) -> None:
        if running is not None:
            lane.more = True  # The claim is still needed.
        here = running.here if running else arrival.target or ""
        if arrival.attempts > 1:
            again = None if running else await commands.said_before(self._db, arrival, uid_of(arrival))
            if again is not None:
                await self._answer(held, lane, arrival, again)
                return
            said = commands.Said(commands.ONCE.format(line=f"/{commands.name(arrival.text)}"))
        elif refused := await commands.refusal(self._home, arrival):
            said = commands.Said(refused)
        elif running is not None and running.command is not None and commands.name(arrival.text) == "stop":
            running.command.cancel()
            said = commands.Said(commands.DONE)
        else:
            # Whoever slept since it was begun, and was overtaken, does nothing now.
            await self._still_held(held)
            fault_points.reach("gateway", "commanded")
            async with self._home.desks.at(owner_of(arrival)) as runtime:
                others = [each for each in waiting if running is None or each.id not in running.within]
                carried = commands.carry_out(self._home, runtime, self._bound, arrival, here, others)
                slow = running is None and commands.name(arrival.text) in commands.SLOW
                said = await (self._slowly(held, lane, arrival, runtime, carried) if slow else carried)
        for dropped in said.dropped:
            await self._db.mail.settle_inbound(held.claim, dropped, "dropped")
        if said.say is not None and running is None:
            message = events.Submit(said.say.text, uid_of(arrival), said.say.content, arrival.route)
            await self._answer(held, lane, arrival, message, said.text)
            return
        await self._settle(held, lane, arrival, "command", said.text, conversation_id=await self._existing(here))

    async def _slowly(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        arrival: types.InboundMessage,
        runtime: runtimes.Runtime,
        carried: Coroutine[Any, Any, commands.Said],
    ) -> commands.Said:
        """A command that takes its time, while what comes in beside it is looked at: /stop ends it."""
        here, work = arrival.target or "", asyncio.create_task(carried)
        try:
            async with turn_progress.watched(
                self._home, runtime, here, gateway_context.place_of(arrival), arrival
            ) as watch:
                running = active_chats.Running(runtime, here, arrival, watch)
                running.command = work
                await self._while(held, lane, running, work)
        finally:
            work.cancel()
            await asyncio.wait([work])
        if work.cancelled():
            return commands.Said(commands.STOPPED.format(line=f"/{commands.name(arrival.text)}"))
        return work.result()

    async def _still_held(self, held: chat_leases.Held) -> None:
        """LeaseLost where it is not. A store that cannot say so now is no reason to leave a command that was begun."""
        try:
            await self._db.mail.renew_chat_lease(held.claim)
        except errors.StoreError as error:
            logger.warning("a claim could not be renewed: %s", error)

    async def _existing(self, conversation_id: str) -> str | None:
        """A conversation that has begun; None of one that has not, or is gone."""
        try:
            return (await self._db.snapshot(conversation_id)).conversation_id
        except errors.NoSuchSession:
            return None

    # --- notices -------------------------------------------------------------------------------------

    async def _notices(self, held: chat_leases.Held, lane: active_chats.Lane, conversation_id: str) -> None:
        """What programs tell this conversation, answered in its chat. How that is written down, the desk knows."""
        lane.behind = ()
        try:
            owner = (await self._db.conversation(conversation_id)).owner
            home = await self._db.mail.last_chat(conversation_id)
        except errors.NoSuchSession:
            return
        if home is None:
            return
        async with (
            self._home.desks.at(owner) as runtime,
            turn_progress.watched(self._home, runtime, conversation_id, gateway_context.place_of(home)) as watch,
        ):
            running = active_chats.Running(runtime, conversation_id, None, watch)
            if await runtime.deliver(conversation_id):
                await self._while(held, lane, running, asyncio.create_task(runtime.wait_idle(conversation_id)))
        await self._settle_steered(held, lane, running, watch)

    # --- the outcome ---------------------------------------------------------------------------------

    async def _settle(
        self,
        held: chat_leases.Held,
        lane: active_chats.Lane,
        arrival: types.InboundMessage,
        outcome: str,
        text: str | None,
        *,
        seq: int | None = None,
        conversation_id: str | None = None,
        answer: int | None = None,
        attachments: Sequence[str] = (),
    ) -> None:
        """Its outcome and what is sent because of it, in one; the claim goes back with it where nothing waits."""
        where = gateway_context.place_of(arrival)
        outgoing = gateway_outgoing.to(where, text, self._home.platforms, attachments=attachments, seq=answer)
        last = not (lane.more or lane.poked or lane.notices)
        try:
            first = await self._db.mail.settle_inbound(
                held.claim,
                arrival.id,
                outcome,
                seq=seq,
                conversation_id=conversation_id,
                outgoing=outgoing,
                release=last,
            )
        except errors.NoSuchSession:
            # Deleted at this moment, and everything that was said in it with it.
            first, last = await self._db.mail.settle_inbound(held.claim, arrival.id, "deleted"), False
        fault_points.reach("gateway", "settled")
        self._harmless.pop(arrival.id, None)
        self._withdrawn.pop(arrival.id, None)
        if first:
            self._home.meter.settled(arrival.platform, outcome)
        held.given_back = last and first
        if outgoing:
            self._home.goes_out(where.platform)


def uid_of(arrival: types.InboundMessage) -> str:
    """The uid of the message that an arrival becomes: the same however often it is worked on."""
    return inbox.uid_of(f"{arrival.platform}:{arrival.key}")


def owner_of(arrival: types.InboundMessage) -> str:
    return route_keys.owner(arrival.route, arrival.platform, arrival.sender)


def _outcome(result: events.TurnResult, text: str | None) -> str:
    if result.interrupted:
        return "interrupted"
    if result.failed:
        return "failed"
    return "answered" if text else "silent"
