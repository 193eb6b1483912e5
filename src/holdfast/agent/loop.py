"""The loop of a turn: run → step → ask / execute.

A step asks the model once and runs the tools it called; a turn takes steps until the model calls nothing.
Every word of it is appended as it comes to be, under the turn's lease. However a turn ends, its result says so.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from hashlib import blake2b
from typing import Any, TypeVar, assert_never

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import context_cache, context_window, turn_lease
from holdfast.compaction import speaker
from holdfast.model import base as models
from holdfast.model import provider_errors, reply_builder, tokens
from holdfast.store import message_codec, validation
from holdfast.tools import base as tools_port
from holdfast.tools import registry

logger = logging.getLogger("holdfast.agent")
T = TypeVar("T")

PREVIEW = 300
BROKE_OFF = "The answer broke off here: the connection to the model was lost."
INTERRUPTED = "The answer was interrupted here."
NO_ROOM = "The answer broke off here: it reached the longest one the model may give."
NOT_RUN = "[No result: the turn was stopped before this call finished.]"

STEERED = speaker.STEERED

Emit = Callable[[events.AnyEvent], None]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a turn ends even though the model would go on."""

    steps: int = 50
    """How often the model is asked in one turn."""
    cost: float | None = None
    """US dollars one turn may cost, summaries and the memory review included; needs a model whose price is known."""
    output: int | None = None
    """The longest reply, in tokens; None leaves it to the model."""

    def with_output(self, most: int | None) -> Limits:
        """Return these limits with replies of at most so many tokens, never more than they allow."""
        return self if most is None else msgspec.structs.replace(self, output=min(most, self.output or most))


