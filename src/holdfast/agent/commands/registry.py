"""All commands, in the order they are listed."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from holdfast import errors, events
from holdfast.agent.commands import base, context, conversations, permissions, status, turns

NEAR = 0.6
"""How alike a name must be to one that exists to be taken for a slip: of 1."""

COMPACT = """\
/compact               now, whatever the automatic one waits for
/compact the budget    what you name gets most of the room
/compact --preview     show what would go and what would stay; changes nothing
/compact here 3        keep the last 3 exchanges word for word
/compact undo | redo   take the last one back, and forth
The originals stay: /recall shows them."""
UNDO = """\
What you said last, and all that came of it, leaves the context. The transcript keeps it.
/undo 3 takes back three turns; /redo brings them back.
What a summary stands for can be taken back after /compact undo."""
MODEL = """\
/model                 which one answers, and which others can be had
/model openai/gpt-5    change it for this conversation, until the program ends"""
SEARCH = """\
Ask in plain language; a "phrase in quotes" must be there word for word.
/recall WORDS looks into this conversation alone."""
QUEUE = """\
A message that comes during a turn waits for it.
/queue                 list those that wait
/queue drop 2          take the second one back
/queue drop all        take back all"""
IN_CHATS = base.EVERYWHERE - {"once"}
ELSEWHERE = IN_CHATS - {"editor"}
"""Where one conversation is left for another: an editor has a place of its own for each."""
BEGINS = "A message without -c and -r begins a new conversation."
STEER = "Without a turn it is a message like any other."


async def _quit(asked: base.Asked) -> None:
    asked.emit(events.Quit())


async def _help(asked: base.Asked) -> None:
    if not asked.argument:
        listed = _here(asked)
        width = max(len(_form(each)) for each in listed)
        asked.emit(events.Answer("\n".join(f"{_form(each):{width}}  {each.help}" for each in listed)))
        return
    every = {each.name: each for each in (*COMMANDS.values(), *_others(asked.desk))}
    found = every.get(asked.argument.lstrip("/").lower())
    if found is None:
        raise errors.InvalidArgument(unknown(asked, asked.argument.lstrip("/")))
    same = COMMANDS[found.same_as] if isinstance(found, base.Slash) and found.same_as else found
    more = same.more if isinstance(same, base.Slash) else ""
    form = f"/{found.name} {same.argument}".rstrip()
    asked.emit(events.Answer("\n".join(line for line in (form, found.help, more) if line)))


async def _names(asked: base.Asked) -> Sequence[base.Candidate]:
    return [base.Candidate(each.name, each.help) for each in _here(asked)]


def _here(asked: base.Asked) -> list[base.CommandInfo]:
    """The commands that mean something where this one was given."""
    return [*(each for each in COMMANDS.values() if asked.place in each.places), *_others(asked.desk)]


def _form(each: base.CommandInfo) -> str:
    return f"/{each.name} {each.argument}".rstrip()


def _others(desk: base.Desk) -> Sequence[base.CommandInfo]:
    return desk.prompt_commands.listed() if desk.prompt_commands else ()


def unknown(asked: base.Asked, name: str) -> str:
    """What to say to a name that is none: the one that was meant, if it can be told."""
    near = nearest(name, [each.name for each in _here(asked)])
    meant = f" Did you mean /{near}?" if near else ""
    return f"There is no command {errors.shown('/' + name)}.{meant} /help lists them."


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The one of these names that was meant, if it can be told."""
    begun = [each for each in names if name and each.startswith(name.lower())]
    return next(iter(begun or get_close_matches(name.lower(), names, 1, NEAR)), None)


