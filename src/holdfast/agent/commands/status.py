"""Commands that tell how things stand: the conversation, what it used, its model, its tools, what is remembered."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import errors, events, types
from holdfast.agent import memory_notes, permission_commands
from holdfast.agent import usage as agent_usage
from holdfast.agent.commands import base, turns

ESTIMATE = (
    'Estimated from list prices, except where the provider reports the cost; `models."NAME".price` in the settings '
    "overrides them."
)
LASTS = "It holds for this conversation until the program ends; `holdfast config edit` sets `model` for good."


async def status(asked: base.Asked) -> None:
    desk, agent = asked.desk, await asked.desk.agents.get(asked.conversation_id)
    lines = [f"model         {agent.model.name} (window {agent.model.window:,} tokens)"]
    try:
        here = await desk.db.conversation(asked.conversation_id)
        lines += [
            f"conversation  {here.id}",
            f"session       {here.head_id}",
            f"title         {here.title or '-'}",
            f"folder        {here.folder or '-'}",
            f"messages      {here.last_seq}",
            f"context       about {await agent.context_tokens():,} tokens",
        ]
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        lines.append("conversation  begins with your first message")
    running = "running" if agent.busy or desk.running(asked.conversation_id) else "none"
    lines.append(f"turn          {running}, {desk.queued(asked.conversation_id)} waiting")
    asked.emit(events.Answer("\n".join(lines)))


async def usage(asked: base.Asked) -> None:
    try:
        used = await agent_usage.used(asked.desk.db, asked.conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        used = {}
    lines = [f"{name}: {_tokens(usage)}" for name, usage in used.items()]
    if cost := agent_usage.total_cost(used):
        lines.append(f"total: about ${cost:.4f}. {ESTIMATE}")
    asked.emit(events.Answer("\n".join(lines) or "Nothing was used yet."))


def _tokens(usage: types.Usage) -> str:
    cost = ", price unknown" if usage.cost is None else f", about ${usage.cost:.4f}" if usage.cost else ", free"
    return f"{usage.input:,} tokens in ({usage.cache_read:,} cached), {usage.output:,} out{cost}"


# --- the model -----------------------------------------------------------------------------------------


async def model(asked: base.Asked) -> None:
    desk = asked.desk
    if asked.argument:
        await _chosen(asked)
        return
    agent = await desk.agents.get(asked.conversation_id)
    lines = [f"{agent.model.name} (window {agent.model.window:,} tokens)"]
    others = [name for name in await _listed(desk) if name != agent.model.name]
    lines += ["/model NAME changes it. To be had:", *(f"  {name}" for name in others)] if others else []
    asked.emit(events.Answer("\n".join(lines)))


async def _chosen(asked: base.Asked) -> None:
    """Between turns: the agent is built anew, and one that is in a turn goes on with its model."""
    desk, here = asked.desk, asked.conversation_id
    if desk.models is None:
        raise errors.SettingInvalid("The model cannot be changed here.")
    if desk.running(here):
        raise errors.HoldfastError(turns.RUNNING)
    try:
        made = await desk.models.choose(here, asked.argument)
    except errors.SettingInvalid as error:
        known = ", ".join(await _listed(desk))
        raise errors.SettingInvalid(f"{error} To be had: {known}." if known else str(error)) from None
    desk.agents.forget(here)
    asked.emit(events.Answer(f"{made.name} answers from now on (window {made.window:,} tokens). {LASTS}"))


async def models(asked: base.Asked) -> Sequence[base.Candidate]:
    return [base.Candidate(name) for name in await _listed(asked.desk)]


async def _listed(desk: base.Desk) -> Sequence[str]:
    return await desk.models.listed() if desk.models is not None else ()


# --- memory and tools ----------------------------------------------------------------------------------


async def memory(asked: base.Asked) -> None:
    said, changed = await memory_notes.ordered(memory_notes.Notes(asked.desk.db, asked.desk.owner), asked.argument)
    for agent in asked.desk.agents.every() if changed else ():
        agent.memory.changed()
    asked.emit(events.Answer(said))


async def remembered(asked: base.Asked) -> Sequence[base.Candidate]:
    kept = await asked.desk.db.memory.all(asked.desk.owner)
    every = [base.Candidate("add ", "remember something"), base.Candidate("list", "show what is remembered")]
    for verb in ("edit", "forget"):
        end = " " if verb == "edit" else ""
        every += [base.Candidate(f"{verb} {each.id}{end}", each.text) for each in kept]
    return [*every, *([base.Candidate("forget all", "everything")] if kept else ())]


async def tools(asked: base.Asked) -> None:
    agent = await asked.desk.agents.get(asked.conversation_id)
    if not asked.desk.running(asked.conversation_id):
        # A turn has those it began with.
        for remark in await agent.tools.freshen():
            asked.emit(events.Notice(remark, "warning"))
    asked.emit(events.Answer(permission_commands.tools(agent.tools.specs, asked.desk.approvals.law.rules)))
