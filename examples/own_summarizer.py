"""A summarizer of your own: anything with `summarize`. Where it fails or leaves out too much, the extract steps in."""

import asyncio

from holdfast import AIAgent, SessionDB, model, settings
from holdfast.compaction.base import SummaryRequest


class FirstWords:
    async def summarize(self, request: SummaryRequest) -> str:
        said = [f"{each.seq}: {str(each.content)[:30]}" for each in request.messages]
        return "\n".join([request.previous or "", *request.must_keep, *said])


script = model.ScriptedModel(["I see. " * 200] * 9, window=12_000)
with SessionDB("chat/chat.db") as db, asyncio.Runner() as loop:
    agent = AIAgent(script, db=db, compaction=settings.CompactionSettings(summarizer=FirstWords()))
    for number in range(9):
        loop.run(agent.run_conversation(f"Chapter {number}. " + "The meadow is full of clover. " * 20))
    print((made := loop.run(agent.compress_context(force=True))).outcome, "by", made.model)
