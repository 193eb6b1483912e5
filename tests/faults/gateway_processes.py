"""Whole gateways as processes that are killed or stopped, and the check of their chats afterwards."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast import AsyncSessionDB, content_parts, types
from holdfast.gateway import gateway, settings, worker
from holdfast.runtime import inbox_messages
from holdfast.store.db import SessionDB
from tests.faults import agent_processes, zygote
from tests.support import gateways, memory_platform

PLATFORM = "filed"
# From receipt to delivery, in this order; a message passes all of them but `commanded`, which is a command's.
POINTS = ("arrived", "claimed", "begun", "commanded", "answered", "settled", "sending", "sent")
# The operations of the store from receipt to delivery, and all whose points are counted.
STORE_OPERATIONS = ("arrive", "take", "begin", "acquire", "append", "release", "settle", "send", "delivered")
OPERATIONS = ("gateway", "commit", *STORE_OPERATIONS)
COMMAND = "/status"
PATIENCE = 60.0
NAMES = ("ann", "ben", "eve")
# After this many kills new senders appear, so that conversations begin as well as continue.
GENERATION = 4


class Update(NamedTuple):
    """A message of a sender, with the platform's id of it."""

    chat: str
    key: str
    text: str


class Sent(msgspec.Struct, frozen=True):
    """A message that a process gave to the platform, and whether the store had it marked as delivered by then."""

    id: int
    pid: int
    chat: str
    address: str
    text: str
    marked: bool


class FilePlatform(memory_platform.MemoryPlatform):
    """A platform that writes every message to a file."""

    def __init__(self, db: AsyncSessionDB, path: str) -> None:
        super().__init__(PLATFORM)
        self._db = db
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def send(self, outgoing: types.Outgoing) -> str:
        # Synchronously: a process that is stopped while it waits here has begun to send, which cannot be undone.
        found = self._db.db.mail.outgoing(outgoing.id)
        marked = found is None or not found.open
        where = str(outgoing.address.get("chat"))
        sent = Sent(outgoing.id, os.getpid(), outgoing.chat, where, outgoing.text, marked)
        os.write(self._file, msgspec.json.encode(sent) + b"\n")
        return f"{self.name}-{outgoing.id}"


def run_gateway(stage: zygote.Stage) -> None:
    """Run a gateway that receives the updates, of all chats at once, until nothing is open."""
    stage.barrier.wait()
    asyncio.run(_run_gateway(stage))


async def _run_gateway(stage: zygote.Stage) -> None:
    worker.MAX_ATTEMPTS = 10_000  # however often it is killed
    clock = zygote.Clock(stage.order.clock) if stage.order.clock else time.time
    async with AsyncSessionDB(stage.open(durability="process-crash")) as db, asyncio.timeout(PATIENCE):
        chat = FilePlatform(db, stage.args["sends"])
        model = agent_processes.echo_model(stage.args.get("window", 100_000))
        make = gateways.runtime_factory(db, model, summarizer=agent_processes.summarizer())
        async with gateway.Gateway(
            db, make, [chat], settings=settings.GatewaySettings(grace=0.0), clock=clock
        ) as opened:
            by_chat = defaultdict[str, list[Update]](list)
            for each in stage.args["updates"]:
                by_chat[each[0]].append(Update(*each))
            await asyncio.gather(*(_deliver(stage, chat, each) for each in by_chat.values()))
            await gateways.wait_idle(opened, db)


async def _deliver(stage: zygote.Stage, chat: FilePlatform, updates: Sequence[Update]) -> None:
    for each in updates:
        arrival = await chat.say(each.text, key=each.key, chat=each.chat, sender=each.chat)
        assert arrival is not None
        stage.record(each.key)


class Story:
    """Chats in one store that gateway processes serve one after the other."""

    def __init__(self, running: zygote.Zygote, target: Path | str, sends: Path, chance: random.Random) -> None:
        self.running, self.target, self.sends, self.chance = running, str(target), sends, chance
        self.updates: list[Update] = []
        self.acknowledged: set[str] = set()
        self.deaths = self.generation = 0
        self._numbers = itertools.count()

    def add(self, *texts: str, names: Sequence[str] = NAMES) -> None:
        """Add an update with each text from each sender."""
        for text, name in itertools.product(texts, names):
            number, chat = next(self._numbers), f"{name}{self.generation + self.deaths // GENERATION}"
            said = text if text.startswith("/") else f"{text} {number} of {chat}"
            self.updates.append(Update(chat, f"{chat}-{number}", said))

    def args(self, **more: Any) -> dict[str, Any]:
        return {"updates": self._pending(), "sends": str(self.sends), **more}

    def _pending(self) -> list[Update]:
        """The unacknowledged updates, and before them the last acknowledged one of each chat."""
        new = [each for each in self.updates if each.key not in self.acknowledged]
        known = {each.chat: each for each in self.updates if each.key in self.acknowledged}
        return [*(known[chat] for chat in dict.fromkeys(each.chat for each in new) if chat in known), *new]

    def collect(self, *outcomes: zygote.Outcome) -> None:
        """Collect the acknowledged keys; only a signal may have ended a process early."""
        for outcome in outcomes:
            self.acknowledged.update(outcome.records)
            assert outcome.state == "killed" or (outcome.state, outcome.error) == ("exited", None), outcome

    def run(self, point: str | None = None, hit: int = 1) -> zygote.Outcome:
        """Run a gateway that is killed at the n-th visit of a point."""
        outcome = self.running.run(run_gateway, self.target, self.args(), points=OPERATIONS, at=point, hit=hit)
        self.collect(outcome)
        self.deaths += outcome.state == "killed"
        return outcome

    def check(self) -> None:
        """Assert that each update was processed, answered and delivered, exactly once and in order."""
        assert {each.key for each in self.updates} == self.acknowledged
        chats, replies = defaultdict[str, list[Update]](list), dict[int, Update]()
        for each in self.updates:
            chats[each.chat].append(each)
        with SessionDB(self.target) as db:
            assert open_work(db) == []
            assert db.admin.fsck().ok
            assert len(db.list_sessions(limit=1_000)) == len(chats)
            for chat, updates in chats.items():
                route = db.route(route_of(chat))
                assert (route.conversation_id is not None, route.version) == (True, 1), route
                log = db.transcript(str(route.conversation_id))
                assert [(each.role, content_parts.text(each.content)) for each in log] == exchanges(updates)
                replies |= {_check_update(db, each, log): each for each in updates}
        sent = self.sends.read_bytes().splitlines() if self.sends.exists() else []
        _check_sends([msgspec.json.decode(line, type=Sent) for line in sent], replies)


