"""Thirty facts in 300 messages, compacted away and asked for: the offline model finds those that share words.

Each line of a script (offline_facts) is a message of the user; a line with a `key` states a fact and has the question
that is asked about it at the end. An answer is right if it begins with the number of the message and has the key in
it. Facts that were not stated are not answered, or with a doubt. offline_facts/README.md says what the figures mean.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from holdfast import AIAgent, AsyncSessionDB, types
from holdfast.agent import settings
from holdfast.compaction import base as compaction
from holdfast.model import offline
from holdfast.tools import recall

SCRIPTS = Path(__file__).parent / "offline_facts"
COMPACT_EVERY = 25  # lines, besides the compactions that a window this small needs


def is_right(said: str, key: str, seq: int) -> bool:
    first = said.splitlines()[0]
    return re.search(rf"\bYou said in message {seq}\b", first) is not None and key in first


@pytest.mark.parametrize(("name", "least"), [("development", 15), ("held_out", 20)])
async def test_facts_are_found_by_shared_words_after_compactions(name: str, least: int, db: AsyncSessionDB) -> None:
    async def search(query: str, limit: int) -> list[types.Hit]:
        return await db.search(query, session_id=agent.session_id, limit=limit)

    agent = AIAgent(
        db=db,
        model=offline.OfflineModel(window=12_000),
        tools=[recall.search_conversation(search)],
        compaction=settings.CompactionSettings(background=False),
    )

    async def ask(question: str) -> str:
        return (await agent.run_conversation(question)).final_response

    facts, compactions = list[tuple[dict[str, str], int]](), 0
    for number, text in enumerate((SCRIPTS / f"{name}.jsonl").read_text("utf-8").splitlines(), 1):
        line: dict[str, str] = json.loads(text)
        done = await agent.run_conversation(line["say"])
        if "key" in line:
            facts.append((line, done.messages[0].seq))
        if number % COMPACT_EVERY == 0:
            compactions += (await agent.compress_context(force=True)).outcome is compaction.Outcome.COMPACTED
    assert (done.messages[-1].seq, len(facts), compactions >= 4) == (300, 30, True)
    context = "\n".join(message.body for message in await db.context(agent.session_id))
    assert sum(line["key"] in context for line, _ in facts) <= 20, "too much is still in the context"
    answers = [(line["ask"], await ask(line["ask"]), line["key"], seq) for line, seq in facts]
    wrong = [(question, said) for question, said, key, seq in answers if not is_right(said, key, seq)]
    assert len(answers) - len(wrong) >= least, wrong
    unknown = [await ask(question) for question in (SCRIPTS / "unstated.txt").read_text("utf-8").splitlines()]
    assert [said for said in unknown if not said.startswith(("I am not sure", "I searched"))] == []
