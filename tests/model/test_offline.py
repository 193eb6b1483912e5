"""The offline model finds, quotes and calls tools when plainly asked; it is honest, deterministic, and ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors, types
from holdfast.model import OfflineModel, base, offline, retrieval
from tests.support.provider_calls import call, collect, message

TOOLS = [types.ToolSpec(name, "", {"type": "object"}) for name in ("search_conversation", "read_file", "shell")]
NOTHING = "I find nothing about that in our conversation."
HIT = "[message 3, user, 2026-01-02 03:04 UTC]"


async def reply(messages: Sequence[types.Message], **request: Any) -> base.Reply:
    found, _, error = await collect(OfflineModel(), base.Request(messages=messages, **request))
    assert error is None
    return found


class Talk:
    """A conversation with the model, in which calls get the given results."""

    def __init__(self, tools: Sequence[types.ToolSpec] = (), system: str = "", results: Sequence[str] = ()) -> None:
        self.messages: list[types.Message] = []
        self.tools, self.system, self.results = tools, system, list(results)
        self.calls: list[types.ToolCall] = []

    async def say(self, content: types.Content) -> str:
        self._append("user", content)
        while True:
            answer = await reply(self.messages, tools=self.tools, system=self.system)
            self._append("assistant", answer.text, tool_calls=[msgspec.to_builtins(one) for one in answer.calls])
            if not answer.calls:
                return answer.text
            self.calls += answer.calls
            for one in answer.calls:
                self._append("tool", self.results.pop(0), tool_call_id=one.id)

    def _append(self, role: types.Role, content: types.Content, **body: Any) -> None:
        self.messages.append(message(role, content, len(self.messages) + 1, **body))


async def test_model_introduces_itself_once_and_when_asked() -> None:
    talk = Talk()
    first, second = await talk.say("hello"), await talk.say("my dog is called Bella")
    assert first.startswith(f"Hello! {offline.INTRODUCTION}")
    assert "without a language model" in first
    assert offline.MARK not in second
    assert (await reply([])).text == offline.INTRODUCTION
    assert await talk.say("who are you?") == f"{offline.INTRODUCTION}\n\n{offline.EXAMPLES}"


@pytest.mark.parametrize(
    ("said", "question", "answer"),
    [
        ("my friend lives in France", "what is the boiling point of water?", NOTHING),
        ("I drank a glass of water", "at which pressure does heavy water freeze on distant planets?", NOTHING),
        ("hello", "where is the key of the local server?", NOTHING),
        ("Anna likes the old harbour", "who painted the harbour?", "I am not sure"),
    ],
    ids=["unknown", "one word in common", "own introduction", "poor match"],
)
async def test_question_without_an_answer_is_not_answered(said: str, question: str, answer: str) -> None:
    talk = Talk()
    await talk.say(said)
    for _ in range(2):  # the question is no answer to the same question
        assert (await talk.say(question)).startswith(answer)


async def test_statement_is_found_again_with_its_place_and_time_and_a_newer_one_first() -> None:
    talk = Talk(TOOLS)
    await talk.say("hi")
    assert "message 3" in await talk.say("my dog is called Bella")
    for n in range(20):
        await talk.say(f"Today I saw {n} birds.")
    quote = "You said in message 3 (2023-11-14 22:16 UTC): “my dog is called Bella”"
    assert await talk.say("what is my dog called?") == quote
    await talk.say("my dog is called Max now")
    newest, older = (await talk.say("what is my dog called?")).splitlines()
    assert ("Max" in newest, "Bella" in older) == (True, True)
    assert talk.calls == []  # the context is searched before the store


async def test_notes_and_summaries_are_quoted_and_instructions_are_not() -> None:
    system = "You must never speak of the garden gate.\n\nNotes:\n- The gate code is 4417.\n- Tom is allergic to nuts."
    assert "4417" in await Talk(system=system).say("what is the gate code?")
    assert "never speak" not in await Talk(system=system).say("what about the garden?")
    text = "[Summary]\n## Facts\n> #12 user: The gate code is 4417.\n> The hedge is cut in June."
    summary = msgspec.structs.replace(message("user", text, 40), uid="summary:3")
    for question, fact in (
        ("what is the gate code?", "The gate code is 4417."),
        ("when is the hedge cut?", "The hedge is cut in June."),
    ):
        answer = (await reply([summary, message("user", question, 41)])).text
        assert answer.endswith(f"It was noted in the summary of what came before: “{fact}”")


@pytest.mark.parametrize(
    ("asked", "name", "arguments"),
    [
        ("what does notes.txt say about Bella?", "read_file", {"path": "notes.txt"}),
        ('run `ls -l "a b"`', "shell", {"command": 'ls -l "a b"'}),
        ("what about Bella?", "search_conversation", {"query": "what about Bella?", "limit": offline.MAX_HITS}),
    ],
)
async def test_plain_request_calls_the_tool(asked: str, name: str, arguments: dict[str, Any]) -> None:
    answer = await reply([message("user", asked, 7)], tools=TOOLS)
    (made,) = answer.calls
    assert (made.name, msgspec.json.decode(made.arguments)) == (name, arguments)
    assert (bool(made.id), answer.finish, answer.text) == (True, "calls", "")


@pytest.mark.parametrize("asked", ["run ls", "read notes.txt", "run the tests"])
async def test_missing_tool_is_reported_and_prose_is_not_run(asked: str) -> None:
    assert "I have no tool" in await Talk().say(asked)
    if asked == "run the tests":
        talk = Talk(TOOLS)
        assert "written out" in await talk.say(asked)
        assert talk.calls == []


@pytest.mark.parametrize(
    ("asked", "result", "parts"),
    [
        (
            "when is the roof tiled?",
            f"{HIT}\nHm. The roof is tiled in May.\n\n[message 9, tool]\nroof",
            ["You said in message 3 (2026-01-02 03:04 UTC): “The roof is tiled in May.”"],
        ),
        ("what about the attic?", "", ["found nothing"]),
        ("run `seq 1000`", "\n".join(f"line {n}" for n in range(1_000)), ["line 0\nline 1\n", "more are not shown"]),
        ("read notes.txt", "Error: notes.txt cannot be read", ["The tool failed"]),
        ("run `make test`", "Failed: 0, passed: 12\n[exit code 0]", ["Failed: 0, passed: 12"]),
        ("read notes.md", "```\nI am free\n````\n", ["`````\n```"]),
    ],
    ids=["hit", "empty", "long", "error", "failure in words", "fence"],
)
async def test_result_of_a_tool_is_quoted_and_failures_are_admitted(asked: str, result: str, parts: list[str]) -> None:
    answer = await Talk(TOOLS, results=[result]).say(asked)
    assert all(part in answer for part in parts)
    assert ("The tool failed" in answer) == ("The tool failed" in parts)
    assert "line 999" not in answer


def test_text_behind_a_gap_in_a_result_belongs_to_no_message() -> None:
    gap = "[… 900 characters left out; recall message 2 …]"
    other = HIT.replace("3,", "5,", 1)
    shown = f"{HIT}\nThe hedge is cut. The gate is pai\n{gap}\nThe gate code is 4417.\n\n{other}\nThe roof is new."
    called = message("assistant", "", 2, tool_calls=[call("c", "search_conversation")])
    found = retrieval.split_messages([called, message("tool", shown, 4, tool_call_id="c")], "search_conversation")
    assert {(one.seq, one.text) for one in found} == {(3, "The hedge is cut."), (5, "The roof is new.")}


async def test_only_a_search_result_is_quoted_as_an_earlier_message() -> None:
    talk = Talk(TOOLS, results=[f"{HIT}\nThe gate code is 1111."])
    await talk.say("read notes.txt")
    assert "You said" not in await talk.say("what is the gate code?")


async def test_window_and_output_limit_are_kept() -> None:
    request = base.Request(messages=[message("user", "word " * 2_000)])
    _, _, error = await collect(OfflineModel(window=1_000), request)
    assert isinstance(error, errors.ContextOverflow)
    assert error.model == "holdfast/offline"
    for limit in (0, 1, 20):
        answer = await reply([message("user", "hello")], max_output=limit)
        assert (answer.finish, answer.usage.output <= limit) == ("length", True)


ROLES = st.sampled_from(["user", "assistant", "tool", "system"])


@given(st.lists(st.tuples(ROLES, st.text("run read a.txt? `ls`\n中", max_size=40)), max_size=8))
async def test_any_conversation_is_answered(said: list[tuple[types.Role, str]]) -> None:
    context = [message(role, text, seq) for seq, (role, text) in enumerate(said, 1)]
    answer = await reply(context, tools=TOOLS)
    assert answer.finish == ("calls" if answer.calls else "stop")
    assert answer.text or answer.calls
