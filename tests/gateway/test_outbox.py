"""The sender sends the messages of each chat in order, repeats failed ones, and never a delivered one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points, types
from holdfast.gateway import outbox, platform
from tests.support import conversations, gateways
from tests.support.gateways import texts, wait_sent
from tests.support.memory_platform import MemoryPlatform
from tests.support.polling import until_async


class FailingPlatform(MemoryPlatform):
    """A platform that raises the given errors for the message `One`; it may own messages exclusively."""

    def __init__(self, *failures: BaseException, name: str = "loopback") -> None:
        super().__init__(name)
        self.failures, self.tried = list(failures), list[str]()

    async def send(self, outgoing: types.Outgoing) -> str:
        self.tried.append(outgoing.text)
        if self.failures and outgoing.text == "One":
            raise self.failures.pop(0)
        return await super().send(outgoing)


class ConnectedPlatform(FailingPlatform):
    """A platform that sends the messages `Mine`, of clients that are connected to it."""

    def __init__(self, own: str = "Mine", exclusive: bool = True) -> None:
        super().__init__()
        self._own, self.exclusive = own, exclusive

    def owns(self, outgoing: types.Outgoing) -> bool:
        if outgoing.text == "Odd":
            raise RuntimeError("a bug")
        return outgoing.text == self._own


def message(text: str, chat: str = "dm:local") -> types.NewOutgoing:
    return types.NewOutgoing(platform="loopback", chat=chat, address={"chat": chat}, text=text, kind="notice")


@asynccontextmanager
async def run_sender(
    db: AsyncSessionDB, platform: MemoryPlatform, clock: Callable[[], float] | None = None
) -> AsyncIterator[outbox.Sender]:
    sender = outbox.Sender(db, platform, clock or time.time, poll_seconds=0.02)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def send_due(sender: outbox.Sender) -> None:
    await sender._poll()
    await asyncio.gather(*sender._sending.values())


async def retry_until(sender: outbox.Sender, clock: conversations.Clock, condition: Callable[[], Any]) -> None:
    """Let the pauses between the attempts pass until a condition holds."""

    def advance() -> Any:
        if not sender._sending:  # A clock that moves meanwhile is that of a process that slept.
            clock.advance(outbox.MAX_RETRY)
        sender.wake()
        return condition()

    await until_async(advance)


async def read(db: AsyncSessionDB, id_: int) -> types.Outgoing:
    found = await db.mail.outgoing(id_)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("attempts", "after", "seconds"),
    [(1, None, 1), (2, None, 2), (11, None, 600), (99, None, 600), (1, 30.0, 30), (9, 3.0, 256), (1, 1e9, 3600)],
)
def test_retry_delay_doubles_within_limits(attempts: int, after: float | None, seconds: float) -> None:
    assert outbox.retry_delay(attempts, after) == seconds


async def test_failed_message_is_sent_again_when_due_and_later_ones_wait_for_it() -> None:
    clock = conversations.Clock()
    async with gateways.store(clock=clock) as db:
        platform = FailingPlatform(errors.SendFailed("Slowly!", retry_after=30.0), RuntimeError("a bug"))
        one = await db.mail.post(message("One"))
        await db.mail.post(message("Two"))
        async with run_sender(db, platform, clock) as sender:

            async def is_due_after(seconds: float) -> bool:
                sender.wake()
                return (await read(db, one.id)).due_at >= clock.now + seconds

            async def has_tried(count: int) -> bool:
                sender.wake()
                return len(platform.tried) >= count

            await until_async(lambda: is_due_after(30))
            clock.advance(29)
            await db.mail.post(message("Elsewhere", "dm:other"))
            await until_async(lambda: has_tried(2))
            assert platform.tried == ["One", "Elsewhere"]
            clock.advance(1)
            await until_async(lambda: is_due_after(2))
            clock.advance(2)
            await until_async(lambda: has_tried(5))
            await sender.drain(60)
        assert platform.tried == ["One", "Elsewhere", "One", "One", "Two"]
        assert texts(platform.sent) == ["Elsewhere", "One", "Two"]
        await wait_sent(db)


async def test_refused_message_is_not_sent_again_and_blocks_nothing(db: AsyncSessionDB) -> None:
    platform = FailingPlatform(errors.SendRefused("The chat is closed."))
    one = await db.mail.post(message("One"))
    await db.mail.post(message("Two"))
    async with run_sender(db, platform):
        await platform.replies(1)
    found = await read(db, one.id)
    assert (found.error, found.failed_at is None, platform.tried) == ("The chat is closed.", False, ["One", "Two"])


GIVEN_UP = [(errors.SendFailed, outbox.MAX_ATTEMPTS), (RuntimeError, outbox.MAX_UNEXPECTED)]


@pytest.mark.parametrize(("failure", "attempts"), GIVEN_UP)
async def test_message_is_given_up_after_a_number_of_attempts(failure: type[Exception], attempts: int) -> None:
    clock = conversations.Clock()
    async with gateways.store(clock=clock) as db:
        platform = FailingPlatform(*(failure() for _ in range(30)))
        one = await db.mail.post(message("One"))

        async def is_given_up() -> bool:
            return not (await read(db, one.id)).open

        async with run_sender(db, platform, clock) as sender:
            await retry_until(sender, clock, is_given_up)
        assert len(platform.tried) == attempts


@pytest.mark.parametrize("problem", ["damaged", "missing", "slow"])
async def test_file_that_cannot_be_sent_is_named_in_a_notice_and_blocks_nothing(problem: str, tmp_path: Path) -> None:
    clock = conversations.Clock()

    class Uploading(FailingPlatform):
        async def send(self, outgoing: platform.Delivery) -> str:
            for each in outgoing.files:
                self.tried.append((await each.read()).decode())
                raise TimeoutError
            return await super().send(outgoing)

    async with gateways.store(str(tmp_path / "mail.db"), clock=clock) as db:
        digest = (await db.blobs.put(b"a,b")).digest
        attached = msgspec.structs.replace(message("One"), attachments=[digest], file_names={digest: "a.csv"})
        for each in (attached, message("Two")):
            await db.mail.post(each)
        path, chat = Path(db.db.blobs.files.path(digest)), Uploading()
        if problem != "slow":
            path.unlink()
        if problem == "damaged":
            path.write_bytes(b"x")
        async with run_sender(db, chat, clock) as sender:
            await retry_until(sender, clock, lambda: len(chat.sent) == 2)
    reason = outbox.TIMED_OUT if problem == "slow" else "The stored file is missing or damaged."
    assert texts(chat.sent) == [f"One\n\nNot sent: `a.csv` ({reason[:-1]})", "Two"]
    assert chat.tried.count("a,b") == (outbox.MAX_SLOW_FILES if problem == "slow" else 0)


async def test_slow_send_keeps_its_lease() -> None:
    clock, gate = conversations.Clock(), gateways.Gate()

    class Slow(FailingPlatform):
        async def send(self, outgoing: types.Outgoing) -> str:
            await gate(None)
            return await super().send(outgoing)

    async with gateways.store(clock=clock) as db:
        slow, other = Slow(), FailingPlatform()
        await db.mail.post(message("One"))
        async with run_sender(db, slow, clock), asyncio.timeout(60):
            await gate.reached.wait()
            clock.advance(platform.SEND_SECONDS)
            await send_due(outbox.Sender(db, other, clock))
            gate.go.set()
            await wait_sent(db)
        assert (slow.tried, other.tried) == (["One"], [])


async def test_process_that_was_suspended_before_a_send_does_not_send(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, platform = conversations.Clock(), FailingPlatform()

    def suspend(point: str) -> None:
        if point == "gateway.sending":
            clock.advance(outbox.KEEP_SECONDS + 1)

    async with gateways.store(clock=clock) as db:
        await db.mail.post(message("One"))
        monkeypatch.setattr(fault_points, "hook", suspend)
        await send_due(outbox.Sender(db, platform, clock))
        assert platform.tried == []


async def test_sent_but_unmarked_message_is_not_sent_again(monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    platform, works, failures = FailingPlatform(), db.mail.mark_delivered, [errors.StoreBusy()]

    async def fail_once(*args: Any) -> bool:
        if failures:
            raise failures.pop()
        return await works(*args)

    monkeypatch.setattr(db.mail, "mark_delivered", fail_once)
    sent = await db.mail.post(message("One"))
    sender = outbox.Sender(db, platform, time.time)
    for _ in range(2):
        sender._skipped.clear()
        await send_due(sender)
    assert (platform.tried, failures) == (["One"], [])
    assert (await read(db, sent.id)).delivered_at is not None


async def test_messages_of_other_processes_hide_no_own_one(monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    monkeypatch.setattr(outbox, "MAX_READ", 3)
    for number in range(5):
        await db.mail.post(message("Theirs" if number else "Odd", f"dm:{number}"))
    await db.mail.post(message("Mine", "dm:mine"))
    platform = ConnectedPlatform()
    async with run_sender(db, platform) as sender:
        await platform.replies(1)
        sender.wake()
        await sender.drain(60)
    assert platform.tried == ["Mine"]


@pytest.mark.parametrize("exclusive", [True, False])
async def test_processes_with_connections_do_not_block_each_other(exclusive: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "mail.db")
    async with gateways.store(path) as db:
        ours, theirs = ConnectedPlatform("ours", exclusive), ConnectedPlatform("theirs", exclusive)
        async with AsyncSessionDB(SessionDB(path)) as other, run_sender(db, ours), run_sender(other, theirs):
            for text, chat in (("ours", ours), ("theirs", theirs)):
                await db.mail.post(message(text))
                await chat.replies(1)
            await wait_sent(db)
        assert await db.mail.chat_leases() == []
        # Rows of leases are never deleted, so none is written where only one process can send.
        row = await db.run(lambda: db.db.driver.read(lambda tx: tx.one("claim_row", key="out:loopback:dm:local")))
        assert (row is None) == exclusive
