"""All slash commands, in the order in which they are listed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from difflib import get_close_matches

from holdfast import errors, events
from holdfast.agent.commands import base, context, conversations, links, permissions, status, turns

MIN_SIMILARITY = 0.6
"""How similar (of 1) an unknown name must be to a known one to suggest it."""

COMPACT = """\
/compact               compact now, without waiting for the automatic thresholds
/compact the budget    give most of the summary to what you name
/compact --preview     show what would be summarized and what would stay; changes nothing
/compact here 3        keep the last 3 exchanges verbatim
/compact undo | redo   undo the last compaction, or redo it
The originals stay: /recall shows them."""
UNDO = """\
Removes your last message and everything after it from the context. The transcript keeps it.
/undo 3 undoes three turns; /redo restores them.
Turns that a summary represents can be undone after /compact undo."""
MODEL = """\
/model                 show the model and those that are available
/model openai/gpt-5    change it for this conversation, until the program ends"""
SEARCH = """\
Ask in plain language; a "phrase in quotes" must occur verbatim.
/recall WORDS searches only this conversation."""
QUEUE = """\
A message that you send during a turn waits for its end.
/queue                 list waiting messages
/queue drop 2          drop the second one
/queue drop all        drop all"""
LINK = """\
/link                  show a code that continues this conversation in another chat
/link CODE             in that chat: use the conversations and notes of the person who got the code
/link off              in that chat: use separate ones again; in the first chat: end the links to it"""
IN_CHATS = base.EVERYWHERE - {"once"}
IN_ONE_PLACE = IN_CHATS - {"editor"}
"""Front ends that show one conversation at a time; an editor opens each in a panel of its own."""
BEGINS = "A message without -c and -r begins a new conversation."


def _always(_argument: str) -> bool:
    return True


async def _quit(invocation: base.Invocation) -> None:
    invocation.emit(events.Quit())


async def _help(invocation: base.Invocation) -> None:
    listed = available(invocation.host, invocation.place)
    if not invocation.argument:
        width = max(len(_form(each)) for each in listed)
        invocation.answer("\n".join(f"{_form(each):{width}}  {each.help}" for each in listed))
        if invocation.host.input_help:
            invocation.answer(f"\n{invocation.host.input_help}")
        return
    name = invocation.argument.lstrip("/")
    found = {each.name: each for each in (*listed, *COMMANDS.values())}.get(name.lower())
    if found is None:
        raise errors.InvalidArgument(unknown(invocation, name))
    target = COMMANDS[found.same_as] if isinstance(found, base.SlashCommand) and found.same_as else found
    more = target.more if isinstance(target, base.SlashCommand) else ""
    form = f"/{found.name} {target.argument}".rstrip()
    invocation.answer("\n".join(line for line in (form, found.help, more) if line))


async def _complete_help(invocation: base.Invocation) -> Sequence[base.Candidate]:
    return [base.Candidate(each.name, each.help) for each in available(invocation.host, invocation.place)]


def available(host: base.CommandHost, place: events.Place) -> list[base.CommandInfo]:
    """Return the commands that are available in a front end, prompt commands last."""
    prompts = host.prompt_commands.listed() if host.prompt_commands else ()
    return [*(each for each in COMMANDS.values() if place in each.places), *prompts]


def _form(command: base.CommandInfo) -> str:
    return f"/{command.name} {command.argument}".rstrip()


def unknown(invocation: base.Invocation, name: str) -> str:
    """Return the error message for an unknown name, with the most similar command."""
    similar = nearest(name, [each.name for each in available(invocation.host, invocation.place)])
    hint = f" Did you mean /{similar}?" if similar else ""
    return f"Unknown command: {errors.quote('/' + name)}.{hint} Type /help for the list."


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the name that was probably meant, if any."""
    begun = [each for each in names if name and each.startswith(name.lower())]
    return next(iter(begun or get_close_matches(name.lower(), names, 1, MIN_SIMILARITY)), None)


_new = base.SlashCommand(
    name="new",
    help="Begin a new conversation.",
    run=conversations.new,
    argument="[TITLE]",
    places=IN_ONE_PLACE,
    instead=BEGINS,
    opens_conversation=True,
)
_compact = base.SlashCommand(
    name="compact",
    help="Replace the older part of the context with a summary.",
    run=context.compact,
    argument="[FOCUS | --preview | here N | undo | redo]",
    more=COMPACT,
    completes=context.FORMS,
    needs=True,
    slow=True,
)


def _alias(command: base.SlashCommand, name: str, argument: str) -> base.SlashCommand:
    fields = {field: getattr(command, field) for field in command.__struct_fields__}
    changed = {"name": name, "argument": argument, "help": f"Alias of /{command.name}.", "same_as": command.name}
    return base.SlashCommand(**fields | changed | {"more": ""})


