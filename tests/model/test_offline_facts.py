"""Thirty facts told over 300 messages, compacted away, and asked for: the offline model finds those that share words.

Each script (offline_facts) is what a person says, line by line; a line with a `key` tells a fact and has the question
that is asked about it at the end. An answer is right when it begins with the message the fact was told in, by its
number, and has the key in it. What nobody said is not answered, or with a doubt. What the figures are worth is in
offline_facts/README.md.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast import AIAgent, AsyncSessionDB, SessionDB, types
from holdfast.agent import settings
from holdfast.compaction import base as compaction
from holdfast.model import offline
from holdfast.tools import recall

SCRIPTS = Path(__file__).parent / "offline_facts"
# A compaction after so many lines, besides those a window this small calls for.
EVERY = 25


class Played(NamedTuple):
    """What became of a script: how often it was compacted, how many keys were still in view, what was answered."""

    compactions: int
    messages: int
    in_view: int
    answers: list[tuple[dict[str, str], int, str]]
    made_up: list[str]

    @property
    def wrong(self) -> list[tuple[str, str]]:
        return [(line["ask"], said) for line, seq, said in self.answers if not right(said, line["key"], seq)]


def right(said: str, key: str, seq: int) -> bool:
    first = said.splitlines()[0]
    return re.search(rf"\bYou said in message {seq}\b", first) is not None and key in first


async def play(script: Path, folder: Path, window: int) -> Played:
    lines: list[dict[str, str]] = [json.loads(line) for line in script.read_text("utf-8").splitlines()]
    with SessionDB(folder / "chat.db", durability="process-crash") as db:
        async with AsyncSessionDB(db) as store:
            agent = _agent(store, window)
            told, compactions = [], 0
            for number, line in enumerate(lines, 1):
                done = await agent.run_conversation(line["say"])
                told.append((line, done.messages[0].seq))
                if number % EVERY == 0:
                    made = await agent.compress_context(force=True)
                    compactions += made.outcome is compaction.Outcome.COMPACTED
            messages = done.messages[-1].seq
            asked = [(line, seq) for line, seq in told if "key" in line]
            context = "\n".join(message.body for message in await store.context(agent.session_id))
            in_view = sum(line["key"] in context for line, _ in asked)
            answers = [(line, seq, await _answer(agent, line["ask"])) for line, seq in asked]
            unknown = (SCRIPTS / "nobody_said.txt").read_text("utf-8").splitlines()
            replies = [await _answer(agent, question) for question in unknown]
            made_up = [said for said in replies if not said.startswith(("I am not sure", "I searched"))]
            return Played(compactions, messages, in_view, answers, made_up)


def _agent(store: AsyncSessionDB, window: int) -> AIAgent:
    async def find(query: str, limit: int) -> list[types.Hit]:
        return await store.search(query, session_id=agent.session_id, limit=limit)

    agent = AIAgent(
        db=store,
        model=offline.OfflineModel(window=window),
        tools=[recall.search_conversation(find)],
        compaction=settings.CompactionSettings(background=False),
    )
    return agent


async def _answer(agent: AIAgent, question: str) -> str:
    return (await agent.run_conversation(question)).final_response


@pytest.mark.parametrize(
    ("name", "window", "least"), [("told", 12_000, 15), ("told", 16_000, 15), ("held_out", 12_000, 20)]
)
def test_facts_that_share_words_with_the_question_are_found_after_compactions(
    name: str, window: int, least: int, tmp_path: Path
) -> None:
    played = asyncio.run(play(SCRIPTS / f"{name}.jsonl", tmp_path, window))
    assert (played.messages, len(played.answers)) == (300, 30)
    assert played.compactions >= 4
    assert played.in_view <= 20, "so much was left in view that this says nothing"
    assert len(played.answers) - len(played.wrong) >= least, played.wrong
    assert played.made_up == []
