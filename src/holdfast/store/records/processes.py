"""Processes: what agents started that works beside their turns, and how each of them ended.

The row is there before the process is, so that none is ever unknown. Any number of programs may watch one
process: the first to report its end wins, and in the same transaction its notice is in the inbox. So a
process that ended is told of once, whoever was there to see it.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Row, Tx
from holdfast.store.facet import Facet
from holdfast.store.mail import inbox

LONGEST = 1_000_000
STATES = get_args(types.ProcessState)
REDACTED = (
    "[Notice from the program, not from the person: process {id} ended.]\n"
    "Status: {state}.\n"
    "Its command was redacted, and its output with it."
)


def notice_key(process_id: str) -> str:
    """The key in the inbox of the notice that a process has ended."""
    return f"{inbox.PROCESS}{process_id}"


class Processes(Facet):
    """`db.processes`: the background processes of conversations."""

    def record_start(self, process: types.Process) -> None:
        """Write down a process that is about to start. The same again is harmless; IdTaken for another of its id.

        Deleting its conversation deletes the row; nothing is killed by that.
        """
        checked = _checked(process)
        self.driver.write("process", lambda tx: started(tx, checked))

    def record_end(
        self, process_id: str, state: types.ProcessState, exit_code: int | None, text: str, *, at: float | None = None
    ) -> bool:
        """A process has ended, and `text` is the notice of it in the inbox: both or neither.

        Whether this was the first report of it; False, too, when it is gone with its conversation. Where its command
        was redacted, the notice says no more than that it ended.
        """
        named, said = validation.check_id(process_id, "process_id"), inbox.checked_text(text)
        if state not in STATES or state == "running":
            raise errors.InvalidArgument("A process ends as exited, killed or gone.")
        if exit_code is not None:
            validation.check(validation.whole_number(-(2**31), 2**32 - 1), exit_code=exit_code)
        uid, now = message_codec.mint_uid(), self._clock()
        when = now if at is None else validation.check_time(at)
        return self.driver.write("process", lambda tx: ended(tx, named, state, exit_code, said, uid, when, now))

    def all(self, session_id: str | None = None, running_only: bool = False) -> list[types.Process]:
        """The processes of a conversation, or of all, in the order they were started."""
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
    if (known.command, known.folder, known.place, row[10]) != (
        process.command,
        process.folder,
        process.place,
        here.key,
    ):
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
    """The notice first: the database refuses an end without one. The uid tells a repeated attempt that it won.

    Who wrote the notice may have read the command, and the output, before it was redacted: then it is not kept.
    """
    place = tx.one("process_get", id=process_id)
    if place is not None:
        conversation_row.lock_all(tx, [place[1]])
    # Looked at again: before it was locked, somebody may have told of it, redacted its command or deleted it all.
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
    validation.check_id(process.id, "process id")
    if len(notice_key(process.id)) > validation.MAX_ID:
        raise errors.InvalidArgument(f"The process id {errors.shown(process.id)} is too long.")
    if (process.state, process.ended_at, process.exit_code) != ("running", None, None):
        raise errors.InvalidArgument("A process that is started runs.")
    validation.check_time(process.started_at)
    for text in (process.command, process.folder, process.place):
        if not isinstance(text, str) or not text or len(text) > LONGEST or not inbox.is_unicode(text):
            raise errors.MessageInvalid(f"What is known of a process is text of 1 to {LONGEST:,} characters.")
    if not _is_json(process.place):
        raise errors.MessageInvalid("The place of a process is JSON.")
    return process


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _process(row: Row) -> types.Process:
    id_, conversation_id, command, folder, started_at, place, state_, ended_at, exit_code = row
    return types.Process(
        id=id_,
        conversation_id=conversation_id,
        command=command,
        folder=folder,
        started_at=started_at,
        place=place,
        state=state_,
        ended_at=ended_at,
        exit_code=exit_code,
    )
