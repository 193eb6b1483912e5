"""Background processes that agents started, and how they ended.

The row is written before the process starts, so that no process is unknown. Several programs may watch one process:
the first report of its end counts, and puts the only notice into the inbox in the same transaction.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Row, Tx
from holdfast.store.facet import Facet
from holdfast.store.mail import inbox

MAX_TEXT = 1_000_000
STATES = get_args(types.ProcessState)
REDACTED = (
    "[Notice from the program, not from the person: process {id} ended.]\n"
    "Status: {state}.\n"
    "Its command was redacted, and its output with it."
)


def notice_key(process_id: str) -> str:
    """Return the inbox key of the notice that a process has ended."""
    return f"{inbox.PROCESS}{process_id}"


class Processes(Facet):
    """`db.processes`: the background processes of conversations."""

    def record_start(self, process: types.Process) -> None:
        """Record a process that is about to start. Idempotent; raises IdTaken for a different process of this id.

        Deleting the conversation deletes the row, and does not kill the process.
        """
        checked = _checked(process)
        self.driver.write("process", lambda tx: started(tx, checked))

    def record_end(
        self, process_id: str, state: types.ProcessState, exit_code: int | None, text: str, *, at: float | None = None
    ) -> bool:
        """Record the end of a process and put `text` into the inbox as its notice, in one transaction.

        Returns False if the end was recorded before, or if the process was deleted with its conversation. If the
        command was redacted, the notice only says that the process ended.
        """
        process_id = validation.check_id(process_id, "process_id")
        notice = validation.check_content(text, "text", inbox.LONGEST)
        if state not in STATES or state == "running":
            raise errors.InvalidArgument("`state` must be exited, killed or gone.")
        if exit_code is not None:
            validation.check(validation.whole_number(-(2**31), 2**32 - 1), exit_code=exit_code)
        uid, now = message_codec.mint_uid(), self._clock()
        when = now if at is None else validation.check_time(at)
        return self.driver.write("process", lambda tx: ended(tx, process_id, state, exit_code, notice, uid, when, now))

    def all(self, session_id: str | None = None, running_only: bool = False) -> list[types.Process]:
        """Return the processes of one conversation or of all, in the order they were started."""
        validation.check(validation.OptionalFlag, running_only=running_only)
        return self.driver.read(lambda tx: every(tx, session_id, bool(running_only)))


def started(tx: Tx, process: types.Process) -> None:
    here = conversation_row.lock(tx, process.conversation_id)
    row = tx.one("process_get", id=process.id)
    if row is None:
        tx.run(
            "process_insert",
            id=process.id,
            conversation=here.key,
            command=process.command,
            folder=process.folder,
            place=process.place,
            started_at=process.started_at,
        )
        return
    known = _process(row[:9])
    same = (known.command, known.folder, known.place) == (process.command, process.folder, process.place)
    if not same or row[10] != here.key:
        raise errors.IdTaken(process.id)


def ended(
    tx: Tx,
    process_id: str,
    state_: types.ProcessState,
    exit_code: int | None,
    text: str,
    uid: str,
    when: float,
    now: float,
) -> bool:
    """Write the notice, then the end: the database refuses an end without a notice.

    A retry recognises its own end by the uid. The notice is replaced if the command was redacted after its author read
    the command and the output.
    """
    place = tx.one("process_get", id=process_id)
    if place is not None:
        conversation_row.lock_all(tx, [place[1]])
    # Read it again under the lock: its end may have been recorded, its command redacted, or its row deleted.
    row = tx.one("process_get", id=process_id)
    if row is None or row[6] != "running":
        return row is not None and row[9] == uid
    here = conversation_row.lock(tx, row[1])
    text = text if row[2] else REDACTED.format(id=process_id, state=state_)
    inbox.receive(tx, here, notice_key(process_id), "process", text, now)
    return tx.run("process_end", id=process_id, state=state_, at=when, uid=uid, exit_code=exit_code) == 1


def every(tx: Tx, session_id: str | None, running_only: bool) -> list[types.Process]:
    if session_id is not None:
        key = conversation_row.look(tx, session_id).key
        return [_process(row) for row in tx.all("processes_of", conversation=key, running=int(running_only))]
    return [_process(row) for row in tx.all("processes_running" if running_only else "processes_everywhere")]


def _checked(given: object) -> types.Process:
    process = validation.check_type(types.Process, given, "process")
    validation.check_text(process.id, "process.id", validation.MAX_ID - len(inbox.PROCESS))
    if (process.state, process.ended_at, process.exit_code) != ("running", None, None):
        raise errors.InvalidArgument("`process` must have the state running, no end and no exit code.")
    validation.check_time(process.started_at)
    for name in ("command", "folder", "place"):
        validation.check_content(getattr(process, name), f"process.{name}", MAX_TEXT)
    try:
        msgspec.json.decode(process.place)
    except (msgspec.DecodeError, RecursionError):
        raise errors.InvalidArgument("`process.place` must be JSON.", parameter="process.place") from None
    return process


def _process(row: Row) -> types.Process:
    return types.Process(**dict(zip(types.Process.__struct_fields__, row, strict=True)))
