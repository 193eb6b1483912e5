"""Commands about the agent: status, usage, model, memory and tools."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import errors, events, types
from holdfast.agent import memory as agent_memory
from holdfast.agent import usage as agent_usage
from holdfast.agent.commands import base, permissions, turns
from holdfast.tools import memory as memory_tool

ESTIMATE = (
    'Estimated from list prices, except where the provider reports the cost; `models."NAME".price` in the settings '
    "overrides them."
)
LASTS = "This applies to this conversation until the program ends; `holdfast config edit` sets `model` permanently."
MEMORY_USAGE = "/memory lists the notes; add TEXT, edit ID TEXT and forget ID|all change them."


async def status(invocation: base.Invocation, waiting: int = 0) -> None:
    """Show the status; `waiting` counts messages that wait outside this process."""
    host, conversation_id = invocation.host, invocation.conversation_id
    agent = await host.agents.get(conversation_id)
    lines = [f"model         {agent.model.name} (window {agent.model.window:,} tokens)"]
    try:
        found = await host.db.conversation(conversation_id)
        lines += [
            f"conversation  {found.id}",
            f"session       {found.head_id}",
            f"title         {found.title or '-'}",
            f"folder        {found.folder or '-'}",
            f"messages      {found.last_seq}",
            f"context       about {await agent.context_tokens():,} tokens",
        ]
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        lines.append("conversation  begins with your first message")
    running = "running" if agent.busy or host.running(conversation_id) else "none"
    if running == "none" and (holder := await turns.find_other_turn(invocation)):
        running = f"running elsewhere ({holder})"
    lines.append(f"turn          {running}, {host.queued(conversation_id) + waiting} waiting")
    invocation.answer("\n".join(lines))


async def usage(invocation: base.Invocation) -> None:
    try:
        used = await agent_usage.read(invocation.host.db, invocation.conversation_id)
    except errors.ConversationDeleted:
        raise
    except errors.NoSuchSession:
        used = {}
    lines = [f"{name}: {_tokens(usage)}" for name, usage in used.items()]
    if cost := agent_usage.total_cost(used):
        lines.append(f"total: about ${cost:.4f}. {ESTIMATE}")
    invocation.answer("\n".join(lines) or "No tokens used yet.")


def _tokens(usage: types.Usage) -> str:
    cost = ", price unknown" if usage.cost is None else f", about ${usage.cost:.4f}" if usage.cost else ", free"
    return f"{usage.input:,} tokens in ({usage.cache_read:,} cached), {usage.output:,} out{cost}"


# --- model ---------------------------------------------------------------------------------------------


async def model(invocation: base.Invocation) -> None:
    if invocation.argument:
        await _choose_model(invocation)
        return
    agent = await invocation.host.agents.get(invocation.conversation_id)
    lines = [f"{agent.model.name} (window {agent.model.window:,} tokens)"]
    others = [name for name in await _models(invocation.host) if name != agent.model.name]
    lines += ["/model NAME changes it. Available:", *(f"  {name}" for name in others)] if others else []
    invocation.answer("\n".join(lines))


async def _choose_model(invocation: base.Invocation) -> None:
    """Change the model between turns: the agent is built again with it."""
    host, conversation_id = invocation.host, invocation.conversation_id
    if host.models is None:
        raise errors.SettingInvalid("The model cannot be changed here.")
    if host.running(conversation_id):
        raise errors.HoldfastError(turns.RUNNING)
    try:
        made = await host.models.choose(conversation_id, invocation.argument)
    except errors.SettingInvalid as error:
        known = ", ".join(await _models(host))
        raise errors.SettingInvalid(f"{error} Available: {known}." if known else str(error)) from None
    host.agents.forget(conversation_id)
    invocation.answer(f"The model is {made.name} now (window {made.window:,} tokens). {LASTS}")


async def complete_model(invocation: base.Invocation) -> Sequence[base.Candidate]:
    return [base.Candidate(name) for name in await _models(invocation.host)]


async def _models(host: base.CommandHost) -> Sequence[str]:
    return await host.models.listed() if host.models is not None else ()


# --- memory and tools ----------------------------------------------------------------------------------


async def memory(invocation: base.Invocation) -> None:
    notes = agent_memory.Notes(invocation.host.db, invocation.host.owner)
    answer, changed = await _change_memory(notes, invocation.argument)
    for agent in invocation.host.agents.every() if changed else ():
        agent.memory.invalidate()
    invocation.answer(answer)


async def _change_memory(notes: agent_memory.Notes, argument: str) -> tuple[str, bool]:
    """Return the answer, and whether notes were changed. Raises InvalidArgument."""
    verb, _, rest = argument.partition(" ")
    which, _, text = rest.strip().partition(" ")
    number = base.parse_number(which, 15)
    match verb.lower():
        case "" | "list":
            return "\n".join(map(memory_tool.format_note, await notes.memories())) or "No notes.", False
        case "add" if rest.strip():
            return f"Added: {memory_tool.format_note(await notes.remember(rest.strip()))}", True
        case "edit" if number and text.strip():
            return f"Changed: {memory_tool.format_note(await notes.revise(number, text.strip()))}", True
        case "forget" if which.lower() == "all" and not text:
            every = await notes.memories()
            for each in every:
                await notes.forget(each.id)
            return f"Deleted {len(every)} note{'s' * (len(every) != 1)}." if every else "No notes.", True
        case "forget" if number and not text:
            found = await notes.forget(number)
            return f"Deleted note {number}." if found else f"There is no note {number}.", found
    raise errors.InvalidArgument(MEMORY_USAGE)


async def complete_memory(invocation: base.Invocation) -> Sequence[base.Candidate]:
    notes = await invocation.host.db.memory.all(invocation.host.owner)
    values = [base.Candidate("add ", "add a note"), base.Candidate("list", "list the notes")]
    values += [base.Candidate(f"edit {each.id} ", each.text) for each in notes]
    values += [base.Candidate(f"forget {each.id}", each.text) for each in notes]
    return [*values, *([base.Candidate("forget all", "delete all notes")] if notes else ())]


async def tools(invocation: base.Invocation) -> None:
    agent = await invocation.host.agents.get(invocation.conversation_id)
    if not invocation.host.running(invocation.conversation_id):
        # A running turn keeps the tools it began with.
        for warning in await agent.tools.update():
            invocation.emit(events.Notice(warning, "warning"))
    invocation.answer(permissions.list_tools(agent.tools.specs, invocation.host.approvals.law.rules))
