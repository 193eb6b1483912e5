"""Approvals: every action of a tool is decided by rules and grants or by a person, and recorded in the audit log.

A pending approval belongs to its conversation, not to a session, so it can be answered after a compaction. The first
answer counts. If no one can answer, the action is denied at once, and also when the last client that could answer
disconnects. Rules come only from the settings and grants only from `Approve` commands: models, files and tools have no
influence. An action that cannot be recorded is not executed.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Literal

import msgspec

from holdfast import errors, events, redaction, types
from holdfast.agent import loop
from holdfast.store import async_mirror, message_codec
from holdfast.tools import base
from holdfast.tools.permissions import rules

logger = logging.getLogger("holdfast.agent")

NO_APPROVER = "No one is connected who could approve it."
APPROVER_LEFT = "The client that could have approved it has disconnected."
NOT_COVERED = "It is dangerous or may be forbidden, which the general approval does not cover."
NOT_RECORDED = "The approval could not be recorded in the audit log."
READ_ONLY = "This session is read-only: nothing is changed or run until the person chooses another mode."

Mode = Literal["ask", "code", "read-only"]
"""Ask for everything that no rule or grant allows; change files of the working folder without asking; only read."""

Emit = Callable[[events.AnyEvent], None]
Approve = Callable[[base.Act], Awaitable[bool | events.Answered]]
"""A function of the embedding program that decides instead of a person."""


class Decision(msgspec.Struct, frozen=True):
    """Whether an action is allowed, who decided, and the reason sent to the model if it is not."""

    allowed: bool
    by: str
    why: str = ""


_READ_ONLY = Decision(False, "mode: read-only", READ_ONLY)


class PendingApproval(msgspec.Struct, frozen=True):
    """An action that waits for an answer."""

    asked: events.ApprovalAsked
    rules: tuple[str, ...]
    decision: asyncio.Future[Decision]
    reads_only: bool = False
    """Whether the action only reads, and so is allowed in every mode."""


class Approvals:
    """The permissions of one owner, for all conversations of one process, and the queue of pending approvals.

    `approve` decides instead of a person. `yes` approves everything except dangerous actions and those that a rule may
    forbid.
    """

    def __init__(
        self,
        store: async_mirror.AsyncPermissionRecords,
        *,
        law: rules.Policy | None = None,
        owner: str = "",
        approve: Approve | None = None,
        yes: bool = False,
    ) -> None:
        self._store, self.law, self.owner = store, law or rules.Policy(), owner
        self._approve, self._yes = approve, yes
        self.mode: Mode = "ask"
        """The permission mode that the user chose. Deny rules apply in every mode."""
        self._approvers = Counter[str]()
        self._pending: dict[tuple[str, str], PendingApproval] = {}
        self._numbers = Counter[str]()
        """The number of the last approval request of each conversation."""
        self.prompt_lock = asyncio.Lock()
        """Held while a request is shown in several messages, so that two requests are not mixed."""

    def set_mode(self, mode: Mode) -> None:
        """Change the mode for the next action. Pending approvals are denied if the mode is read-only."""
        self.mode = mode
        for pending in self._pending.values() if mode == "read-only" else ():
            if not pending.reads_only:
                _decide(pending, _READ_ONLY)

    # --- answers -------------------------------------------------------------------------------------

    @contextmanager
    def accept_answers(self, conversation_id: str) -> Iterator[None]:
        """Accept answers for this conversation during the block: a client is connected that can ask a person."""
        self._approvers[conversation_id] += 1
        try:
            yield
        finally:
            self._approvers[conversation_id] -= 1
            if self._approvers[conversation_id] <= 0:
                del self._approvers[conversation_id]
                for pending in self.pending(conversation_id):
                    _decide(pending, Decision(False, "no approver", APPROVER_LEFT))

    def pending(self, conversation_id: str) -> list[PendingApproval]:
        """Return the pending approvals of this conversation, oldest first."""
        return [each for (where, _), each in self._pending.items() if where == conversation_id]

    async def answer(self, conversation_id: str, given: events.Approve) -> str | None:
        """Apply an answer. Return None, or a sentence why it was not applied, or not fully."""
        # Removed before the first await: from here on no other client can answer.
        pending = self._pending.pop((conversation_id, given.request_id), None)
        if pending is None:
            return "This approval request is no longer pending."
        who = redaction.redact(given.by) or "a person"
        if given.answer not in ("once", "conversation", "always"):
            reason = f" They said: {given.reason.strip()}" if given.reason.strip() else ""
            _decide(pending, Decision(False, f"{who}: no", f"The person denied it.{reason}"))
            return None
        lasting = given.answer != "once" and bool(pending.rules)
        try:
            if lasting:
                return await self._grant(conversation_id, pending.rules, given.answer, who)
        finally:
            _decide(pending, Decision(True, f"{who}: {given.answer if lasting else 'once'}"))
        return None if given.answer == "once" else "Allowed this once: such an action needs approval every time."

    def expire(self, conversation_id: str, request_id: str, why: str) -> None:
        """Deny a request that was not answered, without naming a person."""
        if (pending := self._pending.pop((conversation_id, request_id), None)) is not None:
            _decide(pending, Decision(False, "no approver", why))

    async def _grant(self, where: str, granted: Sequence[str], answer: events.Answered, who: str) -> str | None:
        """Store the rules of a lasting answer; return a sentence if that failed."""
        try:
            for rule in granted:
                session_id = where if answer == "conversation" else None
                await self._store.grant(self.owner, rule, session_id=session_id, by=who)
        except errors.HoldfastError as error:
            return f"Allowed this once; the permission could not be stored: {error}"
        return None

    # --- the agent -----------------------------------------------------------------------------------

    def gate(self, conversation_id: Callable[[], str], emit: Emit) -> base.Gate:
        """Return the gate through which the plans of one agent's tools pass."""

        @asynccontextmanager
        async def gate(call: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
            where = conversation_id()
            try:
                decision = await self._decide_act(where, call, act, emit)
            except asyncio.CancelledError:
                await self._record_refusal(where, call, act, "interrupted")
                raise
            audit_id = await self._record(where, call, act, decision)
            if decision.allowed and self._is_read_only(act):
                # The mode changed during the decision.
                await loop.finish_despite_cancel(self._record_end(audit_id, False))
                decision = _READ_ONLY
                await self._record(where, call, act, decision)
            if not decision.allowed:
                raise errors.NotAllowed(f"Not allowed: {act.summary} {decision.why}".rstrip())
            ok = False
            try:
                yield
                ok = True
            finally:
                await loop.finish_despite_cancel(self._record_end(audit_id, ok))

        return gate

    def guard(self, tools: Sequence[base.Tool]) -> list[base.Tool]:
        """Return the tools, each wrapped with a check of the rules that deny it; this includes tools that only read.

        Refusals by a rule or by the tool itself never reach the gate, so they are recorded here.
        """
        return [self._guard_one(tool) for tool in tools]

    def _guard_one(self, tool: base.Tool) -> base.Tool:
        # A search shows file contents, as reading does.
        names = ("search_files", "read_file") if tool.spec.name == "search_files" else (tool.spec.name,)

        def is_hidden(path: str) -> bool:
            return any(rules.denies_path(self.law, name, path) for name in names)

        async def run(arguments: base.Arguments) -> types.Content | base.Plan:
            act, now = _planned_read(tool.spec.name, arguments, self.law.folder), base.current()
            verdict, by = rules.decide(act, self.law), "the tool: never"
            try:
                # The rules for command lines are applied to the plan.
                if verdict.effect == "deny" and act.tool not in rules.RUNNERS:
                    by = verdict.origin
                    raise errors.NotAllowed(f"Not allowed: {act.tool}. {_forbidden(verdict)}")
                if self.mode == "read-only" and tool.alters(arguments):
                    by = _READ_ONLY.by
                    raise errors.NotAllowed(f"Not allowed: {act.tool}. {_READ_ONLY.why}")
                with base.calling(msgspec.structs.replace(now, hidden=is_hidden)):
                    return await tool.run(arguments)
            except errors.NotAllowed:
                call = types.ToolCall(now.call_id, act.tool, {})
                await self._record_refusal(now.conversation_id, call, act, by)
                raise

        return msgspec.structs.replace(tool, run=run)

    # --- decisions -----------------------------------------------------------------------------------

    async def _decide_act(self, where: str, call: types.ToolCall, act: base.Act, emit: Emit) -> Decision:
        if self._is_read_only(act):
            return _READ_ONLY
        try:
            grants = await self._store.grants(self.owner, where)
        except errors.HoldfastError:
            grants = []  # unreadable grants allow nothing
        verdict = rules.decide(act, self.law, grants)
        if verdict.effect == "deny":
            return Decision(False, verdict.origin, _forbidden(verdict))
        if verdict.effect == "allow":
            return Decision(True, verdict.origin)
        if self.mode == "code" and verdict.origin == "no rule" and act.kind == "change":
            return Decision(True, "mode: code")
        decision = await self._ask(where, call, act, verdict, emit)
        # The person may have switched to read-only meanwhile.
        return _READ_ONLY if decision.allowed and self._is_read_only(act) else decision

    def _is_read_only(self, act: base.Act) -> bool:
        return self.mode == "read-only" and act.kind != "look"

    async def _ask(
        self, where: str, call: types.ToolCall, act: base.Act, verdict: rules.RuleDecision, emit: Emit
    ) -> Decision:
        if verdict.maybe_denied:
            act = msgspec.structs.replace(act, danger=act.danger or f"A rule may forbid it ({verdict.origin}).")
        if self._approve is not None:
            return await self._ask_program(self._approve, where, act, verdict)
        if self._yes:
            covered = not act.danger and not verdict.unclear
            return Decision(True, "--yes") if covered else Decision(False, "--yes", NOT_COVERED)
        if not self._approvers[where]:
            return Decision(False, "no approver", NO_APPROVER)
        self._numbers[where] += 1
        asked = events.ApprovalAsked(
            message_codec.generate_uid(),
            call.id,
            act.tool,
            act.summary,
            act.detail,
            act.danger,
            ", ".join(verdict.grants),
            self._numbers[where],
        )
        future: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        self._pending[where, asked.request_id] = PendingApproval(asked, verdict.grants, future, act.kind == "look")
        decision = Decision(False, "interrupted", "The turn was interrupted.")
        try:
            emit(asked)
            decision = await future
        finally:
            future.cancel()
            self._pending.pop((where, asked.request_id), None)
            emit(events.ApprovalSettled(asked.request_id, decision.allowed, decision.by))
        return decision

    async def _ask_program(self, approve: Approve, where: str, act: base.Act, verdict: rules.RuleDecision) -> Decision:
        try:
            answer = await approve(act)
        except Exception:
            # Border to the embedding program: any exception is a denial.
            logger.exception("the approve function failed")
            return Decision(False, "the program", "The program that decides about it failed.")
        if answer is True or answer == "once":
            return Decision(True, "the program: once")
        if answer not in ("conversation", "always"):
            return Decision(False, "the program: no", "The program denied it.")
        problem = await self._grant(where, verdict.grants, answer, "program")
        if problem:
            logger.warning("%s", problem)
        return Decision(True, f"the program: {'once' if problem or not verdict.grants else answer}")

    # --- audit log -----------------------------------------------------------------------------------

    async def _record(self, where: str, call: types.ToolCall, act: base.Act, decision: Decision) -> int:
        what = redaction.redact(act.detail if act.kind == "run" and act.detail else act.summary)
        try:
            return await loop.finish_despite_cancel(
                self._store.begin_audit(where, call.id, act.tool, what, decision.allowed, decision.by)
            )
        except errors.HoldfastError as error:
            logger.warning("could not record an action in the audit log: %s", error)
            raise errors.NotAllowed(f"Not allowed: {act.summary} {NOT_RECORDED}") from None

    async def _record_refusal(self, where: str, call: types.ToolCall, act: base.Act, by: str) -> None:
        """Record a refusal; it holds even if it cannot be recorded."""
        with suppress(errors.NotAllowed):
            await self._record(where, call, act, Decision(False, by))

    async def _record_end(self, audit_id: int, ok: bool) -> None:
        try:
            await self._store.end_audit(audit_id, ok)
        except errors.HoldfastError as error:
            logger.warning("could not record the end of an action in the audit log: %s", error)


def _decide(pending: PendingApproval, decision: Decision) -> None:
    if not pending.decision.done():
        pending.decision.set_result(decision)


def _forbidden(verdict: rules.RuleDecision) -> str:
    return f"A rule in the settings forbids it ({verdict.origin.removeprefix('rule: ')})."


def _planned_read(tool: str, arguments: base.Arguments, folder: str) -> base.Act:
    """Describe a call before it has made a plan: the file or folder it names, with links resolved."""
    given = [name for key in ("path", "folder") if isinstance(name := arguments.get(key), str) and "\0" not in name]
    paths = tuple(os.path.realpath(os.path.join(folder, os.path.expanduser(name))) for name in given)
    summary = " ".join([tool, *(errors.quote(each, 200) for each in given)])
    return base.Act(tool=tool, kind="look", summary=f"{summary}.", paths=paths)
