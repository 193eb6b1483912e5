"""The built-in model for use without a key: it quotes the conversation, and calls a tool when plainly asked to.

It is not a language model, and says so. It answers from the conversation, from the notes in the system prompt and from
tool results. The same request always gets the same answer. After a tool result it always answers, so a message leads to
at most one round of tool calls.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import content_parts, errors, types
from holdfast.model import base, intent, retrieval, tokens

MARK = "I am the offline model"
INTRODUCTION = (
    f"{MARK}, without a language model. I keep what you say and quote it when you ask; I read and write files and run "
    "commands that you name."
)
EXAMPLES = """\
Try:
- My train leaves at 9:40 from platform 4.
- When does my train leave?
- List the files."""
NOTED = "Noted as message {seq}. Ask me about it at any time."
NEEDS_MODEL = (
    "That needs a language model. Your message is stored as message {seq}. Set a key such as ANTHROPIC_API_KEY or "
    "OPENAI_API_KEY, or start Ollama, then run `holdfast -r last`."
)
SEARCH, READ, RUN, LIST, WRITE = "search_conversation", "read_file", "shell", "find_files", "write_file"

# The share of a question's words that an answer must contain, a guess, and a guess after a search.
SURE, POOR, POOR_AFTER_SEARCH = 0.6, 0.25, 0.15
MAX_QUOTES, MAX_QUOTE, MAX_EXCERPT, MAX_LINES, MAX_HITS = 3, 300, 1_500, 20, 20

# The beginnings of this model's own sentences, which answer no question.
_OWN = (
    *(MARK, "Noted as message ", "Ask me about it ", "Try:", "That needs a language model", "You said ", "I said "),
    *("A tool answered ", "It was noted ", "I am not sure, but this ", "I find nothing ", "Hello", "You are welcome"),
    *("I searched ", "I cannot look ", "I have no tool ", "I can only run ", "My notes say", f"{SEARCH} "),
)
_AUTHORS = {"user": "You said", "assistant": "I said", "tool": "A tool answered", "system": "It was noted"}


class Call(NamedTuple):
    """A tool call."""

    name: str
    arguments: dict[str, Any]


class OfflineModel:
    """A model without network and without a language model. Safe for concurrent requests."""

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
        """Do nothing: there is nothing to close."""

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        # In a thread: a long conversation takes a moment when it is read for the first time.
        used = await asyncio.to_thread(self._meter.count, request.system, request.tools, request.messages)
        if used > self._window:
            raise errors.ContextOverflow(model=self._name)
        answer = await asyncio.to_thread(decide, request)
        if isinstance(answer, Call):
            arguments = msgspec.json.encode(answer.arguments).decode()
            yield base.ToolCallDelta(0, f"offline_{request.messages[-1].seq}", answer.name, arguments)
            finish: base.Finish = "calls"
            output = tokens.estimate(answer.name) + tokens.estimate(arguments)
        else:
            words, is_whole = _limit(answer, request.max_output)
            for word in words:
                yield base.ContentDelta(word)
                await asyncio.sleep(0)  # Let other tasks run, and the caller stop.
            finish = "stop" if is_whole else "length"
            output = tokens.estimate("".join(words))
        yield base.UsageDelta(types.Usage(used, output, cost=0.0))
        yield base.FinishDelta(finish)


def _limit(answer: str, max_output: int | None) -> tuple[list[str], bool]:
    """Return the words of an answer that fit, and whether all of them do."""
    words = re.findall(r"\s*\S{1,24}|\s+", answer)
    if max_output is None or tokens.estimate(answer) <= max_output:
        return words, True
    while words and tokens.estimate("".join(words)) > max_output:
        words = words[: len(words) * 4 // 5]
    return words, False


def decide(request: base.Request) -> str | Call:
    """Return the answer to a request: text, or a tool call."""
    messages = request.messages
    place = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
    if place < 0:
        return INTRODUCTION
    wish = intent.parse(content_parts.text(messages[place].content))
    if wish.kind in ("explain", "greet"):
        greeting = "Hello! " if wish.kind == "greet" else ""
        return f"{greeting}{INTRODUCTION}\n\n{EXAMPLES}"
    since = messages[place + 1 :]
    if any(message.tool_calls or message.role == "tool" for message in since):
        answer: str | Call = _answer_from_results(wish, since, messages)
    else:
        answer = _answer(wish, messages[place], messages[:place], request)
    is_introduced = any(message.role == "assistant" and MARK in message.body for message in messages)
    return answer if isinstance(answer, Call) or is_introduced else f"{INTRODUCTION}\n\n{answer}".rstrip()


def _answer(
    wish: intent.Intent, asked: types.Message, before: Sequence[types.Message], request: base.Request
) -> str | Call:
    offered = {tool.name for tool in request.tools}
    match wish.kind:
        case "ask":
            return _answer_question(wish.text, before, request.system, SEARCH in offered)
        case "run":
            if RUN not in offered:
                return "I have no tool to run commands with here."
            missing = "I can only run a command that is written out, such as: run `ls -l`"
            return Call(RUN, {"command": wish.text}) if wish.text else missing
        case "read":
            return Call(READ, {"path": wish.text}) if READ in offered else "I have no tool to read files with here."
        case "list":
            return Call(LIST, {"pattern": "*"}) if LIST in offered else "I have no tool to list files with here."
        case "write":
            arguments = {"path": wish.text, "content": f"{wish.content}\n"}
            return Call(WRITE, arguments) if WRITE in offered else "I have no tool to write files with here."
        case "generate":
            return NEEDS_MODEL.format(seq=asked.seq)
        case "thank":
            return "You are welcome."
        case "empty":
            has_image = any(isinstance(part, content_parts.Image) for part in content_parts.parse(asked.content))
            return "I cannot look at pictures." if has_image else "There are no words in that message."
        case _:
            return NOTED.format(seq=asked.seq)


def _answer_question(question: str, before: Sequence[types.Message], system: str, can_search: bool) -> str | Call:
    candidates = _find(question, before, POOR)
    # If a summary hides messages, one of them may fit better.
    is_complete = not (can_search and any(map(retrieval.is_summary, before)))
    if candidates and candidates[0].share >= SURE and is_complete:
        return _quote(candidates)
    # The notes of a system prompt are its list items; its sentences are instructions.
    items = [line.strip(" -*\t") for line in system.splitlines() if line.lstrip().startswith(("- ", "* "))]
    notes = [each for each in retrieval.rank(question, list(retrieval.split("\n".join(items)))) if each.share >= SURE]
    if notes:
        return "My notes say: " + "; ".join(f"“{_line(each.statement.text)}”" for each in notes[:MAX_QUOTES])
    if can_search:
        return Call(SEARCH, {"query": question[:500], "limit": MAX_HITS})
    return _quote(candidates) or "I find nothing about that in our conversation."


def _find(question: str, messages: Sequence[types.Message], min_share: float) -> list[retrieval.RankedStatement]:
    found = retrieval.split_messages(messages, SEARCH)
    others = [each for each in found if not (each.role == "assistant" and each.text.startswith(_OWN))]
    return [each for each in retrieval.rank(question, others) if each.share >= min_share][:MAX_QUOTES]


def _quote(candidates: Sequence[retrieval.RankedStatement]) -> str:
    """Quote the best candidate, and others that users said and that fit nearly as well; a poor one as a guess."""
    if not candidates:
        return ""
    best, *others = candidates
    if best.share < SURE:
        return f"I am not sure, but this comes nearest. {_attribute(best.statement)}"
    also = [each for each in others if each.score >= best.score - 1 and each.statement.role == "user"]
    return "\n".join([_attribute(best.statement), *(_attribute(each.statement, " also") for each in also)])


def _attribute(statement: retrieval.Statement, also: str = "") -> str:
    at = time.strftime(" (%Y-%m-%d %H:%M UTC)", time.gmtime(statement.at)) if 0 < statement.at < 1e11 else ""
    where = f"message {statement.seq}{at}" if statement.seq else "the summary of what came before"
    return f"{_AUTHORS[statement.role]}{also} in {where}: “{_line(statement.text)}”"


def _answer_from_results(wish: intent.Intent, since: Sequence[types.Message], messages: Sequence[types.Message]) -> str:
    results = [message.content for message in since if message.role == "tool"]
    text = "\n".join(map(content_parts.text, results)).strip()
    if not all(content_parts.is_success(RUN, result) for result in results):
        return f"The tool failed:\n{_excerpt(text)}"
    if wish.kind == "ask":
        # The search result and the visible messages are ranked together.
        candidates = _find(wish.text, messages, POOR_AFTER_SEARCH)
        return _quote(candidates) or "I searched the whole conversation and found nothing about that."
    return _excerpt(text) if text else "The tool answered with nothing."


def _excerpt(text: str) -> str:
    shown = "\n".join(text[:MAX_EXCERPT].splitlines()[:MAX_LINES])
    # The fence is longer than any fence in the text, so that nothing in the text can end it.
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    rest = len(text) - len(shown)
    more = f"\nThat is the beginning; {rest:,} characters more are not shown." if rest > 1 else ""
    return f"{fence}\n{shown}\n{fence}{more}"


def _line(text: str) -> str:
    """Return a text as one short line of printable characters."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text[: 2 * MAX_QUOTE]).split())
    return plain if len(plain) <= MAX_QUOTE else plain[: MAX_QUOTE - 1] + "…"