COMMANDS: dict[str, base.Slash] = {
    slash.name: slash
    for slash in (
        base.Slash(
            name="help",
            help="List the commands, or say more of one.",
            run=_help,
            argument="[COMMAND]",
            completes=_names,
        ),
        base.Slash(
            name="new",
            help="Begin a new conversation.",
            run=conversations.new,
            argument="[TITLE]",
            places=ELSEWHERE,
            instead=BEGINS,
        ),
        base.Slash(
            name="reset",
            help="The same as /new.",
            run=conversations.new,
            argument="[TITLE]",
            same_as="new",
            places=ELSEWHERE,
            instead=BEGINS,
        ),
        base.Slash(name="title", help="Show the title, or set it.", run=conversations.title, argument="[TEXT]"),
        base.Slash(name="sessions", help="List conversations, the most recent first.", run=conversations.sessions),
        base.Slash(
            name="resume",
            help="Go on with another conversation: an id, a title, or `last`.",
            run=conversations.resume,
            argument="[ID]",
            completes=conversations.resumable,
            places=ELSEWHERE,
            instead="-r ID goes on with another conversation.",
        ),
        base.Slash(
            name="branch",
            help="Go on in a copy of this conversation; this one stays as it is.",
            run=conversations.branch,
            argument="[TITLE]",
            needs=True,
        ),
        base.Slash(
            name="search",
            help="Find what was said in any of your conversations.",
            run=conversations.search,
            argument="WORDS",
            more=SEARCH,
        ),
        base.Slash(name="status", help="Show the model, the conversation and what runs.", run=status.status),
        base.Slash(name="usage", help="Show the tokens this conversation has used.", run=status.usage),
        base.Slash(
            name="model",
            help="Show which model answers, or choose another.",
            run=status.model,
            argument="[PROVIDER/MODEL]",
            more=MODEL,
            completes=status.models,
        ),
        base.Slash(
            name="undo",
            help="Take back the last turn, or the last N.",
            run=turns.undo,
            argument="[N]",
            more=UNDO,
            needs=True,
        ),
        base.Slash(name="redo", help="Bring back what was taken back last.", run=turns.redo, needs=True),
        base.Slash(name="retry", help="Take back the last answer and ask the same again.", run=turns.retry, needs=True),
        base.Slash(
            name="compact",
            help="Let a summary stand for the older part.",
            run=context.compact,
            argument="[FOCUS | --preview | here N | undo | redo]",
            more=COMPACT,
            completes=context.FORMS,
            needs=True,
        ),
        base.Slash(
            name="compress",
            help="The same as /compact.",
            run=context.compact,
            argument="[...]",
            completes=context.FORMS,
            needs=True,
            same_as="compact",
        ),
        base.Slash(
            name="recall",
            help="Show originals: a number, a range, or words.",
            run=context.recall,
            argument="SEQ|WORDS",
            needs=True,
        ),
        base.Slash(
            name="pin",
            help="Keep a message word for word, or list what is kept so.",
            run=context.pin,
            argument="[N | last]",
            completes=base.choices(("last", "the last message")),
        ),
        base.Slash(
            name="unpin",
            help="Let the next compaction have a message again.",
            run=context.unpin,
            argument="N",
            completes=context.pinned,
            needs=True,
        ),
        base.Slash(
            name="memory",
            help="Show what is remembered about you, or change it.",
            run=status.memory,
            argument="[add TEXT | edit ID TEXT | forget ID|all]",
            completes=status.remembered,
        ),
        base.Slash(name="tools", help="List the tools, and what the settings say of them.", run=status.tools),
        base.Slash(
            name="permissions",
            help="List what is allowed, or take it back.",
            run=permissions.permissions,
            argument="[revoke ID]",
            completes=permissions.revocable,
        ),
        base.Slash(
            name="approve",
            help="Allow what is asked for.",
            run=permissions.approve,
            argument="[NUMBER] [once | conversation | always]",
            completes=permissions.ANSWERS,
            places=IN_CHATS,
            instead="Nothing is asked here; --yes allows what tools would ask for.",
        ),
        base.Slash(
            name="deny",
            help="Deny what is asked for; the model is told why.",
            run=permissions.deny,
            argument="[NUMBER] [REASON]",
            places=IN_CHATS,
            instead="Nothing is asked here, and what would be is denied.",
        ),
        base.Slash(
            name="stop",
            help="Stop the running turn, or a compaction; what was said stays.",
            run=turns.stop,
            places=IN_CHATS,
            instead="Ctrl-C stops what runs.",
        ),
        base.Slash(
            name="steer",
            help="Tell the running turn something before its next step.",
            run=turns.steer,
            argument="TEXT",
            more=STEER,
            places=IN_CHATS,
            instead="Nothing runs that could be told something.",
        ),
        base.Slash(
            name="queue",
            help="List the messages that wait, or take one back.",
            run=turns.queue,
            argument="[drop N|all]",
            more=QUEUE,
            completes=turns.droppable,
            places=IN_CHATS,
            instead="One message does not wait behind others.",
        ),
        base.Slash(
            name="quit",
            help="Leave. The conversation stays.",
            run=_quit,
            places=frozenset[events.Place]({"terminal"}),
            instead="One message leaves by itself.",
        ),
    )
}
