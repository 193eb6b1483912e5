"""Which conversation a chat is in is not a gateway's to remember: killed after or during a compaction, the next one
goes on in the compacted conversation, compacts nothing again, and writes no route."""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast import AIAgent, AsyncSessionDB, content_parts, types
from holdfast.agent import settings
from holdfast.compaction import base
from holdfast.model import ScriptedModel
from holdfast.store.db import SessionDB
from tests.faults import compacting, gateway_stories, gateways, storms
from tests.faults import zygote as zygotes
from tests.faults.gateways import Update
from tests.faults.test_gateway_kills import both, story_of
from tests.support import backends
from tests.support import gateways as stage

CHAT = "ann0"
ROUTE = gateway_stories.route_of(CHAT)
FULL = 60
"""Exchanges that are more than the window of a model has room for."""


def told(story: gateway_stories.Story, *texts: str) -> None:
    story.updates += [Update(CHAT, f"{number}", text) for number, text in enumerate(texts, len(story.updates))]


def long_talk(story: gateway_stories.Story, exchanges: int) -> list[types.Route]:
    with SessionDB(story.target) as db:
        db.create_session("talk", source="fault")
        compacting.fill(db, "talk", exchanges)
        db.bind_route(ROUTE, "talk", version=0)
        return db.routes()


def after(story: gateway_stories.Story, routes: list[types.Route], exchanges: int) -> list[str]:
    """What is wrong in a conversation that was compacted once: lost, asked twice, forked, or bound anew."""
    texts = [each.text for each in story.updates if not each.text.startswith("/")]
    with SessionDB(story.target) as db:
        found = [*gateway_stories.still_open(db), *compacting.wrongs(db, "talk", [])]
        said = [(each.role, content_parts.text(each.content)) for each in db.transcript("talk")][2 * exchanges :]
        wanted = [line for text in texts for line in (("user", text), ("assistant", f"re {text}"))]
        found += [
            f"{one} is said, and not {other}" for one, other in itertools.zip_longest(said, wanted) if one != other
        ]
        ends = [each.end_reason for each in db.sessions("talk")]
        found += [f"its sessions ended so: {ends}"] if ends != ["compression", None] else []
        talks = {db.snapshot(each.id).conversation_id for each in db.list_sessions()}
        found += [f"another conversation began: {talks}"] if talks != {"talk"} else []
        found += [f"routes were written: {db.routes()}"] if db.routes() != routes else []
        context = db.context("talk")
        found += [] if "In short." in (context.summary or "") else ["there is no summary"]
    return found


def summaries(story: gateway_stories.Story) -> int:
    noted = Path(f"{story.sends}.summaries")
    return len(noted.read_text().split()) if noted.exists() else 0


@both
@pytest.mark.parametrize("first", ["/compact", "What now?"], ids=["asked for", "by itself"])
@pytest.mark.parametrize("point", ["commit.committed", "gateway.settled", "gateway.sent"])
def test_killed_after_a_compaction_the_next_one_goes_on_in_the_compacted_conversation(
    point: str, first: str, backend: backends.Backend, zygote: zygotes.Zygote, place: Path
) -> None:
    story = story_of(zygote, backend, place, point)
    routes = long_talk(story, FULL)
    window: dict[str, Any] = {"window": compacting.WINDOW}
    told(story, first)
    killed = zygote.run(gateways.live, story.target, story.args(point, 1, **window))
    assert killed.state == "killed", killed
    story.heard(killed)
    assert summaries(story) == 1
    for text in ("Go on.", "And on."):
        told(story, text)
        story.heard(zygote.run(gateways.live, story.target, story.args(**window)))
    assert after(story, routes, FULL) == []
    assert summaries(story) == 1


class Held(compacting.Brief):
    """Begins to summarize, says so, and ends when it is let go."""

    def __init__(self, begun: str, go: str) -> None:
        self._begun, self._go = begun, go

    async def summarize(self, request: base.SummaryRequest) -> str:
        Path(self._begun).touch()
        while not os.path.exists(self._go):
            await asyncio.sleep(0.002)
        return await super().summarize(request)


def compact_slowly(given: zygotes.Stage) -> str:
    """A compaction in a process of its own, which takes as long as it is told to."""

    async def attempt() -> str:
        async with AsyncSessionDB(given.open()) as db:
            model = ScriptedModel(["ok"], window=compacting.WINDOW)
            held = Held(given.args["begun"], given.args["go"])
            one = AIAgent(
                db=db, model=model, session_id="talk", compaction=settings.CompactionSettings(summarizer=held)
            )
            return str((await one.compress_context()).outcome)

    return asyncio.run(attempt())


@both
def test_of_a_burst_of_50_during_a_compaction_none_is_lost_though_the_gateway_is_killed_in_between(
    backend: backends.Backend, zygote: zygotes.Zygote, place: Path
) -> None:
    story = story_of(zygote, backend, place, "burst")
    routes = long_talk(story, FULL)
    begun, go = place / "begun", place / "go"
    compactor = zygote.begin(compact_slowly, story.target, {"begun": str(begun), "go": str(go)})
    storms.wait_until(begun.exists, "the summary is begun")
    told(story, *(f"Burst {number}" for number in range(50)))
    killed = story.live("gateway.settled", story.chance.randint(5, 20))
    assert killed.state == "killed", killed
    second = zygote.begin(gateways.live, story.target, story.args())
    some = len(gateways.sent(story.sends)) + 5
    storms.wait_until(lambda: len(gateways.sent(story.sends)) >= some, "turns go on beside the compaction")
    go.touch()
    assert zygote.wait(compactor).value == "compacted"
    story.heard(zygote.wait(second))
    assert after(story, routes, FULL) == []
    assert summaries(story) == 0


@both
async def test_switching_between_conversations_under_one_key_builds_no_agent_anew(
    backend: backends.Backend, place: Path
) -> None:
    async with stage.store(backend.target(place, "store"), durability="process-crash") as db:
        built: list[str] = []
        async with stage.open_gateway(db, ScriptedModel(["ok"] * 9), built=built) as (_, chat):
            await chat.say("This is one", key="1")
            await chat.say("/new", key="2")
            await chat.say("This is another", key="3")
            one, _, other = await stage.wait_settled(db, "1", "2", "3")
            for number, back in enumerate((one, other, one, other)):
                await chat.say(f"/resume {back.conversation_id}", key=f"{number}r")
                await chat.say("Go on", key=f"{number}g")
                _, found = await stage.wait_settled(db, f"{number}r", f"{number}g")
                assert found.conversation_id == back.conversation_id
        assert one.conversation_id != other.conversation_id
        assert sorted(built) == sorted([one.conversation_id or "", other.conversation_id or ""])
