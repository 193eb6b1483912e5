"""The line under the prompt: never wider than its room, and what changes before what does not."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import AIAgent, AsyncSessionDB, safe_text
from holdfast.compaction import policy
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.terminal import event_text, status_line
from holdfast.tui import context_meter, entry_rows
from tests.support import agents

NOW = status_line.ConversationStatus("anthropic/claude", 24_000, 200_000, 0.0312, True, 2, 1)


def line(standing: status_line.ConversationStatus, room: int = 200, seconds: float = 0.0) -> str:
    return "".join(words for _, words in status_line.draw_status(standing, room, event_text.Marks(), seconds))


@pytest.mark.parametrize(
    ("standing", "looks"),
    [
        (status_line.ConversationStatus("a/b"), "a/b"),
        (status_line.ConversationStatus("a/b", 0, 1_048_576), "a/b · 0% of 1M"),
        (status_line.ConversationStatus("a/b", 50_000, 100_000, 12.5), "a/b · 50% of 100k · $12.50"),
        (status_line.ConversationStatus("a/b", cost=0.0), "a/b"),
        (NOW, "anthropic/claude · 12% of 200k · compacting… 7 s · 2 queued · 1 process · $0.0312"),
    ],
)
def test_how_things_stand_looks_like_this(standing: status_line.ConversationStatus, looks: str) -> None:
    assert line(standing, seconds=7.4) == looks


def test_with_little_room_the_name_gives_way_first() -> None:
    assert line(status_line.ConversationStatus("anthropic/claude", 1, 100_000), 24) == "claude · 0% of 100k"
    assert line(status_line.ConversationStatus("anthropic/claude", 1, 100_000), 16) == "cl… · 0% of 100k"


@pytest.mark.parametrize(("used", "style"), [(64, ""), (65, ".soft"), (89, ".soft"), (90, ".hard"), (120, ".hard")])
def test_a_glance_tells_how_full_the_window_is(used: int, style: str) -> None:
    fragments = status_line.draw_status(
        status_line.ConversationStatus("m", used * 1000, 100_000, soft=65_000, hard=90_000), 80, event_text.Marks()
    )
    assert fragments[-1] == (f"class:status{style}", f"{used}% of 100k")


def test_the_glance_goes_by_where_compactions_are_made_as_the_bar_of_the_full_screen_does() -> None:
    early = policy.CompactionPolicy(soft=0.5, hard=0.6)

    async def story(db: AsyncSessionDB) -> status_line.ConversationStatus:
        async def build(conversation_id: str) -> AIAgent:
            return agents.agent(db, ScriptedModel([]), session_id=conversation_id, compaction_policy=early)

        async with runtime.Runtime(db, build) as door:
            return await status_line.read_status(door, "here")

    here = agents.run(story)
    # What every request has besides stands before the messages, and the answer has its room behind them.
    assert 0.3 * here.window < here.soft < 0.6 * here.window
    for used, style, ink in (
        (here.soft - 1, "", "success"),
        (here.soft, ".soft", "warning"),
        (here.hard - 1, ".soft", "warning"),
        (here.hard, ".hard", "error"),
    ):
        then = msgspec.structs.replace(here, used=used)
        assert status_line.draw_status(then, 80, event_text.Marks())[-1][0] == f"class:status{style}"
        bar = context_meter.draw_bar(then, 20, entry_rows.RowFormat(20))
        assert bar.spans[0].style == getattr(entry_rows.EntryStyles(), ink)


@given(st.text(), st.integers(0, 100))
def test_it_is_never_wider_than_its_room_and_cannot_act_on_the_terminal(model: str, room: int) -> None:
    drawn = line(status_line.ConversationStatus(model, 5, 9_000, 1.0, True, 1, 3), room)
    assert safe_text.cells(drawn) <= room
    assert drawn.replace("\u200c", "").replace("\u200d", "").isprintable()
