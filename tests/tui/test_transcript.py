"""The transcript: it reads only the visible pages, keeps its place, and recovers from a failing store."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.tui import compaction_view, entries, transcript, transcript_source
from tests.support.tui import numbered, open_tui, two_conversations


async def compacted(db: AsyncSessionDB) -> None:
    """Store `talk` with sixty messages, compacted up to the 55th."""
    await numbered(60)(db)
    lease = await db.acquire_lease("talk", "compact")
    await db.commit_compaction(lease, summary="## Goal\n\nCount **on**.", cut_seq=55)


class CountingReader:
    """Reads messages and counts them; fails while `fails` is set."""

    def __init__(self, shown: transcript.Transcript, fails: bool = False) -> None:
        self._read, self.fails = shown.read, fails
        self.reads = self.messages = self.failures = 0
        shown.read = self

    async def __call__(self, after: int, upto: int) -> list[types.Message]:
        if self.fails:
            self.failures += 1
            raise errors.StoreBusy("It is locked.")
        self.reads += 1
        self.messages += upto - after
        return list(await self._read(after, upto))


async def test_long_conversation_opens_at_its_end_and_reads_only_visible_messages() -> None:
    async with open_tui(numbered(10_000)) as tui:
        shown = tui.app.transcript
        await tui.wait_for("number 10000 of many")
        assert len(list(tui.app.screen.walk_children())) < 30
        assert len(shown._pages) <= 4
        assert shown.virtual_size.height > 10_000
        reader = CountingReader(shown)
        shown.focus()
        for key, text in (("home", " ▌ number 1 of many"), ("pagedown", "number 9 of"), ("end", "number 10000 of")):
            await tui.pilot.press(key)
            await tui.wait_for(text)
        assert reader.messages < 500


@pytest.mark.parametrize("uneven", [False, True])
async def test_scrolling_up_shows_every_message_once_in_order(uneven: bool) -> None:
    async with open_tui(numbered(120, uneven)) as tui:
        await tui.wait_for("number 120 of many")
        shown, seen = tui.app.transcript, list[str]()
        while True:
            await tui.until(lambda: all(page in shown._pages for page in shown._seen()))
            seen = [line for line in shown.visible_rows if "number" in line and line not in seen] + seen
            if shown.scroll_y == 0:
                break
            shown.scroll_pages(-1)
        await tui.pilot.press("pagedown")
        assert shown.scroll_y > 0
        assert [line.strip(" ▌") for line in seen] == [f"number {n} of many" for n in range(1, 121)]


async def test_resize_keeps_the_end_or_the_place_in_sight() -> None:
    async with open_tui(numbered(200)) as tui:
        await tui.wait_for("number 200 of many")
        await tui.pilot.resize_terminal(40, 16)
        await tui.wait_for("number 200 of many")
        await tui.until(lambda: 0 < len(tui.text_of("status")) <= 34)
        tui.app.transcript.scroll_to(y=150, animate=False)
        await tui.until(lambda: any("number" in line for line in tui.app.transcript.visible_rows))
        top = next(line for line in tui.app.transcript.visible_rows if "number" in line)
        await tui.pilot.resize_terminal(100, 30)
        await tui.wait_for(top.strip(" ▌"))


async def test_reader_further_up_keeps_the_place_and_nothing_below_is_read() -> None:
    async with open_tui(numbered(60)) as tui:
        await tui.wait_for("number 60 of many")
        shown = tui.app.transcript
        shown.scroll_to(y=40, animate=False)
        await tui.until(lambda: shown.scroll_offset.y == 40 and not shown._loading)
        before, reader = shown.visible_rows, CountingReader(shown)
        added = [types.NewMessage(role="user", content=f"more {n}") for n in range(400)]
        await tui.db.append_messages("talk", added)
        await tui.app._refresh_transcript()
        assert (shown.range.last, reader.reads <= 4, shown.visible_rows) == (460, True, before)
        shown.action_to_end()
        await tui.wait_for("more 399")


async def test_place_in_a_streaming_reply_is_kept_to_its_end() -> None:
    async with open_tui(numbered(4)) as tui:
        shown = tui.app.transcript
        await tui.type("run it")
        tui.model.run("make it")
        await tui.until(lambda: tui.app.approval.has_focus)
        await tui.pilot.press("y")
        tui.model.say(*(f"part {number} **of many**\n\n" for number in range(60)))
        await tui.wait_for("part 59")
        shown.scroll_pages(-1)
        shown.scroll_pages(-1)
        before = shown.visible_rows
        assert any("part" in line for line in before)
        tui.model.say(*(f"part {number}\n\n" for number in range(60, 80)))
        await tui.until(lambda: any("part 79" in row.text.plain for row in shown._live_rows))
        assert shown.visible_rows == before
        tui.model.say(None)
        await tui.wait_idle()
        assert "Allowed (at the terminal" in str(shown._notices)
        await tui.pilot.pause()
        assert shown.visible_rows == before


async def test_last_messages_are_never_shown_in_another_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_tui(two_conversations) as tui:
        app, extended = tui.app, list[tuple[int, str]]()
        extend = app.transcript.extend

        async def record(added: entries.TranscriptRange, *, turn_over: bool = False) -> None:
            extended.append((added.last, app.transcript.read.args[0]))  # type: ignore[attr-defined]
            await extend(added, turn_over=turn_over)

        await tui.type("go")
        tui.model.say("Words")
        await tui.wait_for("Words")
        monkeypatch.setattr(app.transcript, "extend", record)
        async with app._read_lock:
            tui.model.say(None)
            await tui.until(lambda: not tui.runtime.running("talk"))
            moving = asyncio.create_task(app.session.switch("other"))
            await tui.until(lambda: app.session.subscription is None)
            assert app.conversation_id == "talk"
        await moving
        await tui.wait_for("other 29")
        assert (6, "talk") in extended
        assert all(last == 6 for last, where in extended if where == "talk")


@pytest.mark.parametrize(("size", "key"), [((100, 40), "escape"), ((60, 40), "ctrl+c")])
async def test_mark_opens_the_originals_next_to_the_summary(size: tuple[int, int], key: str) -> None:
    async with open_tui(compacted, size=size) as tui:
        await tui.wait_for("messages 1 to 55")
        tui.app.transcript.focus()
        await tui.pilot.press("p", "enter")
        await tui.until(lambda: isinstance(tui.app.screen, compaction_view.CompactionScreen))
        both = tui.app.screen.query(transcript.Transcript)
        originals, summary = both.first(), both.last()
        await tui.until(lambda: any("number 1 of many" in line for line in originals.visible_rows))
        await tui.until(lambda: any("Count on." in line for line in summary.visible_rows))
        side_by_side = originals.region.y == summary.region.y
        assert side_by_side == (size[0] >= compaction_view.NARROW_COLUMNS)
        await tui.app.session.switch("other")  # The view stays with its conversation.
        await tui.pilot.press("end")
        await tui.until(lambda: any("number 55 of many" in line for line in originals.visible_rows))
        await tui.pilot.press(key)
        await tui.until(lambda: not tui.app.has_modal)
        assert tui.app.return_code is None


async def test_compactions_and_hides_are_read_again_after_a_change(db: AsyncSessionDB) -> None:
    await compacted(db)
    before = await transcript_source.read(db, "talk")
    await db.append_message("talk", role="user", content="more")
    after = await transcript_source.read(db, "talk", known=before)
    assert (after.range.compactions is before.range.compactions, after.range.last) == (True, 61)
    await db.hide("talk", 61)
    await db.undo_compaction("talk")
    changed = (await transcript_source.read(db, "talk", known=after)).range
    assert ([each.from_seq for each in changed.hides], changed.active_epoch) == ([61], None)


async def test_failed_page_shows_the_error_keeps_its_height_and_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "RETRY_SECONDS", 0.01)
    async with open_tui(numbered(200)) as tui:
        await tui.wait_for("number 200 of many")
        shown = tui.app.transcript
        height, reader = shown.virtual_size.height, CountingReader(shown, fails=True)
        shown.focus()
        shown.scroll_to(y=240, animate=False)
        await tui.wait_for("It is locked.")
        await tui.until(lambda: reader.failures > 10)
        assert sum(each.failed for each in shown._pages.values()) <= 2
        assert shown.virtual_size.height == height
        reader.fails = False
        await tui.until(lambda: not any(each.failed for each in shown._pages.values()))
        await tui.wait_for("number 81 of many")
        assert "locked" not in tui.shown


async def test_deleted_conversation_leaves_the_screen() -> None:
    async with open_tui(numbered(4), poll_seconds=0.01) as tui:
        await tui.wait_for("number 4 of many")
        await tui.db.delete_conversation("talk")
        assert "number" not in await tui.wait_for("was deleted")
        await tui.app._refresh_transcript()
        assert tui.shown.count("was deleted") == 1