def kill_at(story: Story, point: str, kills: int, most: int, names: Sequence[str] = NAMES) -> int:
    """Start processes one after the other and kill each under load, the n-th time it reaches the point.

    Return the number of kills. A process that ends before it reaches the point so often is replaced by another.
    """
    done = lived = 0
    while done < kills:
        story.add("First", *(["Second"] if lived % 3 == 1 else []), names=names)
        if lived % 4 == 0 or point == "gateway.commanded":
            story.add(COMMAND, names=names)
        done += story.run(point, story.chance.randint(1, most)).state == "killed"
        lived += 1
        assert lived < 20 + 2 * kills, f"{point} is reached too seldom"
    return done


def kill_everywhere(story: Story, kills: int) -> Iterator[str]:
    """Kill at every point of the store between receipt and delivery, in random order, and yield each point."""
    visits = dict[str, int]()
    # Only the settlement of a chat's last open message releases its lease.
    for texts in (("First", COMMAND, "Second"), ("Third",)):
        story.add(*texts)
        visits |= Counter(point for point in story.run().reached if not point.startswith(("gateway.", "commit.")))
    found = list(visits.items())
    for point, count in story.chance.sample(found, len(found)):
        for _ in range(kills):
            story.generation += 1  # Some are only passed where a conversation begins.
            kill_at(story, point, 1, max(1, count // 6), NAMES[:2])
        yield point


def kill_first_gateway(story: Story, point: str, most: int) -> bool:
    """Run two gateways that both receive every update in order; the first may be killed, and the second continues.

    Return whether the first was killed: it may have had no work.
    """
    story.add("First", COMMAND, "Second", "Third")
    fault = {"points": OPERATIONS, "at": point, "hit": story.chance.randint(1, most)}
    first, second = story.running.run_all(run_gateway, story.target, story.args(), 2, **fault)
    story.collect(first, second)
    assert second.state == "exited", second
    story.deaths += first.state == "killed"
    return first.state == "killed"


def open_work(db: SessionDB) -> list[str]:
    """The open messages and the leases that are held."""
    found = [f"{count} {name}" for name, count in db.mail.counts().items() if count]
    found += [f"{each.key} is leased" for each in db.mail.chat_leases() if each.state == "held"]
    return found + [f"{each.conversation_id} is leased" for each in db.leases() if each.state == "held"]


def route_of(chat: str) -> str:
    return f"agent:main:{PLATFORM}:dm:{chat}"


def exchanges(updates: Sequence[Update]) -> list[tuple[str, str]]:
    """The messages that must be in the log: all but commands, each followed by its answer."""
    texts = [each.text for each in updates if not each.text.startswith("/")]
    return [line for text in texts for line in (("user", text), ("assistant", f"re {text}"))]


def _check_update(db: SessionDB, update: Update, log: Sequence[types.Message]) -> int:
    """Assert that there are one outcome, one message and one delivered reply; return the id of the reply."""
    is_command, inbound = update.text.startswith("/"), db.mail.inbound_by_key(PLATFORM, update.key)
    assert inbound is not None, f"{update.key} was acknowledged and is lost"
    assert (inbound.outcome, inbound.text) == ("command" if is_command else "answered", update.text)
    uids = [message.uid for message in log if message.seq == inbound.seq]
    assert uids == ([] if is_command else [inbox_messages.uid_of(f"{PLATFORM}:{update.key}")]), update
    replies = db.mail.replies(inbound.id)
    assert len(replies) == 1, f"{update.key} has {len(replies)} replies"
    assert is_command or replies[0].text == f"re {update.text}"
    assert (replies[0].delivered_at is not None, replies[0].external) == (True, f"{PLATFORM}-{replies[0].id}")
    return replies[0].id


def _check_sends(sends: Sequence[Sent], replies: dict[int, Update]) -> None:
    """Assert that each reply was sent to its chat, in order, not twice by a process and not after it was delivered."""
    assert {each.id for each in sends} == set(replies)
    assert [each for each in sends if each.marked] == []
    chats = [(each.id, each.chat, each.address) for each in sends]
    assert chats == [(each.id, f"dm:{replies[each.id].chat}", replies[each.id].chat) for each in sends]
    assert max(Counter((each.id, each.pid) for each in sends).values(), default=1) == 1
    for chat in {each.chat for each in sends}:
        ids = list(dict.fromkeys(each.id for each in sends if each.chat == chat))
        assert ids == sorted(ids), f"replies to {chat} were sent in another order"
