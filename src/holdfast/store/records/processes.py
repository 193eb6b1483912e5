"""Background processes that agents started, and how they ended.

The row is written before the process starts, so that no process is unknown. Several programs may watch one process:
the first report of its end counts, and adds the only notice to the inbox in the same transaction.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Facet, Tx, struct_from_row
from holdfast.store.mail import inbox

END_STATES = tuple(state for state in get_args(types.ProcessState) if state != "running")
REDACTED_NOTICE = (
    "[Notice from the program, not from the person: process {id} ended.]\n"
    "Status: {state}.\n"
    "Its command was redacted, and its output with it."
)


def notice_key(process_id: str) -> str:
    """Return the inbox key of the notice that a process has ended."""
    return f"{inbox.PROCESS_PREFIX}{process_id}"


class ProcessLog(Facet):
    """`db.processes`: the background processes of conversations."""

    def record_start(self, process: types.Process) -> None:
        """Record a process that is about to start. Idempotent; raises IdTaken for a different process of this id.

        Deleting the conversation deletes the row, and does not kill the process.
        """
        validation.check_type(types.Process, process, "process")
        validation.check_text(process.id, "process.id", validation.MAX_ID - len(inbox.PROCESS_PREFIX))
        if (process.state, process.ended_at, process.exit_code) != ("running", None, None):
            raise errors.InvalidArgument("`process` must have the state running, no end and no exit code.")
        validation.check_time(process.started_at)
        texts = {
            name: validation.check_content(getattr(process, name), f"process.{name}", validation.MAX_TEXT)
            for name in ("command", "folder", "place")
        }
        try:
            msgspec.json.decode(process.place)
        except (msgspec.DecodeError, RecursionError):
            raise errors.InvalidArgument("`process.place` must be JSON.", parameter="process.place") from None
        self.driver.write("process", lambda tx: record_start(tx, process, texts))

    def record_end(
        self, process_id: str, state: types.ProcessState, exit_code: int | None, text: str, *, at: float | None = None
    ) -> bool:
        """Record the end of a process and add `text` to the inbox as its notice, in one transaction.

        Returns False if the end was recorded before, or if the process was deleted with its conversation. If the
        command was redacted, the notice only says that the process ended.
        """
        validation.check_id(process_id, "process_id")
        notice = validation.check_content(text, "text", validation.MAX_TEXT)
        if state not in END_STATES:
            raise errors.InvalidArgument(f"`state` must be one of {', '.join(END_STATES)}.")
        if exit_code is not None:
            validation.check(validation.whole_number(-(2**31), 2**32 - 1), exit_code=exit_code)
        now = self._clock()
        end = {
            "id": process_id,
            "state": state,
            "exit_code": exit_code,
            "uid": message_codec.generate_uid(),
            "at": now if at is None else validation.check_time(at),
        }
        return self.driver.write("process", lambda tx: record_end(tx, end, notice, now))

    def all(self, session_id: str | None = None, running_only: bool = False) -> list[types.Process]:
        """Return the processes of one conversation or of all, in the order they were started."""

        def read(tx: Tx) -> list[types.Process]:
            if session_id is None:
                rows = tx.all("processes_running" if running_only else "processes_everywhere")
            else:
                rows = conversation_row.query(tx, "processes_of", session_id, running=int(bool(running_only)))
            return [struct_from_row(types.Process, row) for row in rows]

        return self.driver.read(read)


def record_start(tx: Tx, process: types.Process, texts: dict[str, str]) -> None:
    here = conversation_row.lock(tx, process.conversation_id)
    row = tx.one("process_get", id=process.id)
    if row is None:
        tx.run("process_insert", conversation=here.key, id=process.id, started_at=process.started_at, **texts)
        return
    *fields, _, conversation = row
    known = struct_from_row(types.Process, fields)
    if conversation != here.key or any(getattr(known, name) != text for name, text in texts.items()):
        raise errors.IdTaken(process.id)


def record_end(tx: Tx, end: dict[str, Any], text: str, now: float) -> bool:
    """Write the notice, then the end: the database refuses an end without a notice.

    A retry recognises its own end by the uid. The notice is replaced if the command was redacted after its author read
    the command and the output.
    """
    if (row := tx.one("process_get", id=end["id"])) is not None:
        conversation_row.lock_all(tx, [row[1]])
    # Read again under the lock: its end may have been recorded, its command redacted, or its row deleted.
    row = tx.one("process_get", id=end["id"])
    if row is None or row[6] != "running":
        return row is not None and row[9] == end["uid"]
    here = conversation_row.lock(tx, row[1])
    notice = text if row[2] else REDACTED_NOTICE.format(id=end["id"], state=end["state"])
    inbox.add_entry(tx, here, notice_key(end["id"]), "process", notice, now)
    return tx.run("process_end", **end) == 1
