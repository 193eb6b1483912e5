"""Whole gateways as processes that are killed or stopped, and the chats they must leave behind."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast import AsyncSessionDB, content_parts, types
from holdfast.compaction import base as compaction
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
# After so many deaths other people come: conversations begin, and go on.
GENERATION = 4


class Update(NamedTuple):
    """Something a person wrote, with the platform's id of it."""

    chat: str
    key: str
    text: str


class Sent(msgspec.Struct, frozen=True):
    """What the platform was given, by which process, and whether the store had it marked as delivered by then."""

    id: int
    pid: int
    chat: str
    address: str
    text: str
    marked: bool


def read_sent(path: Path) -> list[Sent]:
    """Everything that was sent so far, in order."""
    return [msgspec.convert(json.loads(line), Sent) for line in path.read_bytes().splitlines()] if path.exists() else []


class FilePlatform(memory_platform.MemoryPlatform):
    """A platform whose every message stands in a file."""

    def __init__(self, db: AsyncSessionDB, path: str) -> None:
        super().__init__(PLATFORM)
        self._db = db
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    async def send(self, outgoing: types.Outgoing) -> str:
        # At once: a process that is stopped while it waits here has begun to send, and nobody can call that back.
        found = self._db.db.mail.outgoing(outgoing.id)
        marked = found is None or not found.open
        where = str(outgoing.address.get("chat"))
        sent = Sent(outgoing.id, os.getpid(), outgoing.chat, where, outgoing.text, marked)
        os.write(self._file, msgspec.json.encode(sent) + b"\n")
        return f"{self.name}-{outgoing.id}"


