"""What is read for the screen: as little as is seen, again where it failed, and of no other conversation."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.runtime import subscriptions
from holdfast.tui import compaction_view, transcript, transcript_pages, transcript_source
from tests.support.tui import long, sat
from tests.terminal.test_app import compacted_past


class Failing:
    """Reads, unless it is told to fail."""

    def __init__(self, read: transcript.ReadMessages) -> None:
        self._read = read
        self.fails = True
        self.failed = 0

    async def __call__(self, after: int, upto: int) -> list[types.Message]:
        if self.fails:
            self.failed += 1
            raise errors.StoreBusy("It is locked.")
        return list(await self._read(after, upto))


async def test_only_the_end_is_read_when_a_conversation_opens() -> None:
    async with sat(long(200)) as seat:
        await seat.sees("number 200 of many")
        assert min(seat.screen.transcript._pages) >= 7


async def test_what_could_not_be_read_says_so_keeps_its_room_and_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "RETRY_SECONDS", 0.01)

    async with sat(long(200)) as seat:
        await seat.sees("number 200 of many")
        shown = seat.screen.transcript
        height, shown.read = shown.virtual_size.height, (failing := Failing(shown.read))
        shown.focus()
        shown.scroll_to(y=240, animate=False)
        await seat.sees("It is locked.")
        await seat.until(lambda: failing.failed > 10)
        assert sum(each.failed for each in shown._pages.values()) <= 2
        assert shown.virtual_size.height == height
        failing.fails = False
        await seat.until(lambda: not any(each.failed for each in shown._pages.values()))
        await seat.sees("number 81 of many")
        assert "locked" not in seat.shown


async def test_where_the_store_fails_on_the_way_elsewhere_it_is_told_and_seen_once_the_store_is_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)
    read, fails = transcript_source.read, True

    async def failing(db: AsyncSessionDB, conversation_id: str, *rest: object) -> transcript_source.ConversationView:
        if fails and conversation_id == "other":
            raise errors.StoreBusy("It is locked.")
        return await read(db, conversation_id, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(transcript_source, "read", failing)

    async def past(db: AsyncSessionDB) -> None:
        await long(4)(db)
        await db.branch("talk", 2, branch_id="other")

    async with sat(past) as seat:
        await seat.sees("number 4 of many")
        await seat.type("/resume other")
        await seat.sees("It is locked.")
        assert seat.shown.count("It is locked.") == 1
        assert "number" not in seat.shown
        fails = False
        await seat.sees("number 2 of many")


async def test_a_conversation_that_was_deleted_elsewhere_leaves_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        await seat.home.db.delete_conversation("talk")
        shown = await seat.sees("was deleted")
        assert "number" not in shown
        await seat.screen._refresh_transcript()
        assert seat.shown.count("was deleted") == 1


async def test_a_turn_whose_end_could_not_be_read_is_seen_once_when_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with sat() as seat:
        await seat.type("tell me")
        seat.model.say("Once upon a time.")
        await seat.sees("Once upon a time.")
        seat.screen._add_notice("notice", "Careful.")
        shown = seat.screen.transcript
        shown.read = failing = Failing(shown.read)
        seat.model.say(None)
        await seat.idles()
        await seat.until(lambda: failing.failed)
        assert (await seat.sees("Careful.")).count("Careful.") == 1
        failing.fails = False
        await seat.until(lambda: seat.screen._live.is_empty)
        assert (await seat.sees("Title: tell me", "Careful.")).count("Once upon a time.") == 1
        assert seat.shown.count("Careful.") == 1


async def test_what_others_said_while_the_store_failed_is_seen_when_it_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "POLL_SECONDS", 0.01)

    async with sat(long(4)) as seat:
        await seat.sees("number 4 of many")
        shown = seat.screen.transcript
        shown.read = failing = Failing(shown.read)
        await seat.home.db.append_message("talk", role="user", content="from elsewhere")
        await seat.sees("It is locked.")
        failing.fails = False
        await seat.sees("from elsewhere")


async def test_a_mark_that_is_open_shows_the_conversation_it_belongs_to_wherever_one_goes_on() -> None:
    async def past(db: AsyncSessionDB) -> None:
        await compacted_past(db)
        await db.create_session("other", source="test")
        said = [types.NewMessage(role="user", content=f"elsewhere {n}") for n in range(60)]
        await db.append_messages("other", said)

    async with sat(past, size=(100, 40)) as seat:
        await seat.sees("messages 1 to 55")
        seat.screen.transcript.focus()
        await seat.pilot.press("p", "enter")
        await seat.until(lambda: isinstance(seat.screen.screen, compaction_view.CompactionScreen))
        opened = seat.screen.screen
        originals = opened.query(transcript.Transcript).first()
        await seat.until(lambda: any("number 1 of many" in line for line in originals.visible_rows))
        await seat.screen.session.switch("other")
        originals.action_to_end()
        await seat.until(lambda: any("number 55 of many" in line for line in originals.visible_rows))


async def test_whoever_reads_further_up_has_nothing_read_that_others_write_below() -> None:
    async with sat(long(60)) as seat:
        await seat.sees("number 60 of many")
        shown = seat.screen.transcript
        shown.scroll_to(y=40, animate=False)
        await seat.until(lambda: shown.scroll_offset.y == 40 and not shown._loading)
        before, reads, read = shown.visible_rows, 0, shown.read

        async def counted(after: int, upto: int) -> list[types.Message]:
            nonlocal reads
            reads += 1
            return list(await read(after, upto))

        shown.read = counted
        said = [types.NewMessage(role="user", content=f"more {n}") for n in range(400)]
        await seat.home.db.append_messages("talk", said)
        await seat.screen._refresh_transcript()
        assert shown.range.last == 460
        assert reads <= 4
        assert shown.visible_rows == before
        shown.action_to_end()
        await seat.sees("more 399")


async def test_a_page_that_was_read_before_never_comes_after_a_newer_one() -> None:
    async with sat(long(200)) as seat:
        await seat.sees("number 200 of many")
        shown, read, opened = seat.screen.transcript, seat.screen.transcript.read, asyncio.Event()

        async def slow(after: int, upto: int) -> list[types.Message]:
            found = list(await read(after, upto))
            await opened.wait()
            return found

        shown.read = slow
        assert 0 not in shown._pages
        reading = asyncio.create_task(shown._load(0, shown._generation))
        shown._pages[0] = newer = transcript_pages.Page((), [])
        opened.set()
        await reading
        assert shown._pages[0] is newer


# --- what stays in memory ------------------------------------------------------------------------------


def page(size: int) -> transcript_pages.Page:
    return transcript_pages.Page([types.Message(1, "u", "s", "user", 0.0, "x" * size)], [])


def test_the_pages_that_were_not_seen_for_longest_go_first() -> None:
    held = transcript_pages.PageCache()
    for number in range(transcript_pages.MAX_PAGES + 2):
        held[number] = page(1)
    held.evict(range(1))
    assert (len(held), 0 in held, 1 in held, 2 in held, 3 in held) == (
        transcript_pages.MAX_PAGES,
        True,
        False,
        False,
        True,
    )


def test_a_few_pages_of_huge_messages_are_let_go_as_well_but_never_what_is_seen() -> None:
    held = transcript_pages.PageCache()
    for number in range(6):
        held[number] = page(transcript_pages.MAX_CHARACTERS // 2)
    held.evict(range(3, 6))
    assert list(held) == [3, 4, 5]
    held.evict(range(5, 6))
    assert list(held) == [4, 5]


async def test_summaries_are_read_again_only_after_something_has_changed(db: AsyncSessionDB) -> None:
    await compacted_past(db)
    before = await transcript_source.read(db, "talk")
    await db.append_message("talk", role="user", content="more")
    after = await transcript_source.read(db, "talk", known=before)
    assert after.range.compactions is before.range.compactions
    assert (before.range.last, after.range.last) == (60, 61)
    await db.hide("talk", 61)
    hidden = await transcript_source.read(db, "talk", known=after)
    assert [each.from_seq for each in hidden.range.hides] == [61]
    await db.undo_compaction("talk")
    assert (await transcript_source.read(db, "talk", known=hidden)).range.active_epoch is None


async def test_the_status_line_fits_a_narrower_terminal() -> None:
    async with sat() as seat:
        await seat.until(lambda: seat.line("status"))
        await seat.pilot.resize_terminal(40, 20)
        await seat.until(lambda: 0 < len(seat.line("status")) <= 34)