_ALL = (
    base.SlashCommand(
        name="help",
        help="List the commands, or explain one.",
        run=_help,
        argument="[COMMAND]",
        completes=_complete_help,
        during_turn=True,
    ),
    _new,
    _alias(_new, "reset", "[TITLE]"),
    base.SlashCommand(
        name="title", help="Show or set the title.", run=conversations.title, argument="[TEXT]", ordered=True
    ),
    base.SlashCommand(
        name="sessions",
        help="List conversations, most recent first.",
        run=conversations.sessions,
        read_only=_always,
    ),
    base.SlashCommand(
        name="resume",
        help="Continue another conversation: an id, a title, or `last`.",
        run=conversations.resume,
        argument="[ID]",
        completes=conversations.complete_resume,
        places=IN_ONE_PLACE,
        instead="-r ID continues another conversation.",
        picks_conversation=True,
    ),
    base.SlashCommand(
        name="branch",
        help="Continue in a copy of this conversation; the original stays as it is.",
        run=conversations.branch,
        argument="[TITLE]",
        needs=True,
        ordered=True,
        opens_conversation=True,
    ),
    base.SlashCommand(
        name="search",
        help="Search all your conversations.",
        run=conversations.search,
        argument="WORDS",
        more=SEARCH,
        read_only=_always,
    ),
    base.SlashCommand(
        name="status", help="Show model, conversation and running turn.", run=status.status, during_turn=True
    ),
    base.SlashCommand(
        name="usage",
        help="Show the tokens and cost of this conversation.",
        run=status.usage,
        read_only=_always,
    ),
    base.SlashCommand(
        name="model",
        help="Show or change the model.",
        run=status.model,
        argument="[PROVIDER/MODEL]",
        more=MODEL,
        completes=status.complete_model,
        admin_only=bool,  # a model may cost more
    ),
    base.SlashCommand(
        name="undo",
        help="Undo the last turn, or the last N.",
        run=turns.undo,
        argument="[N]",
        more=UNDO,
        needs=True,
        ordered=True,
    ),
    base.SlashCommand(name="redo", help="Restore what was undone last.", run=turns.redo, needs=True, ordered=True),
    base.SlashCommand(
        name="retry", help="Undo the last turn and ask the same again.", run=turns.retry, needs=True, ordered=True
    ),
    _compact,
    _alias(_compact, "compress", "[...]"),
    base.SlashCommand(
        name="recall",
        help="Show original messages: a number, a range, or words.",
        run=context.recall,
        argument="SEQ|WORDS",
        needs=True,
    ),
    base.SlashCommand(
        name="pin",
        help="Keep a message verbatim in every compaction, or list pinned messages.",
        run=context.pin,
        argument="[N | last]",
        completes=base.choices(("last", "the last message")),
        ordered=True,
    ),
    base.SlashCommand(
        name="unpin",
        help="Let the next compaction summarize a message again.",
        run=context.unpin,
        argument="N",
        completes=context.complete_pins,
        needs=True,
        ordered=True,
    ),
    base.SlashCommand(
        name="memory",
        help="Show or change the notes about you.",
        run=status.memory,
        argument="[add TEXT | edit ID TEXT | forget ID|all]",
        completes=status.complete_memory,
        read_only=operator.not_,
    ),
    base.SlashCommand(
        name="link",
        help="Continue this conversation in a chat on another platform.",
        run=links.link,
        argument="[CODE | off]",
        more=LINK,
        places=IN_CHATS,
        instead="Open the conversation without -p to get a code.",
    ),
    base.SlashCommand(name="tools", help="List the tools and their rules.", run=status.tools, read_only=_always),
    base.SlashCommand(
        name="permissions",
        help="List rules and grants, or revoke a grant.",
        run=permissions.permissions,
        argument="[revoke ID]",
        completes=permissions.complete_revoke,
        read_only=operator.not_,
    ),
    base.SlashCommand(
        name="approve",
        help="Approve a pending request.",
        run=permissions.approve,
        argument="[NUMBER] [once | conversation | always]",
        completes=permissions.COMPLETE_ANSWERS,
        places=IN_CHATS,
        instead="No approvals are requested here; --yes approves what tools would ask for.",
        during_turn=True,
        ordered=True,
        admin_only=lambda argument: "always" in argument.lower().split(),
    ),
    base.SlashCommand(
        name="deny",
        help="Deny a pending request; the model is sent the reason.",
        run=permissions.deny,
        argument="[NUMBER] [REASON]",
        places=IN_CHATS,
        instead="No approvals are requested here; actions that need one are denied.",
        during_turn=True,
        ordered=True,
    ),
    base.SlashCommand(
        name="stop",
        help="Stop the running turn or command; stored messages stay.",
        run=turns.stop,
        places=IN_CHATS,
        instead="Ctrl-C stops the program.",
        during_turn=True,
    ),
    base.SlashCommand(
        name="steer",
        help="Send a message into the running turn, before its next step.",
        run=turns.steer,
        argument="TEXT",
        more="Without a running turn, it is an ordinary message.",
        places=IN_CHATS,
        instead="No turn is running that could be steered.",
        during_turn=True,
        ordered=True,
    ),
    base.SlashCommand(
        name="queue",
        help="List waiting messages, or drop them.",
        run=turns.queue,
        argument="[drop N|all]",
        more=QUEUE,
        completes=turns.complete_queue,
        places=IN_CHATS,
        instead="There is no queue for a single message.",
        during_turn=True,
        ordered=True,
    ),
    base.SlashCommand(
        name="quit",
        help="Leave. The conversation is kept.",
        run=_quit,
        places=frozenset[events.Place]({"terminal"}),
        instead="The program ends by itself after one message.",
        during_turn=True,
    ),
)
COMMANDS: dict[str, base.SlashCommand] = {command.name: command for command in _ALL}
