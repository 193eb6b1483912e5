"""The built-in model for when there is no other: it finds and quotes, and calls a tool when plainly asked to.

There is no language model behind it, and it says so. It answers from the conversation, from the notes it was
given and from what tools bring; what it cannot find, it says it cannot find. The same request always gets the
same answer. After a tool has answered it speaks, so no message ever makes more than one round of calls.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, assert_never

import msgspec

from holdfast import content_parts, errors, types
from holdfast.model import base, intent, retrieval, tokens

MARK = "I am the offline model"
# How to get a real one is said by whoever chose this one.
INTRODUCTION = (
    f"{MARK}: no language model is behind me, I only find and quote what was said, and use tools when plainly asked."
)
NOTED = "Noted: this is kept as message {seq} of our conversation. I can find it again, but do no more with it."
SEARCH, READ, RUN = "search_conversation", "read_file", "shell"

# Of a question's words, weighed by how much they tell: from here on a sentence is an answer, below it a guess,
# and below the other not even that.
SURE, POOR = 0.6, 0.25
# Where not everything is in view, this much is needed to do without a search.
CERTAIN = 0.9
# After a search of everything, what comes nearest may be poorer: nothing else is there.
POORER = 0.15
QUOTE, EXCERPT, LINES = 300, 1_500, 20
# How many messages a search may bring, and by how many other words a question is asked there too.
HITS, WIDER = 20, 24


class Call(msgspec.Struct, frozen=True):
    """A tool to be called."""

    name: str
    arguments: dict[str, Any]


class OfflineModel:
    """Answers by retrieval, with no network and no model. One object serves any number of calls at once."""

    def __init__(self, *, window: int = 1_000_000, name: str = "holdfast/offline") -> None:
        self._window = window
        self._name = name
        self._meter = tokens.Meter()

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._window

    async def close(self) -> None:
        """There is nothing to close."""

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        # A long conversation that was never looked at takes a moment; others go on meanwhile.
        used = await asyncio.to_thread(self._meter.count, request.system, request.tools, request.messages)
        if used > self._window:
            raise errors.ContextOverflow(model=self._name)
        answer = await asyncio.to_thread(decide, request)
        if isinstance(answer, Call):
            arguments = msgspec.json.encode(answer.arguments).decode()
            yield base.Called(0, f"offline_{request.messages[-1].seq}", answer.name, arguments)
            yield base.Counted(types.Usage(used, tokens.estimate(answer.name) + tokens.estimate(arguments), cost=0.0))
            yield base.Finished("calls")
            return
        said, whole = _fitted(answer, request.max_output)
        for word in said:
            yield base.Said(word)
            # Whoever reads may want to stop here, and others to run.
            await asyncio.sleep(0)
        yield base.Counted(types.Usage(used, tokens.estimate("".join(said)), cost=0.0))
        yield base.Finished("stop" if whole else "length")


def _fitted(answer: str, most: int | None) -> tuple[list[str], bool]:
    """The words of an answer, as far as they fit."""
    words = re.findall(r"\s*\S{1,24}|\s+", answer)
    if most is None or tokens.estimate(answer) <= most:
        return words, True
    while words and tokens.estimate("".join(words)) > most:
        words = words[: len(words) * most // (most + max(1, most // 4)) if len(words) > 1 else 0]
    return words, False


# --- what to answer ----------------------------------------------------------------------------------


def decide(request: base.Request) -> str | Call:
    """The answer to a request: words, or a tool to be called."""
    messages = request.messages
    place = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    if place < 0:
        return INTRODUCTION
    asked, since = messages[place], messages[place + 1 :]
    wants = intent.of(content_parts.text(asked.content))
    if any(message.tool_calls or message.role == "tool" for message in since):
        results = [message for message in since if message.role == "tool"]
        answer: str | Call = _from_results(wants, results, messages)
    else:
        answer = _first(wants, asked, messages[:place], request)
    return answer if isinstance(answer, Call) else _introduced(answer, wants, messages)


def _introduced(answer: str, wants: intent.Intent, messages: Sequence[types.Message]) -> str:
    """Who answers here is said once, or when it is asked for."""
    if isinstance(wants, intent.Explain):
        return INTRODUCTION
    told = any(message.role == "assistant" and MARK in message.body for message in messages)
    return answer if told else f"{INTRODUCTION}\n\n{answer}".rstrip()


def _first(
    wants: intent.Intent, asked: types.Message, before: Sequence[types.Message], request: base.Request
) -> str | Call:
    offered = {tool.name for tool in request.tools}
    match wants:
        case intent.Nothing():
            images = any(isinstance(part, content_parts.Image) for part in content_parts.parse(asked.content))
            return "I cannot look at pictures." if images else "There are no words in that message."
        case intent.Greet():
            return "Hello. Tell me something to keep, or ask me about what was said."
        case intent.Explain():
            return INTRODUCTION
        case intent.Run(command):
            return _run(command, offered)
        case intent.Read(path):
            return Call(READ, {"path": path}) if READ in offered else "I have no tool to read files with here."
        case intent.Ask(text):
            return _found(text, before, request.system, offered)
        case intent.Tell():
            return NOTED.format(seq=asked.seq)
        case _:
            assert_never(wants)


def _run(command: str, offered: set[str]) -> str | Call:
    if RUN not in offered:
        return "I have no tool to run commands with here."
    if not command:
        return "I can only run a command that is written out, such as: run `ls -l`"
    return Call(RUN, {"command": command})


def _found(text: str, before: Sequence[types.Message], system: str, offered: set[str]) -> str | Call:
    found = _evidence(text, before)
    # Where a summary stands for a part, what is in view is not all: something there may fit better.
    enough = CERTAIN if SEARCH in offered and any(map(retrieval.is_summary, before)) else SURE
    if found and found[0].share >= enough:
        return _quoted(found, "")
    noted = retrieval.best_lines(text, _notes(system), least=SURE)
    if noted:
        return "My notes say: " + "; ".join(f"“{_line(line)}”" for line in noted)
    if SEARCH in offered:
        return Call(SEARCH, {"query": _query(text), "limit": HITS})
    return _nearest(found) or "I find nothing about that in our conversation."


# All this model says begins like one of these: it quotes, or speaks of itself, and neither answers anything.
_OWN = (
    *(MARK, "For real answers set ", "Noted: this is kept ", "I can find it again, but ", "Tell me something to keep"),
    *("You said ", "I said ", "A tool answered ", "It was noted ", "I am not sure, but this ", "This is what I found"),
    *(
        "I find nothing ",
        "I searched ",
        "I cannot look ",
        "I have no tool ",
        "I can only run ",
        "My notes say",
        f"{SEARCH} ",
    ),
)


def _evidence(asked: str, messages: Sequence[types.Message], least: float = POOR) -> list[retrieval.Found]:
    found = retrieval.best(asked, messages, searches=SEARCH, own=lambda text: text.startswith(_OWN))
    return [one for one in found if one.share >= least]


def _nearest(found: Sequence[retrieval.Found]) -> str:
    return _quoted(found[:1], "I am not sure, but this comes nearest. ") if found else ""


def _query(text: str) -> str:
    """The question, and other words it may have been told in: the search knows only words."""
    return " ".join([text[:500], *retrieval.widened(text)[:WIDER]])


def _notes(system: str) -> str:
    """What a prompt has in lists: that is where notes stand, while its sentences tell how to behave."""
    return "\n".join(line.strip(" -*\t") for line in system.splitlines() if line.lstrip().startswith(("- ", "* ")))


def _quoted(found: Sequence[retrieval.Found], opening: str) -> str:
    best, *others = found
    said = [f"{opening}{_who(best.role)} {_where(best)}: “{_line(best.text)}”"]
    said += [
        f"{_who(one.role)} also {_where(one)}: “{_line(one.text)}”"
        for one in others
        if one.step >= best.step - 1 and one.role == "user"
    ]
    return "\n".join(said)


_SPEAKERS = {"user": "You said", "assistant": "I said", "tool": "A tool answered", "system": "It was noted"}


def _who(role: str) -> str:
    return _SPEAKERS[role]


def _where(one: retrieval.Found) -> str:
    if not one.seq:
        return "in the summary of what came before"
    when = time.strftime(" (%Y-%m-%d %H:%M UTC)", time.gmtime(one.at)) if 0 < one.at < 1e11 else ""
    return f"in message {one.seq}{when}"


# --- after tools have answered -----------------------------------------------------------------------


# What a command wrote may begin with any word; how it ended stands behind it.
_ENDED = re.compile(r"\[(?:exit code \d+|killed\b[^\n]*|It was killed [^\n]*)\]\Z")
_EMPTY = re.compile(r"(?i)(?:no|nothing|0)\b")


def _from_results(wants: intent.Intent, results: Sequence[types.Message], messages: Sequence[types.Message]) -> str:
    text = "\n".join(content_parts.text(message.content) for message in results).strip()
    if text.startswith(content_parts.ERROR) and not _ENDED.search(text):
        return f"The tool failed:\n{_excerpt(text)}"
    match wants:
        case intent.Ask(asked):
            nothing = "I searched the whole conversation and found nothing about that."
            return _from_both(asked, messages) or _matching(asked, text, nothing)
        case intent.Read(path, about) if about:
            return _matching(about, text, f"{_line(path)} says nothing about that, as far as I can find.")
        case _:
            return _excerpt(text) if text else "The tool answered with nothing."


def _from_both(asked: str, messages: Sequence[types.Message]) -> str:
    """The answer from what was brought and what is in view, weighed together."""
    found = _evidence(asked, messages, POORER)
    return _quoted(found, "") if found and found[0].share >= SURE else _nearest(found)


def _matching(asked: str, text: str, nothing: str) -> str:
    lines = [] if _EMPTY.match(text) else retrieval.best_lines(asked, text)
    return "This is what I found:\n" + "\n".join(f"- “{_line(line)}”" for line in lines) if lines else nothing


def _excerpt(text: str) -> str:
    lines = text[:EXCERPT].splitlines()[:LINES]
    shown = "\n".join(lines)
    # Longer than any fence inside, so that nothing in the text can end the quotation.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    rest = len(text) - len(shown)
    more = f"\nThat is the beginning; {rest:,} characters more are not shown." if rest > 1 else ""
    return f"{fence}\n{shown}\n{fence}{more}"


def _line(text: str) -> str:
    """A stretch of text as one short line, without what would act on a screen."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * QUOTE]).split())
    return plain if len(plain) <= QUOTE else plain[: QUOTE - 1] + "…"