class Stopped(Exception):
    """A limit was reached."""

    def __init__(self, reason: events.Exit, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


class Run:
    """One turn under way. `go` is called once."""

    def __init__(
        self,
        *,
        turn: turn_lease.Turn,
        uid: str,
        view: context_cache.ContextCache,
        room: context_window.ContextWindow,
        model: models.Model,
        tools: registry.Registry,
        system: str,
        meter: tokens.Meter,
        limits: Limits,
        emit: Emit,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._turn, self._uid, self._view, self._room = turn, uid, view, room
        self._model, self._tools, self._system, self._limits = model, tools, system, limits
        self._meter, self._emit, self._clock = meter, emit, clock
        self._said: reply_builder.Gathering | None = None
        self._open: dict[str, types.ToolCall] = {}
        self.steering: list[events.Steer] = []
        self.over = False
        self.written: list[types.Message] = []
        self.usage = types.Usage()
        self.api_calls = 0
        self.session_id = turn.snapshot.head_id
        self.answer = ""
        self.short = self.refused = False
        self._unpriced: str | None = None
        """A model that reported tokens without a cost."""

    @property
    def spent(self) -> types.Usage:
        """What the turn has used: its replies, and the summaries it had to wait for."""
        return self.usage + self._room.usage

    @property
    def cost(self) -> float:
        """US dollars that count against the limit: the turn and the background summaries that finished meanwhile."""
        return (self.spent.cost or 0.0) + (self._room.background_usage.cost or 0.0)

    async def go(self) -> None:
        """Take steps until the model calls nothing; Stopped at a limit, ModelError where the model failed."""
        for remark in await self._tools.freshen():
            self._emit(events.Notice(remark, "warning"))
        while await self._step() or self.steering:
            await self._steer()
        self.over = True  # From here on nobody can steer, and nothing was said in vain.

    async def _step(self) -> bool:
        """Ask once, run what was called; whether to go on."""
        self._refuse_beyond_limits()
        self.answer, self.refused = "", False
        reply = await self._ask()
        await self._record(reply)
        if not self._open:
            return False
        await self._execute(list(self._open.values()))
        return True

    def _refuse_beyond_limits(self) -> None:
        if self.api_calls >= self._limits.steps:
            raise Stopped("steps", f"I stopped after {self._limits.steps} steps. Say `go on` to let me continue.")
        if self._limits.cost is None:
            return
        if self.cost >= self._limits.cost:
            spent, limit = f"${self.cost:.2f}", f"${self._limits.cost:.2f}"
            raise Stopped("cost", f"I stopped: this turn has cost about {spent}; its limit is {limit}.")
        if self._unpriced is not None:
            raise Stopped(
                "cost",
                f"I stopped: the cost limit of this turn (${self._limits.cost:.2f}) cannot be enforced, because the "
                f"price of {self._unpriced} is not known. Set `price` for it in the settings, or leave the limit out.",
            )

    # --- asking --------------------------------------------------------------------------------------

    async def _ask(self) -> models.Reply:
        """Ask; where the request is too large for the provider, make room and ask again."""
        while True:
            try:
                return await self._asked()
            except Exception as error:
                overflow = _as_overflow(error)
                if overflow is None:
                    raise
                said = self._said is not None and self._said.begun
                if said or not await self._room.make_more(self._uid, self._emit):
                    raise overflow from error

    async def _asked(self) -> models.Reply:
        request = models.Request(
            messages=tuple(await self._room.messages(self._uid, self._emit)),
            system=self._system,
            tools=self._tools.specs,
            max_output=self._limits.output,
        )
        estimated = self._meter.count(self._system, request.tools, request.messages)
        self.api_calls += 1
        self._said = said = reply_builder.Gathering(self._model.name)
        async with aclosing(self._model.stream(request)) as deltas:
            async for delta in deltas:
                said.add(delta)
                self._show(delta)
        if said.finish is None:
            raise errors.ModelCut(model=self._model.name)
        self._said = None
        self._meter.correct(estimated, said.usage.input)
        return said.reply()

    def _show(self, delta: models.Delta) -> None:
        match delta:
            case models.Said(text):
                self._emit(events.TextDelta(text))
            case models.Thought(text):
                if text:
                    self._emit(events.ReasoningDelta(text))
            case models.Waiting(seconds, _, why):
                when = f"in {seconds:.0f} s" if seconds >= 0.5 else "in a moment"
                self._emit(events.Notice(f"{why} Trying again {when}.".lstrip(), "warning"))
            case models.Switched(model, why):
                self._emit(events.Notice(f"{why} Going on with {model}.", "warning"))
            case models.Called() | models.Counted() | models.Finished():
                pass
            case _:
                assert_never(delta)

    async def _record(self, reply: models.Reply) -> None:
        """The reply, as soon as it is whole; of one that ran out of room, no call can be trusted."""
        self.usage += reply.usage
        if reply.usage.cost is None and reply.usage.input + reply.usage.output:
            self._unpriced = reply.model or self._model.name
        content = content_parts.written(reply.parts)
        calls = distinct(reply.calls)
        if reply.finish == "length":
            content, calls, self.short = marked(content, NO_ROOM), (), True
        self.refused = reply.finish == "refused"
        if self.refused and not reply.text:
            raise errors.RequestRefused("The model's provider declined to answer this.", model=reply.model)
        if not content and not calls and reply.usage == types.Usage():
            return
        self.answer = content_parts.text(content)
        await self.append(
            types.NewMessage(
                role="assistant", content=content, tool_calls=calls, model=reply.model or None, usage=reply.usage
            )
        )

    # --- executing -----------------------------------------------------------------------------------

    async def _execute(self, calls: Sequence[types.ToolCall]) -> None:
        """Calls that may run side by side do; the others wait for all before them, and are waited for."""
        beside: list[types.ToolCall] = []
        for call in calls:
            if self._tools.parallel(call):
                beside.append(call)
                continue
            await self._together(beside)
            beside = []
            await self._run_tool(call)
        await self._together(beside)

    async def _together(self, calls: Sequence[types.ToolCall]) -> None:
        if not calls:
            return
        tasks = [asyncio.create_task(self._run_tool(call)) for call in calls]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _run_tool(self, call: types.ToolCall) -> None:
        arguments = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
        self._emit(events.ToolStarted(call.id, call.name, arguments))
        with tools_port.calling(self._calling(call)):
            result = await self._tools.run(call)
        await self.append(types.NewMessage(role="tool", content=result.content, tool_call_id=call.id))
        preview = content_parts.text(result.content)[:PREVIEW]
        self._emit(events.ToolFinished(call.id, call.name, result.ok, preview))

    def _calling(self, call: types.ToolCall) -> tools_port.Calling:
        def say(text: str) -> None:
            self._emit(events.ToolProgress(call.id, text))

        return tools_port.Calling(call.id, self._turn.snapshot.conversation_id, say)

    async def _steer(self) -> None:
        """What people said meanwhile, before the model is asked again."""
        while self.steering:
            said = self.steering.pop(0)
            await self.append(types.NewMessage(role="user", content=said.text, uid=steering_uid(said.uid)))

    # --- writing -------------------------------------------------------------------------------------

    async def append(self, message: types.NewMessage) -> types.Receipt:
        """Append under the lease. The wait cannot be cancelled: what is written must be known as written."""
        stamped = msgspec.structs.replace(
            message,
            uid=message.uid or message_codec.generate_uid(),
            at=self._clock() if message.at is None else message.at,
        )
        return await unhurried(self._write(stamped))

    async def _write(self, message: types.NewMessage) -> types.Receipt:
        (receipt,) = await self._turn.append([message])
        self.note(receipt, message)
        return receipt

    def note(self, receipt: types.Receipt, message: types.NewMessage) -> None:
        """Keep account of a message of this turn that is in the log now."""
        self.session_id = receipt.session_id
        if message.role == "tool":
            self._open.pop(message.tool_call_id or "", None)
        for call in message.tool_calls:
            self._open[message_codec.to_tool_call(call).id] = message_codec.to_tool_call(call)
        self.written.append(self._view.add(receipt, message))
        self._emit(events.MessageStored(receipt.seq, receipt.uid, message.role))

    async def close(self, why: str) -> None:
        """After a turn was broken off: keep what was said, and leave no call without a result."""
        for call in list(self._open.values()):
            await self.append(types.NewMessage(role="tool", content=NOT_RUN, tool_call_id=call.id))
        said, self._said = self._said, None
        reply = said.reply() if said else models.Reply()
        self.usage += reply.usage
        self.answer = ""
        if reply.text.strip() or reply.usage != types.Usage():
            content = marked(content_parts.written(reply.parts), why)
            self.answer = content_parts.text(content) if reply.text.strip() else ""
            await self.append(
                types.NewMessage(role="assistant", content=content, model=reply.model or None, usage=reply.usage)
            )

        self.over = True
        await self._steer()

    async def say(self, sentence: str) -> None:
        """A sentence of ours in the place of the model's."""
        self.answer = sentence
        await self.append(types.NewMessage(role="assistant", content=sentence))


def _as_overflow(error: Exception) -> errors.ContextOverflow | None:
    """The error as an overflow of the context window, by its type or by its words: an adapter may raise anything."""
    if isinstance(error, errors.ContextOverflow):
        return error
    if isinstance(error, errors.HoldfastError) and (not isinstance(error, errors.ModelError) or error.retryable):
        return None
    if not provider_errors.is_overflow(str(error)):
        return None
    words = provider_errors.redacted(str(error)).rstrip(".")
    return errors.ContextOverflow(f"The conversation is too large for the model: {words}. {provider_errors.COMPACT}")


def steering_uid(uid: str | None = None) -> str:
    """What was said into a turn is told from what began one."""
    said = f"{STEERED}{uid or message_codec.generate_uid()}"
    return said if len(said) <= validation.MAX_ID else f"{STEERED}{blake2b(said.encode(), digest_size=20).hexdigest()}"


def marked(content: types.Content, why: str) -> types.Content:
    """A reply that was not finished, with the mark that says so."""
    said = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [*(part for part in said if part.get("type") != "text" or part.get("text")), content_parts.cut(why)]


def distinct(calls: Sequence[types.ToolCall]) -> tuple[types.ToolCall, ...]:
    """Every call with an id of its own: some servers give none, or the same to all."""
    seen = set[str]()
    kept = []
    for call in calls:
        name = call.id if call.id and call.id not in seen else f"call_{message_codec.generate_uid()}"
        seen.add(name)
        kept.append(call if name == call.id else msgspec.structs.replace(call, id=name))
    return tuple(kept)


async def unhurried(coroutine: Coroutine[Any, Any, T]) -> T:
    """Wait to the end, whoever cancels meanwhile; then let the cancelling go on."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled() and task.exception():
            logger.warning("a message could not be stored as its turn was being stopped: %s", task.exception())
        raise
