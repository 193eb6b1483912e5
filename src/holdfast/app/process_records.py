"""Processes as the store knows them, for whoever starts and watches them."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import types
from holdfast.store import async_db


class ProcessRecords:
    """What is written down of processes; whoever listens to a conversation is told when one of it has ended.

    `came_in` is called with a conversation when there may be a notice for it: one that was written here, and one
    that another program wrote, which is seen by its process not running any more.
    """

    def __init__(self, db: async_db.AsyncSessionDB, came_in: Callable[[str], object]) -> None:
        self._db, self._came_in = db, came_in
        self._running: dict[str, str] = {}

    async def started(self, process: types.Process) -> None:
        """Written down before it starts."""
        await self._db.processes.record_start(process)
        self._running[process.id] = process.conversation_id

    async def ended(self, id: str, state: types.ProcessState, exit_code: int | None, text: str) -> bool:
        """Its end, and the notice of it; False when somebody else was first."""
        first = await self._db.processes.record_end(id, state, exit_code, text)
        conversation_id = self._running.pop(id, None)
        if conversation_id is not None:
            self._came_in(conversation_id)
        return first

    async def every(self, conversation_id: str | None = None, running_only: bool = False) -> list[types.Process]:
        """Those of a conversation, or all; only those that run, or all."""
        before = dict(self._running)
        found = await self._db.processes.all(conversation_id, running_only)
        running = {each.id: each.conversation_id for each in found if each.state == "running"}
        if conversation_id is None:
            # Known before this look, and not in it: what was started meanwhile may be missing and runs all the same.
            for id_ in before.keys() - running.keys():
                self._running.pop(id_, None)
                self._came_in(before[id_])
        self._running.update(running)
        return found
