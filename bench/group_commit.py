"""Group commit: many tasks that append through AsyncSessionDB, relative to one writer of the same file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import holdfast
from bench import systems, timing
from bench.figures import Figure, at_least
from bench.scale import Scale


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    alone, together = asyncio.run(rounds(scale, folder / "group.db", scale.warm_up))
    name = f"group commit, {scale.tasks} tasks: appends per second"
    baseline = ("one writer", timing.median(alone))
    yield Figure("group", name, "/s", timing.median(together), baseline, at_least(2.5))


async def rounds(scale: Scale, target: Path | str, warm_up: int) -> tuple[list[float], list[float]]:
    """Return the appends per second of one writer and of all tasks, measured alternately."""
    db = holdfast.SessionDB(target)
    alone: list[float] = []
    together: list[float] = []
    async with holdfast.AsyncSessionDB(db) as store:
        ids = [db.create_session(f"task-{number}", source="bench").id for number in range(scale.tasks)]
        _one_writer(db, ids[0], warm_up)
        for _ in range(scale.group_rounds):
            alone.append(_one_writer(db, ids[0], scale.group_appends * 10))
            together.append(await _all_tasks(store, ids, scale.group_appends))
    return alone, together


def _one_writer(db: holdfast.SessionDB, session: str, appends: int) -> float:
    began = time.perf_counter()
    for number in range(appends):
        db.append_message(session, role="user", content=systems.text(number))
    return appends / (time.perf_counter() - began)


async def _all_tasks(store: holdfast.AsyncSessionDB, ids: list[str], appends: int) -> float:
    async def task(session: str) -> None:
        for number in range(appends):
            await store.append_message(session, role="user", content=systems.text(number))

    began = time.perf_counter()
    await asyncio.gather(*(task(session) for session in ids))
    return len(ids) * appends / (time.perf_counter() - began)
