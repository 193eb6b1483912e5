"""A whole gateway as something a process can be killed or stopped in.

Model and platform are ours; the store, the router, the turns and the sender are real. What the platform has taken
stands in a file that outlives the process, and beside it whether the store had it marked as delivered by then.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast import AsyncSessionDB, fault_points, types
from holdfast.compaction import base as compaction
from holdfast.gateway import gateway, settings, worker
from tests.faults import compacting, turns, zygote
from tests.support import gateways as stages
from tests.support import memory_platform

PLATFORM = "filed"
# From receipt to delivery, in this order; a message passes all of them but `commanded`, which is a command's.
POINTS = ("arrived", "claimed", "begun", "commanded", "answered", "settled", "sending", "sent")
# What the store does meanwhile.
OPERATIONS = ("arrive", "take", "begin", "acquire", "append", "release", "settle", "send", "delivered")
COMMAND = "/status"
PATIENCE = 60.0


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


def sent(path: Path) -> list[Sent]:
    """Everything that was sent so far, in its order."""
    return [msgspec.convert(json.loads(line), Sent) for line in path.read_bytes().splitlines()] if path.exists() else []


class Filed(memory_platform.MemoryPlatform):
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


class Noted(compacting.Brief):
    """Summarizes, and leaves a line for each time that it was asked to."""

    def __init__(self, path: str) -> None:
        self._path = path

    async def summarize(self, request: compaction.SummaryRequest) -> str:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        return await super().summarize(request)


class Strike:
    """What happens to a process that comes to a point for the n-th time."""

    def __init__(self, point: str, hit: int, number: signal.Signals = signal.SIGKILL) -> None:
        self._point, self._hit, self._number = point, hit, number
        self._hits = itertools.count(1)
        self.reached: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        self.reached[name] += 1
        if name == self._point and next(self._hits) == self._hit:
            os.kill(os.getpid(), self._number)


# --- in a process of its own ------------------------------------------------------------------------------------


def live(stage: zygote.Stage) -> dict[str, int]:
    """A gateway's life: these updates come in, all chats at once, and it works until nothing is open.

    Of several at once only the first is struck. How often it came to each point, where nothing ended it.
    """
    args, point = stage.args, stage.args.get("point", "") if stage.index == 0 else ""
    strike = fault_points.hook = Strike(point, args.get("hit", 0), signal.Signals[args.get("signal", "SIGKILL")])
    if stage.barrier is not None:
        stage.barrier.wait()
    asyncio.run(_live(stage))
    return dict(strike.reached)


async def _live(stage: zygote.Stage) -> None:
    worker.MAX_ATTEMPTS = 10_000  # however often it is killed
    clock = zygote.Clock(stage.order.clock) if stage.order.clock else time.time
    async with AsyncSessionDB(stage.open(durability="process-crash")) as db, asyncio.timeout(PATIENCE):
        chat = Filed(db, stage.args["sends"])
        make = stages.runtime_factory(db, echo := turns.Echo(), summarizer=Noted(stage.args["sends"] + ".summaries"))
        echo.window = stage.args.get("window", echo.window)
        async with gateway.Gateway(
            db, make, [chat], settings=settings.GatewaySettings(grace=0.0), clock=clock
        ) as opened:
            by_chat = defaultdict[str, list[Update]](list)
            for each in stage.args["updates"]:
                by_chat[each[0]].append(Update(*each))
            await asyncio.gather(*(_bring(stage, chat, each) for each in by_chat.values()))
            await stages.wait_idle(opened, db)


async def _bring(stage: zygote.Stage, chat: Filed, updates: Sequence[Update]) -> None:
    for each in updates:
        arrival = await chat.say(each.text, key=each.key, chat=each.chat, sender=each.chat)
        assert arrival is not None
        stage.tell(each.key)
