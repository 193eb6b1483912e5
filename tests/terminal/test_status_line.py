"""The status line under the prompt: it fits its room, and its style shows how full the context window is."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import AIAgent, AsyncSessionDB, safe_text
from holdfast.compaction import policy
from holdfast.model import ScriptedModel
from holdfast.runtime import runtime
from holdfast.terminal import event_text
from holdfast.terminal.status_line import ConversationStatus, draw_status, read_status
from holdfast.tui import context_meter, entry_rows
from tests.support import agents


def line(status: ConversationStatus, room: int = 200, seconds: float = 0.0) -> str:
    return "".join(words for _, words in draw_status(status, room, event_text.Marks(), seconds))


@pytest.mark.parametrize(
    ("status", "room", "expected"),
    [
        (ConversationStatus("a/b", 0, 1_048_576), 200, "a/b · 0% of 1M"),
        (ConversationStatus("a/b", 50_000, 100_000, 12.5), 200, "a/b · 50% of 100k · $12.50"),
        (ConversationStatus("a/b", cost=0.0), 200, "a/b"),
        (
            ConversationStatus("anthropic/claude", 24_000, 200_000, 0.0312, True, 2, 1),
            200,
            "anthropic/claude · 12% of 200k · compacting… 7 s · 2 queued · 1 process · $0.0312",
        ),
        (ConversationStatus("anthropic/claude", 1, 100_000), 16, "cl… · 0% of 100k"),
    ],
)
def test_line_shows_status_and_shortens_the_model(status: ConversationStatus, room: int, expected: str) -> None:
    assert line(status, room, seconds=7.4) == expected


async def test_line_and_bar_use_the_thresholds_of_compaction(db: AsyncSessionDB) -> None:
    async def build(conversation_id: str) -> AIAgent:
        early = policy.CompactionPolicy(soft=0.5, hard=0.6)
        return agents.agent(db, ScriptedModel([]), session_id=conversation_id, compaction_policy=early)

    async with runtime.Runtime(db, build) as running:
        here = await read_status(running, "here")
    # The fixed part of every request precedes the messages, and the reply has its room behind them.
    assert 0.3 * here.window < here.soft < 0.6 * here.window
    for used, style, ink in (
        (here.soft - 1, "", "success"),
        (here.soft, ".soft", "warning"),
        (here.hard - 1, ".soft", "warning"),
        (here.hard, ".hard", "error"),
    ):
        then = msgspec.structs.replace(here, used=used)
        assert draw_status(then, 80, event_text.Marks())[-1][0] == f"class:status{style}"
        bar = context_meter.draw_bar(then, 20, entry_rows.RowFormat(20))
        assert bar.spans[0].style == getattr(entry_rows.EntryStyles(), ink)


@given(st.text(), st.integers(0, 100))
def test_any_line_fits_its_room_and_is_printable(model: str, room: int) -> None:
    drawn = line(ConversationStatus(model, 5, 9_000, 1.0, True, 1, 3), room)
    assert safe_text.cells(drawn) <= room
    assert drawn.replace("\u200c", "").replace("\u200d", "").isprintable()
