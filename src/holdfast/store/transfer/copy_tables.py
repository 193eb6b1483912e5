"""What a store has besides conversations, table by table: how it is read, compared and written into another store.

Both stores are read in the order of a table's key and walked side by side. What is missing is put, what differs is
brought up to date by the steps its triggers allow, and what the source gave up goes. Rows name conversations by
their ids, since inner keys differ; a row whose conversation is not there yet waits for the next round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from holdfast.store import driver as driver_module
from holdfast.store.blobs import files as blob_files
from holdfast.store.records import processes

PAGE = 1_000
# Stands in for a text that is taken out at once: what comes in has one.
_TAKEN_OUT = "-"

Row = driver_module.Row
Put = Callable[[driver_module.Tx, Row, Row | None], None]


class Table(NamedTuple):
    """How rows of one table go over. `key` is how many columns name a row, `first` and `second` come before
    any of them; `counter` is a column that leaps."""

    query: str
    put: Put
    first: str | int = 0
    second: str | int = 0
    key: int = 1
    gone: Callable[[driver_module.Tx, Row], None] | None = None
    counter: int | None = None
    # Rows that differ are taken out and put again: what is unique among them may have changed places.
    anew: bool = False
    # A column that tells in which order they came about, where that is told by no number of theirs.
    order: int | None = None

    @property
    def name(self) -> str:
        return self.query.removeprefix("copy_")


class Change(NamedTuple):
    """A row that is not the same on both sides."""

    ours: Row | None
    theirs: Row | None


def rows(driver: driver_module.Readable, table: Table) -> Iterator[Row]:
    """Every row of a table by pages; a page is one snapshot."""
    after: Row = (table.first, table.second)
    while page := driver.read(partial(_page, table=table, after=after)):
        yield from page
        after = page[-1]


def _page(tx: driver_module.Tx, table: Table, after: Row) -> list[Row]:
    if table.key == 1:
        return tx.all(table.query, after=after[0], limit=PAGE)
    return tx.all(table.query, after=after[0], beyond=after[1], limit=PAGE)


def changes(
    source: driver_module.Readable, target: driver_module.Readable, table: Table, *, leapt: bool = False
) -> Iterator[Change]:
    """Where the two differ; after a leap, not counting what it changed."""
    ours, theirs = rows(source, table), rows(target, table)
    mine, there = next(ours, None), next(theirs, None)
    while mine is not None or there is not None:
        if there is None or (mine is not None and mine[: table.key] < there[: table.key]):
            yield Change(mine, None)
            mine = next(ours, None)
        elif mine is None or there[: table.key] < mine[: table.key]:
            yield Change(None, there)
            there = next(theirs, None)
        else:
            if _compared(table, mine, leapt) != _compared(table, there, leapt):
                yield Change(mine, there)
            mine, there = next(ours, None), next(theirs, None)


def _compared(table: Table, row: Row, leapt: bool) -> Row:
    return row if table.counter is None or not leapt else row[: table.counter] + row[table.counter + 1 :]


def bring(source: driver_module.Readable, target: driver_module.Driver, table: Table) -> int:
    """Make the target's table what the source's is; how many rows that took."""
    found = changes(source, target, table)
    if table.anew or table.order is not None:  # few rows, and all of them at once
        everything = sorted(found, key=lambda change: _place(table, change))
        return target.write("copy", lambda tx: _written(tx, table, everything)) if everything else 0
    count = 0
    while batch := list(itertools.islice(found, PAGE)):
        count += target.write("copy", partial(_written, table=table, batch=batch))
    return count


def _place(table: Table, change: Change) -> float:
    return 0.0 if table.order is None or change.ours is None else float(change.ours[table.order])


def _written(tx: driver_module.Tx, table: Table, batch: list[Change]) -> int:
    if table.gone is not None:
        for ours, theirs in batch:
            if theirs is not None and (ours is None or table.anew):
                table.gone(tx, theirs)
    for ours, theirs in batch:
        if ours is not None:
            table.put(tx, ours, None if table.anew else theirs)
    return len(batch)


def numbers(source: driver_module.Readable, target: driver_module.Driver) -> None:
    """No number that was given out there, and perhaps forgotten since, is given out here."""
    given = source.read(lambda tx: tx.all("copy_numbers"))

    def step(tx: driver_module.Tx) -> None:
        for name, number in given:
            tx.run("copy_number_first", name=name, number=number)
            tx.run("copy_number", name=name, number=number)

    if given and given != target.read(lambda tx: tx.all("copy_numbers")):
        target.write("copy", step)


# --- one row -------------------------------------------------------------------------------------------


def _key(tx: driver_module.Tx, conversation_id: str) -> int | None:
    found = tx.one("conversation_key", id=conversation_id)
    return found[0] if found else None


def _tombstone(tx: driver_module.Tx, row: Row, _: Row | None) -> None:
    tx.run("tombstone_keep", id=row[0], at=row[1])


def _route(tx: driver_module.Tx, row: Row, there: Row | None) -> None:
    key, conversation_id, version, at = row
    conversation = None if conversation_id is None else _key(tx, conversation_id)
    if conversation is None and conversation_id is not None:
        return
    if there is None:
        tx.run("import_route", key=key, conversation=conversation, version=version, at=at)
    elif there[2] < version:
        tx.run("copy_route", key=key, conversation=conversation, version=version, at=at)


def _budget(tx: driver_module.Tx, row: Row, there: Row | None) -> None:
    conversation_id, version, uid, body = row
    conversation = _key(tx, conversation_id)
    if conversation is None:
        return
    if there is None:
        tx.run("budget_open", conversation=conversation, version=0, uid=uid, body=body)
    if version > (there[1] if there else 1):
        tx.run("copy_budget", conversation=conversation, version=version, uid=uid, body=body)


def _memory(tx: driver_module.Tx, row: Row, _: Row | None) -> None:
    id_, owner, text, at, updated_at, source_id = row
    source = None if source_id is None else _key(tx, source_id)
    if source is not None or source_id is None:
        tx.run("copy_memory", id=id_, owner=owner, text=text, at=at, updated_at=updated_at, source=source)


def _inbound(tx: driver_module.Tx, row: Row, there: Row | None) -> None:
    id_, conversation_id, key, kind, text, at, outcome, seq, settled_at, settled_by, redacted_at = row
    conversation = _key(tx, conversation_id)
    if conversation is None:
        return
    if there is None:
        tx.run("copy_inbound", id=id_, conversation=conversation, key=key, kind=kind, text=text or _TAKEN_OUT, at=at)
    if outcome is not None and (there is None or there[6] is None):
        settled = {"outcome": outcome, "seq": seq, "settled_at": settled_at, "settled_by": settled_by}
        tx.run("copy_inbound_settled", id=id_, **settled)
    if redacted_at is not None and (there is None or there[10] is None):
        tx.run("copy_inbound_redacted", id=id_, at=redacted_at)


def _process(tx: driver_module.Tx, row: Row, there: Row | None) -> None:
    id_, conversation_id, command, folder, place, started_at, state, ended_at, ended_by, exit_code = row
    conversation = _key(tx, conversation_id)
    told = state == "running" or tx.one("inbound_by_key", key=processes.notice_key(id_)) is not None
    if conversation is None or not told:
        return
    if there is None:
        values = {"command": command, "folder": folder, "place": place, "started_at": started_at}
        tx.run("process_insert", id=id_, conversation=conversation, **values)
    elif there[2] and not command:
        tx.run("process_redact", id=id_)
    if state != "running" and (there is None or there[6] == "running"):
        tx.run("process_end", id=id_, state=state, at=ended_at, uid=ended_by, exit_code=exit_code)


def _grant(tx: driver_module.Tx, row: Row, _: Row | None) -> None:
    id_, owner, rule, conversation_id, at, given_by = row
    conversation = None if conversation_id is None else _key(tx, conversation_id)
    if conversation is not None or conversation_id is None:
        tx.run("copy_grant", id=id_, owner=owner, rule=rule, conversation=conversation, at=at, given_by=given_by)


def _act(tx: driver_module.Tx, row: Row, there: Row | None) -> None:
    id_, conversation_id, uid, call_id, tool, summary, allowed, decided_by, at, ended_at, ok, redacted_at = row
    conversation = _key(tx, conversation_id)
    if conversation is None:
        return
    if there is None:
        values = {"uid": uid, "call_id": call_id, "tool": tool, "summary": summary, "allowed": allowed}
        tx.run("copy_act", id=id_, conversation=conversation, decided_by=decided_by, at=at, **values)
    if ended_at is not None and (there is None or there[9] is None):
        tx.run("audit_finish", id=id_, at=ended_at, ok=ok)
    if redacted_at is not None and (there is None or there[11] is None):
        tx.run("copy_act_redacted", id=id_, at=redacted_at)


def _pin(tx: driver_module.Tx, row: Row, _: Row | None) -> None:
    conversation = _key(tx, row[0])
    if conversation is not None:
        tx.run("pin_insert", conversation=conversation, seq=row[1], at=row[2])


def _unpin(tx: driver_module.Tx, row: Row) -> None:
    tx.run("pin_delete", conversation=_key(tx, row[0]), seq=row[1])


def _arrival(tx: driver_module.Tx, row: Row, there: Row | None) -> None:
    id_, *said, at, attempts, target, joined, outcome, conversation_id, seq, settled_at, settled_by, redacted_at = row
    platform, key, route, home, chat, sender, address, body = said
    conversation = None if conversation_id is None else _key(tx, conversation_id)
    if (conversation is None) != (conversation_id is None):
        return
    if there is None:
        place = {"platform": platform, "key": key, "route": route, "home": home, "chat": chat, "sender": sender}
        tx.run("copy_arrival", id=id_, **place, address=address or _TAKEN_OUT, body=body or _TAKEN_OUT, at=at)
    unsettled = there is None or there[13] is None
    if joined is not None and outcome is None and (there is None or there[12] is None):
        tx.run("copy_arrival_joined", id=id_, joined=joined)
    if (attempts or target) and unsettled:
        tx.run("copy_arrival_begun", id=id_, attempts=attempts, target=target)
    if outcome is not None and unsettled:
        settled = {"outcome": outcome, "seq": seq, "settled_at": settled_at, "settled_by": settled_by}
        tx.run("copy_arrival_settled", id=id_, joined=joined, conversation=conversation, **settled)
    if redacted_at is not None and (there is None or there[18] is None):
        tx.run("copy_arrival_redacted", id=id_, at=redacted_at, address=address)


def _outgoing(tx: driver_module.Tx, row: Row, there: Row | None) -> None:
    id_, arrival, inbound, part, key, conversation_id, seq, *said, redacted_at = row
    platform, chat, address, kind, body, at, attempts, due_at, delivered_at, external, failed_at, error = said
    conversation = None if conversation_id is None else _key(tx, conversation_id)
    if (conversation is None) != (conversation_id is None):
        return
    if there is None:
        of = {"arrival": arrival, "inbound": inbound, "part": part, "key": key, "seq": seq, "kind": kind, "at": at}
        where = {"platform": platform, "chat": chat, "address": address, "conversation": conversation}
        tx.run("copy_outgoing", id=id_, body=body or _TAKEN_OUT, **of, **where)
    if there is None or (there[15] is None and there[17] is None):
        ended = {"delivered_at": delivered_at, "external": external, "failed_at": failed_at, "error": error}
        tx.run("copy_outgoing_tried", id=id_, attempts=attempts, due_at=due_at, **ended)
    if redacted_at is not None and (there is None or there[19] is None):
        tx.run("copy_outgoing_redacted", id=id_, at=redacted_at)


def _person(tx: driver_module.Tx, row: Row, _: Row | None) -> None:
    platform, sender, role, name, at, by = row
    tx.run("person_put", platform=platform, sender=sender, role=role, name=name, at=at, by=by)


def _stranger(tx: driver_module.Tx, row: Row, _: Row | None) -> None:
    platform, sender, name, told_at, asked_at, digest, salt, expires_at = row
    code = {"digest": digest, "salt": salt, "expires_at": expires_at}
    who = {"platform": platform, "sender": sender, "name": name}
    tx.run("copy_stranger", told_at=told_at, asked_at=asked_at, **who, **code)


def _lockout(tx: driver_module.Tx, row: Row, _: Row | None) -> None:
    tx.run("lockout_met", platform=row[0])
    tx.run("lockout_set", platform=row[0], failures=row[1], at=row[2])


def _gone(query: str) -> Callable[[driver_module.Tx, Row], None]:
    """A row that has a number, and that the source forgot."""
    return lambda tx, row: _run(tx, query, id=row[0])


def _person_gone(tx: driver_module.Tx, row: Row) -> None:
    tx.run("person_forget", platform=row[0], sender=row[1])


def _stranger_gone(tx: driver_module.Tx, row: Row) -> None:
    tx.run("stranger_forget", platform=row[0], sender=row[1])


def _blob(tx: driver_module.Tx, row: Row, _: Row | None) -> None:
    digest, size, media_type, at, dropped_at = row
    tx.run("copy_blob", digest=digest, size=size, media_type=media_type, at=at, dropped_at=dropped_at)


# What comes before is there when what names it comes: a notice before the process it tells of.
TABLES = (
    Table("copy_tombstones", _tombstone, first=""),
    Table("copy_routes", _route, first="", counter=2),
    Table("copy_budgets", _budget, first="", counter=1),
    Table("copy_memories", _memory, gone=lambda tx, row: _run(tx, "copy_memory_gone", id=row[0]), anew=True),
    Table("copy_inbox", _inbound),
    Table("copy_processes", _process, first="", order=5),
    Table("copy_grants", _grant, gone=lambda tx, row: _run(tx, "grant_revoke", id=row[0]), anew=True),
    Table("copy_audit", _act),
    Table("copy_pins", _pin, first="", key=2, gone=_unpin, anew=True),
    Table("copy_arrivals", _arrival, gone=_gone("copy_arrival_gone")),
    Table("copy_outbox", _outgoing, gone=_gone("copy_outgoing_gone")),
    Table("copy_people", _person, first="", second="", key=2, gone=_person_gone, anew=True),
    Table("copy_strangers", _stranger, first="", second="", key=2, gone=_stranger_gone, anew=True),
    Table("copy_lockouts", _lockout, first=""),
)


def _run(tx: driver_module.Tx, query: str, **values: object) -> None:
    tx.run(query, **values)


def blobs(kept: blob_files.Shelf | None) -> Table:
    """Attachments: what is known of them, and what is kept here of those the source gave up."""

    def gone(tx: driver_module.Tx, row: Row) -> None:
        tx.run("blob_delete", digest=row[0])
        if kept is not None:
            kept.remove(row[0], tx)

    return Table("copy_blobs", _blob, first="", gone=gone)
