"""Permissions at work: plans of tools are decided by rules and grants, or somebody is asked; all is written down.

A question belongs to its conversation, not to a session, so that it can be answered after a compaction. The first
answer counts. Where nobody can answer, the answer is no, at once; so it is when the last one who could leaves.
Rules come from the settings and grants from `Approve` commands alone: nothing a model, a file or a tool says is asked.
What cannot be written down is not done.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal, Protocol

import msgspec

from holdfast import errors, events, redaction, types
from holdfast.agent import loop
from holdfast.store import message_codec
from holdfast.tools import base
from holdfast.tools.permissions import rules

logger = logging.getLogger("holdfast.agent")

NOBODY = "Nobody is there to permit it."
LEFT = "Whoever could have permitted it has left."
NOT_COVERED = "It is dangerous or may be forbidden, and permission was given for everything but that."
UNWRITTEN = "It could not be written down who allowed it."
READ_ONLY = "This session is read-only: nothing is changed or run in it until the person chooses another mode."

Mode = Literal["ask", "code", "read-only"]
"""Ask for what no rule or grant allows; change files of the working folder without asking; only look."""

Emit = Callable[[events.AnyEvent], None]
Approve = Callable[[base.Act], Awaitable[bool | events.Answered]]
"""Asked by the program itself, where an agent is part of one."""


class Book(Protocol):
    """Where grants and the audit are kept. All raise StoreError where that fails."""

    async def grants(self, owner: str, session_id: str | None = None) -> list[types.Grant]: ...
    async def grant(self, owner: str, rule: str, *, session_id: str | None = None, by: str) -> types.Grant: ...
    async def begin_audit(
        self, session_id: str, call_id: str, tool: str, summary: str, allowed: bool, by: str
    ) -> int: ...
    async def end_audit(self, audit_id: int, ok: bool) -> bool: ...


class Decision(msgspec.Struct, frozen=True):
    """Whether something may be done, who said so, and what the model is told where it may not."""

    allowed: bool
    by: str
    why: str = ""


_INERT = Decision(False, "mode: read-only", READ_ONLY)


class Question(msgspec.Struct, frozen=True):
    """Something that waits for an answer."""

    asked: events.ApprovalAsked
    conversation_id: str
    rules: tuple[str, ...]
    answered: asyncio.Future[Decision]
    looks: bool = False
    """Whether it only looks, and so may be done whatever the mode."""


class Approvals:
    """The permissions of one owner, for any number of conversations of one process.

    `approve` is asked instead of people. `yes` allows whatever would be asked for, but for what is dangerous or may be
    what a rule forbids.
    """

    def __init__(
        self,
        book: Book,
        *,
        law: rules.Law | None = None,
        owner: str = "",
        approve: Approve | None = None,
        yes: bool = False,
    ) -> None:
        self._book, self.law, self.owner = book, law or rules.Law(), owner
        self._approve, self._yes = approve, yes
        self.mode: Mode = "ask"
        """How far things go without a word, as the person chose; what a rule forbids stays forbidden."""
        self._answering = Counter[str]()
        self._open: dict[tuple[str, str], Question] = {}
        self._numbers = Counter[str]()
        """How many questions each conversation was asked here: no two of this process have the same number."""
        self.prompt_lock = asyncio.Lock()
        """Held by whoever tells people of a question in several messages, so that those of two are not mixed."""

    def set_mode(self, mode: Mode) -> None:
        """From the next thing on that a tool wants to do; what waits for an answer has not been done yet."""
        self.mode = mode
        for question in self._open.values() if mode == "read-only" else ():
            if not question.looks:
                _settle(question, _INERT)

    # --- for those who answer ------------------------------------------------------------------------

    @contextmanager
    def accept_answers(self, conversation_id: str) -> Iterator[None]:
        """Within this block there is somebody who can answer questions of this conversation."""
        self._answering[conversation_id] += 1
        try:
            yield
        finally:
            self._answering[conversation_id] -= 1
            if self._answering[conversation_id] <= 0:
                del self._answering[conversation_id]
                for question in self.pending(conversation_id):
                    _settle(question, Decision(False, "nobody", LEFT))

    def pending(self, conversation_id: str) -> list[Question]:
        """What waits for an answer in this conversation, oldest first."""
        return [each for (where, _), each in self._open.items() if where == conversation_id]

    async def answer(self, conversation_id: str, given: events.Approve) -> str | None:
        """Take an answer. None: it counts; else a sentence why it does not, or not wholly."""
        # Taken before anything is waited for: nobody else can answer from here on.
        question = self._open.pop((conversation_id, given.request_id), None)
        if question is None:
            return "That is not asked any more."
        who = redaction.redacted(given.by) or "a person"
        if given.answer not in ("once", "conversation", "always"):
            # Whatever is not one of the ways to say yes is a no.
            reason = f" They said: {given.reason.strip()}" if given.reason.strip() else ""
            _settle(question, Decision(False, f"{who}: no", f"The person denied it.{reason}"))
            return None
        lasting = given.answer != "once" and bool(question.rules)
        try:
            if lasting:
                return await self._granted(question, given.answer, who)
        finally:
            _settle(question, Decision(True, f"{who}: {given.answer if lasting else 'once'}"))
        return None if given.answer == "once" else "It was allowed this once: such a thing is asked for every time."

    def expire(self, conversation_id: str, request_id: str, why: str) -> None:
        """Nobody has answered: it is not done, and nobody is said to have denied it."""
        if (question := self._open.pop((conversation_id, request_id), None)) is not None:
            _settle(question, Decision(False, "nobody", why))

    async def _granted(self, question: Question, answer: events.Answered, who: str) -> str | None:
        where = question.conversation_id if answer == "conversation" else None
        try:
            for rule in question.rules:
                await self._book.grant(self.owner, rule, session_id=where, by=who)
        except errors.HoldfastError as error:
            return f"It was allowed this once; that could not be remembered: {error}"
        return None

    # --- for an agent --------------------------------------------------------------------------------

    def gate(self, conversation_id: Callable[[], str], emit: Callable[[], Emit]) -> base.Gate:
        """What the plans of one agent's tools pass through."""

        @asynccontextmanager
        async def passing(call: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
            here = conversation_id()
            try:
                decision = await self._decided(here, call, act, emit())
            except asyncio.CancelledError:
                await self._note_interrupted(here, call, act)
                raise
            written = await self._written(here, call, act, decision)
            if decision.allowed and self._is_inert(act):
                # It was chosen while that was decided or written down.
                await loop.unhurried(self._ended(written, False))
                decision = _INERT
                await self._written(here, call, act, decision)
            if not decision.allowed:
                raise errors.NotAllowed(f"Not allowed: {act.summary} {decision.why}".rstrip())
            ok = False
            try:
                yield
                ok = True
            finally:
                await loop.unhurried(self._ended(written, ok))

        return passing

    def guarded(self, tools: Sequence[base.Tool]) -> list[base.Tool]:
        """The same tools, each of which looks first whether a rule forbids it: also those that only look.

        What is refused here, by a rule or by the tool itself, never gets to the gate, and is written down here.
        """
        return [self._guarded(tool) for tool in tools]

    def _guarded(self, tool: base.Tool) -> base.Tool:
        async def run(arguments: base.Arguments) -> types.Content | base.Plan:
            act = _looking(tool.spec.name, arguments, self.law.folder)
            verdict = rules.decide(act, self.law)
            # What a command line may do is told from its plan.
            if verdict.say == "deny" and act.tool not in rules.RUNNERS:
                await self._note_refused(act, verdict.by)
                raise errors.NotAllowed(f"Not allowed: {act.tool}. {_forbidden(verdict)}")
            if self.mode == "read-only" and tool.alters(arguments):
                await self._note_refused(act, _INERT.by)
                raise errors.NotAllowed(f"Not allowed: {act.tool}. {_INERT.why}")
            try:
                with base.calling(msgspec.structs.replace(base.current(), hidden=self._hidden(act.tool))):
                    return await tool.run(arguments)
            except errors.NotAllowed:
                await self._note_refused(act, "the tool: never")
                raise

        return msgspec.structs.replace(tool, run=run)

    def _hidden(self, tool: str) -> Callable[[str], bool]:
        """What a tool must not show: a search shows what is in files, as reading does."""
        names = ("search_files", "read_file") if tool == "search_files" else (tool,)
        return lambda path: any(rules.forbids(self.law, name, path) for name in names)

    # --- deciding ------------------------------------------------------------------------------------

    async def _decided(self, here: str, call: types.ToolCall, act: base.Act, emit: Emit) -> Decision:
        if self._is_inert(act):
            return _INERT
        try:
            grants = await self._book.grants(self.owner, here)
        except errors.HoldfastError:
            grants = []  # What cannot be read allows nothing.
        verdict = rules.decide(act, self.law, grants)
        if verdict.say == "deny":
            return Decision(False, verdict.by, _forbidden(verdict))
        if verdict.say == "allow":
            return Decision(True, verdict.by)
        if self.mode == "code" and verdict.by == "no rule" and act.kind == "change":
            return Decision(True, "mode: code")
        decision = await self._asked(here, call, act, verdict, emit)
        # Whoever has chosen meanwhile that nothing is to be done has the last word.
        return _INERT if decision.allowed and self._is_inert(act) else decision

    def _is_inert(self, act: base.Act) -> bool:
        return self.mode == "read-only" and act.kind != "look"

    async def _asked(
        self, here: str, call: types.ToolCall, act: base.Act, verdict: rules.Verdict, emit: Emit
    ) -> Decision:
        if verdict.maybe_denied:
            act = msgspec.structs.replace(act, danger=act.danger or f"It may do what is forbidden ({verdict.by}).")
        if self._approve is not None:
            return await self._by_program(self._approve, here, act, verdict)
        if self._yes:
            covered = not act.danger and not verdict.unclear
            return Decision(True, "--yes") if covered else Decision(False, "--yes", NOT_COVERED)
        if not self._answering[here]:
            return Decision(False, "nobody", NOBODY)
        self._numbers[here] += 1
        asked = events.ApprovalAsked(
            message_codec.generate_uid(),
            call.id,
            act.tool,
            act.summary,
            act.detail,
            act.danger,
            ", ".join(verdict.remembers),
            self._numbers[here],
        )
        question = Question(
            asked, here, verdict.remembers, asyncio.get_running_loop().create_future(), act.kind == "look"
        )
        self._open[here, asked.request_id] = question
        decision = Decision(False, "interrupted", "The turn was interrupted.")
        try:
            emit(asked)
            decision = await question.answered
        finally:
            question.answered.cancel()
            self._open.pop((here, asked.request_id), None)
            emit(events.ApprovalSettled(asked.request_id, decision.allowed, decision.by))
        return decision

    async def _by_program(self, approve: Approve, here: str, act: base.Act, verdict: rules.Verdict) -> Decision:
        try:
            answer = await approve(act)
        except Exception:
            # The border to code that is not ours: whatever it raises, it has not said yes.
            logger.exception("the approve function failed")
            return Decision(False, "the program", "The program that was to permit it failed.")
        if answer is True or answer == "once":
            return Decision(True, "the program: once")
        if answer not in ("conversation", "always"):
            return Decision(False, "the program: no", "The program denied it.")
        try:
            for rule in verdict.remembers:
                await self._book.grant(
                    self.owner, rule, session_id=here if answer == "conversation" else None, by="program"
                )
        except errors.HoldfastError as error:
            logger.warning("a permission could not be remembered: %s", error)
            return Decision(True, "the program: once")
        return Decision(True, f"the program: {answer if verdict.remembers else 'once'}")

    # --- writing down --------------------------------------------------------------------------------

    async def _written(self, here: str, call: types.ToolCall, act: base.Act, decision: Decision) -> int:
        what = redaction.redacted(act.detail if act.kind == "run" and act.detail else act.summary)
        try:
            return await loop.unhurried(
                self._book.begin_audit(here, call.id, act.tool, what, decision.allowed, decision.by)
            )
        except errors.HoldfastError as error:
            logger.warning("an act could not be written down: %s", error)
            raise errors.NotAllowed(f"Not allowed: {act.summary} {UNWRITTEN}") from None

    async def _note_refused(self, act: base.Act, by: str) -> None:
        """A refusal stands, also where it cannot be written down."""
        now = base.current()
        with suppress(errors.NotAllowed):
            call = types.ToolCall(now.call_id, act.tool, {})
            await self._written(now.conversation_id, call, act, Decision(False, by))

    async def _note_interrupted(self, here: str, call: types.ToolCall, act: base.Act) -> None:
        with suppress(errors.NotAllowed):
            await self._written(here, call, act, Decision(False, "interrupted"))

    async def _ended(self, written: int, ok: bool) -> None:
        try:
            await self._book.end_audit(written, ok)
        except errors.HoldfastError as error:
            logger.warning("the end of an act could not be written down: %s", error)


def _settle(question: Question, decision: Decision) -> None:
    if not question.answered.done():
        question.answered.set_result(decision)


def _forbidden(verdict: rules.Verdict) -> str:
    return f"A rule of the settings forbids it ({verdict.by.removeprefix('rule: ')})."


def _looking(tool: str, arguments: base.Arguments, folder: str) -> base.Act:
    """A call before it is known what it plans: the file or folder it names, with links resolved."""
    given = [name for key in ("path", "folder") if isinstance(name := arguments.get(key), str) and "\0" not in name]
    paths = tuple(os.path.realpath(os.path.join(folder, os.path.expanduser(name))) for name in given)
    summary = " ".join([tool, *(errors.shown(each, 200) for each in given)])
    return base.Act(tool=tool, kind="look", summary=f"{summary}.", paths=paths)
