"""The loop of one turn: ask the model, run the tools it calls, repeat until it calls none.

Every message is appended under the turn's lease as soon as it is complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from hashlib import blake2b
from typing import Any, Protocol, TypeVar, assert_never

import msgspec

from holdfast import content_parts, errors, events, types
from holdfast.agent import (
    context_cache,
    context_files,
    context_window,
    output,
    request_images,
    settings,
    system_prompt,
    titles,
    turn_lease,
)
from holdfast.compaction import speaker
from holdfast.model import base as models
from holdfast.model import provider_errors, reply_builder, tokens
from holdfast.store import async_db, held_lease, message_codec, validation
from holdfast.tools import base as tools_base
from holdfast.tools import registry

logger = logging.getLogger("holdfast.agent")
T = TypeVar("T")

PREVIEW_CHARS = 300
CONNECTION_LOST = "The answer broke off here: the connection to the model was lost."
INTERRUPTED = "The answer was interrupted here."
OUTPUT_LIMIT = "The answer broke off here: it reached the longest one the model may give."
NOT_RUN = "[No result: the turn was stopped before this call finished.]"

STEERED = speaker.STEERED

Emit = Callable[[events.AnyEvent], None]


class TurnLimitReached(Exception):
    """The turn reached its limit of steps or cost."""

    def __init__(self, reason: events.Exit, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


class TurnHost(Protocol):
    """State that the turns of one agent share; AIAgent implements it."""

    db: async_db.AsyncSessionDB
    model: models.Model
    tools: registry.Registry
    prompt: system_prompt.SystemPrompt
    context_cache: context_cache.ContextCache
    context_window: context_window.ContextWindow
    images: request_images.RequestImages
    meter: tokens.Meter
    title: titles.PendingTitle
    announcements: context_files.Announcements
    limits: settings.Limits
    turns: settings.TurnSettings
    new_conversation: types.NewConversation
    """The attributes of the conversation if its first message creates it."""
    clock: Callable[[], float]


class TurnLoop:
    """The running loop of one turn. `run` is called once."""

    def __init__(
        self,
        host: TurnHost,
        held: held_lease.HeldLease,
        uid: str,
        system: str,
        emit: Emit,
        max_output: int | None = None,
        output_format: output.OutputFormat | None = None,
    ) -> None:
        self._host, self._held, self._uid, self._system, self._emit = host, held, uid, system, emit
        self._limits, self._format = host.limits.with_output(max_output), output_format
        self._tools, self._window = host.tools, host.context_window
        self._gathered: reply_builder.ReplyBuilder | None = None
        self._open_calls: dict[str, types.ToolCall] = {}
        self.steering: list[events.Steer] = []
        self.is_over = False
        """Whether steering is no longer accepted."""
        self.messages: list[types.Message] = []
        self.usage = types.Usage()
        self.api_calls = 0
        self.answer = ""
        self.output: Any = None
        self.is_truncated = self.is_refused = False
        self._unpriced: str | None = None
        """A model that reported tokens without a cost."""

    @property
    def spent(self) -> types.Usage:
        """The usage of the turn: its replies and the summaries it waited for."""
        return self.usage + self._window.usage

    @property
    def cost(self) -> float:
        """US dollars that count against the limit, including background summaries that finished during the turn."""
        return (self.spent.cost or 0.0) + (self._window.background_usage.cost or 0.0)

    async def run(self) -> None:
        """Take steps until the model calls no tool. Raises TurnLimitReached, ModelError or OutputInvalid."""
        for warning in await self._tools.update():
            self._emit(events.Notice(warning, "warning"))
        await self._take_steps()
        if self._format is not None:
            await self._parse_output(self._format)
        self.is_over = True

    async def _take_steps(self) -> None:
        while await self._step() or self.steering:
            await self._append_steering()

    async def _parse_output(self, output_format: output.OutputFormat) -> None:
        """Parse the answer; if it is invalid, ask the model once to correct it."""
        try:
            self.output = output_format.parse(self.answer)
        except errors.OutputInvalid as error:
            request = content_parts.notice(output.REPAIR.format(problem=error), "output")
            await self.append(types.NewMessage(role="user", content=[request], uid=steering_uid()))
            await self._take_steps()
            self.output = output_format.parse(self.answer)

    async def _step(self) -> bool:
        """Ask the model once and run the tools it called; return whether it called any."""
        self._check_limits()
        self.answer, self.is_refused = "", False
        await self._append_reply(await self._ask())
        if not self._open_calls:
            return False
        await self._execute(list(self._open_calls.values()))
        return True

    def _check_limits(self) -> None:
        if self.api_calls >= self._limits.steps:
            raise TurnLimitReached(
                "steps", f"I stopped after {self._limits.steps} steps. Say `go on` to let me continue."
            )
        if self._limits.cost is None:
            return
        if self.cost >= self._limits.cost:
            spent, limit = f"${self.cost:.2f}", f"${self._limits.cost:.2f}"
            raise TurnLimitReached("cost", f"I stopped: this turn has cost about {spent}; its limit is {limit}.")
        if self._unpriced is not None:
            raise TurnLimitReached(
                "cost",
                f"I stopped: the cost limit of this turn (${self._limits.cost:.2f}) cannot be enforced, because the "
                f"price of {self._unpriced} is not known. Set `price` for it in the settings, or leave the limit out.",
            )

    # --- model requests ------------------------------------------------------------------------------

    async def _ask(self) -> models.Reply:
        """Ask the model. If the request is too large for the provider, shrink the context and ask again."""
        while True:
            try:
                return await self._request_with_images()
            except Exception as error:
                overflow = _as_overflow(error)
                if overflow is None:
                    raise
                if self._has_begun or not await self._window.shrink(self._emit):
                    raise overflow from (None if overflow is error else error)

    @property
    def _has_begun(self) -> bool:
        return self._gathered is not None and self._gathered.begun

    async def _request_with_images(self) -> models.Reply:
        """Ask the model. If it refuses the request, ask again without the images: they may be the reason."""
        images = self._host.images
        try:
            return await self._request()
        except errors.ModelError as error:
            sent = images.sent
            if self._has_begun or not sent or not _may_refuse_images(error):
                raise
        images.refused |= sent
        try:
            return await self._request()
        except BaseException:
            images.refused -= sent
            raise

    async def _request(self) -> models.Reply:
        messages = await self._window.messages(self._uid, self._emit)
        request = models.Request(
            messages=tuple(await self._host.images.load(messages, self._uid, self._emit)),
            system=self._system,
            tools=self._tools.specs,
            max_output=self._limits.output,
        )
        estimated = self._host.meter.count(self._system, request.tools, request.messages)
        self.api_calls += 1
        self._gathered = gathered = reply_builder.ReplyBuilder(self._host.model.name)
        async with aclosing(self._host.model.stream(request)) as deltas:
            async for delta in deltas:
                gathered.add(delta)
                self._emit_delta(delta)
        if gathered.finish is None:
            raise errors.ModelCut(model=self._host.model.name)
        self._gathered = None
        self._host.meter.correct(estimated, gathered.usage.input)
        return gathered.reply()

    def _emit_delta(self, delta: models.Delta) -> None:
        match delta:
            case models.ContentDelta(text):
                self._emit(events.TextDelta(text))
            case models.ThinkingDelta(text):
                if text:
                    self._emit(events.ReasoningDelta(text))
            case models.RetryDelta(seconds, _, why):
                when = f"in {seconds:.0f} s" if seconds >= 0.5 else "in a moment"
                self._emit(events.Notice(f"{why} Trying again {when}.".lstrip(), "warning"))
            case models.FallbackDelta(model, why):
                self._emit(events.Notice(f"{why} Continuing with {model}.", "warning"))
            case models.ToolCallDelta() | models.UsageDelta() | models.FinishDelta():
                pass
            case _:
                assert_never(delta)

    async def _append_reply(self, reply: models.Reply) -> None:
        """Append a complete reply. The calls of one that reached the output limit are dropped: they may be cut."""
        self.usage += reply.usage
        if reply.usage.cost is None and reply.usage.input + reply.usage.output:
            self._unpriced = reply.model or self._host.model.name
        content = content_parts.encode(reply.parts)
        calls = reply_builder.with_unique_ids(reply.calls)
        if reply.finish == "length":
            content, calls, self.is_truncated = _mark_cut(content, OUTPUT_LIMIT), (), True
        self.is_refused = reply.finish == "refused"
        if self.is_refused and not reply.text:
            raise errors.RequestRefused("The model's provider declined to answer this.", model=reply.model)
        if not content and not calls and reply.usage == types.Usage():
            return
        self.answer = content_parts.text(content)
        await self.append(
            types.NewMessage(
                role="assistant", content=content, tool_calls=calls, model=reply.model or None, usage=reply.usage
            )
        )

    # --- tool calls ----------------------------------------------------------------------------------

    async def _execute(self, calls: Sequence[types.ToolCall]) -> None:
        """Run the calls in order; adjacent calls that are safe to run in parallel run concurrently."""
        batch: list[types.ToolCall] = []
        for call in calls:
            if self._tools.parallel(call):
                batch.append(call)
                continue
            await self._run_batch(batch)
            batch = []
            await self._run_tool(call)
        await self._run_batch(batch)

    async def _run_batch(self, calls: Sequence[types.ToolCall]) -> None:
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
        self._emit(events.ToolStarted(call.id, call.name, call.arguments_text))

        def report(text: str) -> None:
            self._emit(events.ToolProgress(call.id, text))

        with tools_base.calling(tools_base.Calling(call.id, self._held.snapshot.conversation_id, report)):
            result = await self._tools.run(call)
        await self.append(types.NewMessage(role="tool", content=result.content, tool_call_id=call.id))
        preview = content_parts.text(result.content)[:PREVIEW_CHARS]
        self._emit(events.ToolFinished(call.id, call.name, result.ok, preview))

    async def _append_steering(self) -> None:
        """Append the messages that people sent during the step, before the model is asked again."""
        while self.steering:
            steer = self.steering.pop(0)
            await self.append(types.NewMessage(role="user", content=steer.text, uid=steering_uid(steer.uid)))

    # --- appends -------------------------------------------------------------------------------------

    async def append(self, message: types.NewMessage) -> types.Receipt:
        """Append under the lease. A cancelled task still waits for the outcome, so that it is always known."""
        stamped = msgspec.structs.replace(
            message,
            uid=message.uid or message_codec.generate_uid(),
            at=self._host.clock() if message.at is None else message.at,
        )
        return await finish_despite_cancel(self._append(stamped))

    async def _append(self, message: types.NewMessage) -> types.Receipt:
        receipt = await turn_lease.append(self._held, message)
        if message.role == "tool":
            self._open_calls.pop(message.tool_call_id or "", None)
        for call in map(message_codec.to_tool_call, message.tool_calls):
            self._open_calls[call.id] = call
        self.messages.append(self._host.context_cache.add(receipt, message))
        self._emit(events.MessageStored(receipt.seq, receipt.uid, message.role))
        return receipt

    async def abort(self, why: str) -> None:
        """Store what a stopped turn has: the partial answer, and a result for every open call."""
        for call in list(self._open_calls.values()):
            await self.append(types.NewMessage(role="tool", content=NOT_RUN, tool_call_id=call.id))
        gathered, self._gathered = self._gathered, None
        reply = gathered.reply() if gathered else models.Reply()
        self.usage += reply.usage
        self.answer = ""
        if reply.text.strip() or reply.usage != types.Usage():
            content = _mark_cut(content_parts.encode(reply.parts), why)
            self.answer = content_parts.text(content) if reply.text.strip() else ""
            await self.append(
                types.NewMessage(role="assistant", content=content, model=reply.model or None, usage=reply.usage)
            )
        self.is_over = True
        await self._append_steering()

    async def append_own_answer(self, sentence: str) -> None:
        """Append a sentence of the program as the answer."""
        self.answer = sentence
        await self.append(types.NewMessage(role="assistant", content=sentence))


def _as_overflow(error: Exception) -> errors.ContextOverflow | None:
    """Return a ContextOverflow, or another error as one if its text says so: a custom adapter may raise anything."""
    if isinstance(error, errors.HoldfastError):
        return error if isinstance(error, errors.ContextOverflow) else None
    if not provider_errors.is_overflow(str(error)):
        return None
    text = provider_errors.redact(str(error)).rstrip(".")
    return errors.ContextOverflow(f"The conversation is too large for the model: {text}. {provider_errors.COMPACT}")


def _may_refuse_images(error: errors.ModelError) -> bool:
    """Return whether images may be the reason of an error. Some local servers report them as a server error."""
    if isinstance(error, errors.ModelServerError):
        return "image" in str(error).lower()
    return isinstance(error, errors.RequestRefused) and error.status != 402


def steering_uid(uid: str | None = None) -> str:
    """Return the uid of a message sent into a running turn; its prefix tells it from one that begins a turn."""
    full = f"{STEERED}{uid or message_codec.generate_uid()}"
    return full if len(full) <= validation.MAX_ID else f"{STEERED}{blake2b(full.encode(), digest_size=20).hexdigest()}"


def _mark_cut(content: types.Content, why: str) -> types.Content:
    """Return an unfinished reply with a mark at its end that says why it ends there."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [*(part for part in parts if part.get("type") != "text" or part.get("text")), content_parts.cut(why)]


async def finish_despite_cancel(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end even if the caller is cancelled meanwhile; then let the cancellation continue."""
    task = asyncio.ensure_future(coroutine)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])
        if not task.cancelled() and task.exception():
            logger.warning("could not store a message while its turn was being stopped: %s", task.exception())
        raise
