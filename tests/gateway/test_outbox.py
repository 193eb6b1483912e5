"""What goes out: in order for each chat, again until it is taken, and never twice once that is known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points, types
from holdfast.gateway import outbox
from holdfast.store.mail import outbox as stored
from holdfast.store.sqlite import driver as sqlite_driver
from tests.gateway.test_gateway import new
from tests.support import conversations, gateways, memory_platform, polling


class Moody(memory_platform.MemoryPlatform):
    """A platform that takes a message only where nothing is wrong."""

    def __init__(self, *wrongs: BaseException, name: str = "loopback") -> None:
        super().__init__(name)
        self.wrongs = list(wrongs)
        self.tried: list[str] = []

    async def send(self, outgoing: types.Outgoing) -> str:
        self.tried.append(outgoing.text)
        if self.wrongs and outgoing.text == "One":
            raise self.wrongs.pop(0)
        return await super().send(outgoing)


def message(text: str, chat: str = "dm:local", platform: str = "loopback") -> types.NewOutgoing:
    return types.NewOutgoing(platform=platform, chat=chat, address={"chat": chat}, text=text, kind="notice")


@asynccontextmanager
async def sending(
    db: AsyncSessionDB, platform: memory_platform.MemoryPlatform, clock: Callable[[], float] | None = None
) -> AsyncIterator[outbox.Sender]:
    sender = outbox.Sender(db, platform, clock or db.db._clock)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.mark.parametrize(
    ("attempts", "after", "seconds"),
    [
        (1, None, 1),
        (2, None, 2),
        (5, None, 16),
        (11, None, 600),
        (99, None, 600),
        (1, 30.0, 30),
        (9, 3.0, 256),
        (1, 1e9, 3600),
    ],
)
def test_each_pause_is_twice_as_long_and_not_shorter_than_asked_for_within_reason(
    attempts: int, after: float | None, seconds: float
) -> None:
    assert outbox.retry_delay(attempts, after) == seconds


async def test_what_was_not_taken_is_sent_again_when_its_time_has_come_and_what_follows_waits_for_it() -> None:
    clock = conversations.Clock()

    async with gateways.store(clock=clock) as db:
        platform = Moody(errors.SendFailed("Slowly!", retry_after=30.0), RuntimeError("a bug"))
        one = await db.mail.post(message("One"))
        await db.mail.post(message("Two"))
        async with sending(db, platform, clock) as sender:
            await polling.until_async(lambda: _due_after(db, one.id, clock.now + 30))
            clock.advance(29)
            await db.mail.post(message("Elsewhere", "dm:other"))
            await polling.until_async(lambda: _tried(platform, 2, sender))
            assert platform.tried == ["One", "Elsewhere"]
            clock.advance(1)
            await polling.until_async(lambda: _due_after(db, one.id, clock.now + 2, sender))
            clock.advance(2)
            await polling.until_async(lambda: _tried(platform, 5, sender))
            await sender.drain(60)
        assert platform.tried == ["One", "Elsewhere", "One", "One", "Two"]
        assert gateways.texts(platform.sent) == ["Elsewhere", "One", "Two"]
        assert (await db.mail.counts())["outgoing_open"] == 0


async def test_what_is_refused_for_good_is_not_sent_again_and_holds_up_nothing(db: AsyncSessionDB) -> None:
    platform = Moody(errors.SendRefused("The chat is closed."))
    one = await db.mail.post(message("One"))
    await db.mail.post(message("Two"))
    async with sending(db, platform):
        await platform.replies(1)
    found = await db.mail.outgoing(one.id)
    assert found is not None
    assert (found.error, found.failed_at is None, platform.tried) == ("The chat is closed.", False, ["One", "Two"])


@pytest.mark.parametrize(
    ("wrong", "tries"), [(errors.SendFailed, outbox.MAX_ATTEMPTS), (RuntimeError, outbox.MAX_UNEXPECTED)]
)
async def test_after_twenty_tries_it_is_given_up_and_sooner_where_nobody_knows_what_is_wrong(
    wrong: type[Exception], tries: int
) -> None:
    clock = conversations.Clock()

    async with gateways.store(clock=clock) as db:
        platform = Moody(*(wrong() for _ in range(30)))
        one = await db.mail.post(message("One"))

        async def given_up() -> bool:
            if not sender._sending:  # A clock that moves meanwhile is that of a process that slept.
                clock.advance(outbox.MAX_RETRY)
            sender.wake()
            found = await db.mail.outgoing(one.id)
            return found is not None and not found.open

        async with sending(db, platform, clock) as sender:
            await polling.until_async(given_up)
        assert len(platform.tried) == tries


async def test_what_was_marked_is_not_sent_again_after_a_restart_and_what_was_not_is(db: AsyncSessionDB) -> None:
    first, second = Moody(), Moody()
    await db.mail.post(message("Marked"))
    async with sending(db, first):
        await polling.until_async(lambda: _delivered(db))
    lost = await db.mail.post(message("Sent, and not marked"))
    claim = await db.mail.acquire_chat_lease("out:loopback:dm:local")
    await db.mail.begin_sending(claim, lost.id)
    await db.mail.release_chat_lease(claim)
    async with sending(db, second):
        await second.replies(1)
    assert (first.tried, second.tried) == (["Marked"], ["Sent, and not marked"])


async def test_of_two_senders_one_sends(db: AsyncSessionDB) -> None:
    one, other = Moody(), Moody()
    async with sending(db, one) as first, sending(db, other) as second:
        for number in range(20):
            await db.mail.post(message(str(number), f"dm:{number % 3}"))
            first.wake()
            second.wake()
        await polling.until_async(lambda: _delivered(db))
    assert sorted(one.tried + other.tried, key=int) == [str(number) for number in range(20)]


async def test_what_takes_long_to_send_is_sent_by_nobody_else_meanwhile() -> None:
    clock = conversations.Clock()

    class Slow(Moody):
        reached, go = asyncio.Event(), asyncio.Event()

        async def send(self, outgoing: types.Outgoing) -> str:
            self.reached.set()
            await self.go.wait()
            return await super().send(outgoing)

    async with gateways.store(clock=clock) as db:
        slow, other = Slow(), Moody()
        await db.mail.post(message("One"))
        async with sending(db, slow, clock), asyncio.timeout(60):
            await slow.reached.wait()
            beside = outbox.Sender(db, other, clock)
            clock.advance(outbox.SEND_SECONDS)
            await beside._poll()
            await asyncio.gather(*beside._sending.values())
            slow.go.set()
            await polling.until_async(lambda: _delivered(db))
        assert (slow.tried, other.tried) == (["One"], [])


@pytest.mark.parametrize("wrong", ["chat = 'dm:other'", "platform = 'other'", 'address = \'{"chat":"other"}\''])
async def test_a_reply_that_would_go_elsewhere_than_its_turn_came_from_is_not_sent(wrong: str) -> None:
    """The database takes no such row; one that came there all the same is not believed."""
    platform = Moody()
    async with AsyncSessionDB(SessionDB(":memory:")) as db:
        arrival, _ = await db.mail.add_inbound(new("1", "Hi"))
        right = types.NewOutgoing(
            platform="loopback", chat="dm:local", address={"chat": "local"}, text="Wrong", kind="notice"
        )
        posted = await db.mail.post(right, inbound_id=arrival.id)
        file = db.db.driver
        assert isinstance(file, sqlite_driver.SqliteDriver)
        file._writer.execute(f"DROP TRIGGER outgoing_content_is_immutable; UPDATE outbox SET {wrong}")
        platform = Moody(name="other") if "platform" in wrong else platform
        async with sending(db, platform):
            await polling.until_async(lambda: _delivered(db))
        found = await db.mail.outgoing(posted.id)
        assert found is not None
        assert (platform.tried, found.error) == ([], stored.WRONG_CHAT)


async def test_what_another_process_has_to_send_is_left_to_it(db: AsyncSessionDB) -> None:
    class Connected(Moody):
        exclusive = True

        def owns(self, outgoing: types.Outgoing) -> bool:
            return outgoing.address["chat"] == "dm:mine"

    platform = Connected()
    await db.mail.post(message("Theirs", "dm:theirs"))
    await db.mail.post(message("Mine", "dm:mine"))
    async with sending(db, platform) as sender:
        await platform.replies(1)
        sender.wake()
        await sender.drain(60)
    assert platform.tried == ["Mine"]


async def test_a_chat_that_another_process_sends_to_is_left_alone_for_a_while(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    asked: list[str] = []
    await db.mail.post(message("One"))
    theirs = await db.mail.acquire_chat_lease("out:loopback:dm:local")
    platform = Moody()
    sender = outbox.Sender(db, platform, db.db._clock)
    monkeypatch.setattr(fault_points, "hook", lambda point: asked.extend([point] if point.endswith(".begun") else []))
    for _ in range(3):
        await sender._poll()
        await asyncio.gather(*sender._sending.values())
    assert (len(asked), platform.tried) == (1, [])
    monkeypatch.undo()
    await db.mail.release_chat_lease(theirs)
    async with sending(db, platform):
        await platform.replies(1)


async def test_what_the_platform_has_taken_is_not_sent_again_because_the_store_could_not_be_told(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    failures = [errors.StoreFull(), errors.StoreBusy()]

    def full(point: str) -> None:
        if point == "delivered.begun" and failures:
            raise failures.pop()

    platform = Moody()
    monkeypatch.setattr(fault_points, "hook", full)
    monkeypatch.setattr(outbox, "POLL_SECONDS", 0.01)
    await db.mail.post(message("One"))
    async with sending(db, platform):
        await polling.until_async(lambda: _delivered(db))
    assert (failures, platform.tried) == ([], ["One"])


async def test_so_much_that_others_have_to_send_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    class Connected(Moody):
        exclusive = True

        def owns(self, outgoing: types.Outgoing) -> bool:
            if outgoing.text == "Odd":
                raise RuntimeError("a bug")
            return outgoing.text == "Mine"

    monkeypatch.setattr(outbox, "MAX_READ", 3)
    for number in range(5):
        await db.mail.post(message("Theirs" if number else "Odd", f"dm:{number}"))
    await db.mail.post(message("Mine", "dm:mine"))
    platform = Connected()
    async with sending(db, platform):
        await platform.replies(1)
    assert platform.tried == ["Mine"]


async def _due_after(db: AsyncSessionDB, outgoing_id: int, when: float, sender: outbox.Sender | None = None) -> bool:
    if sender is not None:
        sender.wake()
    found = await db.mail.outgoing(outgoing_id)
    return found is not None and found.due_at >= when


async def _tried(platform: Moody, count: int, sender: outbox.Sender | None = None) -> bool:
    if sender is not None:
        sender.wake()
    return len(platform.tried) >= count


async def _delivered(db: AsyncSessionDB) -> bool:
    return (await db.mail.counts())["outgoing_open"] == 0


@pytest.mark.parametrize("alone", [True, False])
async def test_of_two_processes_that_have_connections_neither_is_in_the_others_way(alone: bool, tmp_path: Path) -> None:
    class Here(memory_platform.MemoryPlatform):
        """Sends what says its name."""

        def __init__(self, own: str) -> None:
            super().__init__()
            self.own, self.exclusive = own, alone

        def owns(self, outgoing: types.Outgoing) -> bool:
            return outgoing.text == self.own

    path = str(tmp_path / "mail.db")

    async with gateways.store(path) as db:
        ours, theirs = Here("ours"), Here("theirs")
        async with AsyncSessionDB(SessionDB(path)) as other, sending(db, ours), sending(other, theirs):
            for text, chat in (("ours", ours), ("theirs", theirs)):
                await db.mail.post(message(text))
                await chat.replies(1)
        assert await db.mail.chat_leases() == []


@pytest.mark.parametrize("alone", [True, False])
async def test_a_claim_is_written_only_where_another_process_could_send_it_too(alone: bool, db: AsyncSessionDB) -> None:
    """They are never deleted, and a chat over HTTP may be a new one with each request."""

    class Connected(Moody):
        def __init__(self) -> None:
            super().__init__()
            self.exclusive = alone

        def owns(self, _: types.Outgoing) -> bool:
            return True

    platform = Connected()
    await db.mail.post(message("Hi"))
    async with sending(db, platform):
        await polling.until_async(lambda: _delivered(db))
    assert platform.tried == ["Hi"]
    row = await db.run(lambda: db.db.driver.read(lambda tx: tx.one("claim_row", key="out:loopback:dm:local")))
    assert (row is None) == alone
