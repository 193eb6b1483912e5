"""Records of background processes in the store."""

from __future__ import annotations

from collections.abc import Callable

from holdfast import types
from holdfast.store import async_db


class ProcessRecords:
    """Stores the starts and ends of processes.

    `on_inbox` is called with the id of a conversation that may have a new inbox entry: when an end is recorded
    here, and when another process recorded one.
    """

    def __init__(self, db: async_db.AsyncSessionDB, on_inbox: Callable[[str], object]) -> None:
        self._db, self._on_inbox = db, on_inbox
        self._running: dict[str, str] = {}

    async def started(self, process: types.Process) -> None:
        """Record a process before it starts."""
        await self._db.processes.record_start(process)
        self._running[process.id] = process.conversation_id

    async def ended(self, id: str, state: types.ProcessState, exit_code: int | None, text: str) -> bool:
        """Record the end of a process and its notice; returns False if another process recorded it first."""
        first = await self._db.processes.record_end(id, state, exit_code, text)
        conversation_id = self._running.pop(id, None)
        if conversation_id is not None:
            self._on_inbox(conversation_id)
        return first

    async def every(self, conversation_id: str | None = None, running_only: bool = False) -> list[types.Process]:
        """Return the processes of a conversation, or all."""
        before = dict(self._running)
        found = await self._db.processes.all(conversation_id, running_only)
        running = {each.id: each.conversation_id for each in found if each.state == "running"}
        if conversation_id is None:
            # Only processes known before this query: one that started meanwhile may be missing in its result.
            for id_ in before.keys() - running.keys():
                self._running.pop(id_, None)
                self._on_inbox(before[id_])
        self._running.update(running)
        return found