class LoggedSummarizer(agent_processes.Brief):
    """Summarizes, and leaves a line for each time that it was asked to."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def summarize(self, request: compaction.SummaryRequest) -> str:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        return await super().summarize(request)


def run_gateway(stage: zygote.Stage) -> None:
    """Run a gateway that receives the updates, of all chats at once, until nothing is open."""
    stage.barrier.wait()
    asyncio.run(_run_gateway(stage))


async def _run_gateway(stage: zygote.Stage) -> None:
    worker.MAX_ATTEMPTS = 10_000  # however often it is killed
    clock = zygote.Clock(stage.order.clock) if stage.order.clock else time.time
    async with AsyncSessionDB(stage.open(durability="process-crash")) as db, asyncio.timeout(PATIENCE):
        chat = FilePlatform(db, stage.args["sends"])
        make = gateways.runtime_factory(
            db, echo := agent_processes.Echo(), summarizer=LoggedSummarizer(stage.args["sends"] + ".summaries")
        )
        echo.window = stage.args.get("window", echo.window)
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
    """Chats in one store, told by one process after another."""

    def __init__(self, running: zygote.Zygote, target: Path | str, sends: Path, chance: random.Random) -> None:
        self.running, self.target, self.sends, self.chance = running, str(target), sends, chance
        self.updates: list[Update] = []
        self.acknowledged: set[str] = set()
        self.deaths = self.strangers = 0
        self._numbers = itertools.count()

    def say(self, *texts: str, names: Sequence[str] = NAMES) -> None:
        """Everybody writes these."""
        for text, name in itertools.product(texts, names):
            number, chat = next(self._numbers), f"{name}{self.strangers + self.deaths // GENERATION}"
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

    def wrongs(self) -> list[str]:
        """What is not as it should be once everything came to its end, which the last process was let do."""
        assert {each.key for each in self.updates} == self.acknowledged
        sends = read_sent(self.sends)
        with SessionDB(self.target) as db:
            return [*still_open(db), *wrongs(db, self.updates, sends)]


def kill_at(story: Story, point: str, kills: int, most: int, names: Sequence[str] = NAMES) -> int:
    """So many processes one after the other, each killed at that point, the n-th time it comes there, under load.

    How many were. Who did not come there so often came to its end, and another is killed in its place.
    """
    done = lived = 0
    while done < kills:
        story.say("First", *(["Second"] if lived % 3 == 1 else []), names=names)
        if lived % 4 == 0 or point == "gateway.commanded":
            story.say(COMMAND, names=names)
        done += story.run(point, story.chance.randint(1, most)).state == "killed"
        lived += 1
        assert lived < 20 + 2 * kills, f"{point} is reached too seldom"
    return done


def kill_everywhere(story: Story, kills: int) -> Iterator[str]:
    """Kill at every point of the store between receipt and delivery, in random order, and yield each point."""
    visits = dict[str, int]()
    # Only the settlement of a chat's last open message releases its lease.
    for texts in (("First", COMMAND, "Second"), ("Third",)):
        story.say(*texts)
        visits |= Counter(point for point in story.run().reached if not point.startswith(("gateway.", "commit.")))
    found = list(visits.items())
    for point, count in story.chance.sample(found, len(found)):
        for _ in range(kills):
            story.strangers += 1  # Some are only passed where a conversation begins.
            kill_at(story, point, 1, max(1, count // 6), NAMES[:2])
        yield point


def kill_one_of_two(story: Story, point: str, most: int) -> bool:
    """Two at once, and every update comes in through both, in order; one of them may die, and the other ends its work.

    Whether it died: it may have had nothing to do.
    """
    story.say("First", COMMAND, "Second", "Third")
    fault = {"points": OPERATIONS, "at": point, "hit": story.chance.randint(1, most)}
    first, second = story.running.run_all(run_gateway, story.target, story.args(), 2, **fault)
    story.collect(first, second)
    assert second.state == "exited", second
    story.deaths += first.state == "killed"
    return first.state == "killed"


def still_open(db: SessionDB) -> list[str]:
    """What somebody would still have to do, or does."""
    found = [f"{count} {name}" for name, count in db.mail.counts().items() if count]
    found += [f"{each.key} is claimed" for each in db.mail.chat_leases() if each.state == "held"]
    return found + [f"{each.conversation_id} is leased" for each in db.leases() if each.state == "held"]


def wrongs(db: SessionDB, updates: Sequence[Update], sends: Sequence[Sent]) -> list[str]:
    """What is lost, twice, out of order, or elsewhere than it should be."""
    found = [f"{bad.promise} {bad.detail}" for bad in db.admin.fsck().violations]
    chats, rows = list(dict.fromkeys(each.chat for each in updates)), dict[int, Update]()
    for chat in chats:
        here, route = [each for each in updates if each.chat == chat], db.route(route_of(chat))
        if route.conversation_id is None or route.version != 1:
            found.append(f"{chat}: {route}")
            continue
        log = db.transcript(route.conversation_id)
        found += _wrongs_of_log(chat, here, log)
        for each in here:
            found += _wrongs_of_update(db, each, log, rows)
    stray = len(db.list_sessions(limit=1_000)) - len(chats)
    found += [f"{stray} conversations too many"] if stray else []
    return found + _wrongs_of_sends(sends, rows)


def route_of(chat: str) -> str:
    return f"agent:main:{PLATFORM}:dm:{chat}"


def _is_command(each: Update) -> bool:
    return each.text.startswith("/")


def _answer(each: Update) -> str:
    return f"re {each.text}"


def _wrongs_of_log(chat: str, updates: Sequence[Update], log: Sequence[types.Message]) -> list[str]:
    """Every message once, in order, and its answer behind it."""
    messages = [each for each in updates if not _is_command(each)]
    wanted = [line for each in messages for line in (("user", each.text), ("assistant", _answer(each)))]
    said = [(each.role, content_parts.text(each.content)) for each in log]
    pairs = itertools.zip_longest(said, wanted)
    return [f"{chat}: {pair[0]} is said, and not {pair[1]}" for pair in pairs if pair[0] != pair[1]][:1]


def _wrongs_of_update(db: SessionDB, each: Update, log: Sequence[types.Message], rows: dict[int, Update]) -> list[str]:
    """One outcome, one message, one reply that is marked as delivered; that goes into `rows`."""
    arrival = db.mail.inbound_by_key(PLATFORM, each.key)
    if arrival is None:
        return [f"{each.key} was acknowledged and is lost"]
    found, outcome = list[str](), "command" if _is_command(each) else "answered"
    if (arrival.outcome, arrival.text) != (outcome, each.text):
        found.append(f"{each.key}: {arrival.outcome} {arrival.text!r}")
    uids = [message.uid for message in log if message.seq == arrival.seq]
    if uids != ([] if _is_command(each) else [inbox_messages.uid_of(f"{PLATFORM}:{each.key}")]):
        found.append(f"{each.key} is not the message {arrival.seq}")
    replies = db.mail.replies(arrival.id)
    rows.update((reply.id, each) for reply in replies)
    if len(replies) != 1:
        return [*found, f"{each.key} has {len(replies)} replies"]
    (reply,) = replies
    if not _is_command(each) and reply.text != _answer(each):
        found.append(f"{each.key} is answered with {reply.text!r}")
    if reply.delivered_at is None or reply.external != f"{PLATFORM}-{reply.id}":
        found.append(f"the reply to {each.key} is not marked: {reply}")
    return found


def _wrongs_of_sends(sends: Sequence[Sent], rows: dict[int, Update]) -> list[str]:
    found = [f"{each} was marked before" for each in sends if each.marked]
    found += [f"{each} is a reply to nothing" for each in sends if each.id not in rows]
    known = [each for each in sends if each.id in rows]
    wanted = {row: (f"dm:{update.chat}", update.chat) for row, update in rows.items()}
    found += [
        f"{each} went elsewhere than {wanted[each.id]}"
        for each in known
        if (each.chat, each.address) != wanted[each.id]
    ]
    counted = Counter((each.id, each.pid) for each in sends)
    found += [f"process {pid} sent {row} {count} times" for (row, pid), count in counted.items() if count > 1]
    found += [f"the reply to {rows[row].key} was never sent" for row in set(rows) - {each.id for each in sends}]
    first = dict[str, list[int]]()
    for row in dict.fromkeys(each.id for each in known):
        first.setdefault(rows[row].chat, []).append(row)
    return found + [
        f"what went to {chat} went in another order: {ids}" for chat, ids in first.items() if ids != sorted(ids)
    ]
