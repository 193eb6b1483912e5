"""The Holdfast side of the race: the same steps, on the store.

Every other compactor asks for the lease first, and stands back when another has it. The rest do not
bother, as a broken or old program might: the commit decides without it.
"""

from __future__ import annotations

import collections

from holdfast import errors, types
from holdfast.cli.demo_race import values
from holdfast.store import db as store


def create(path: str) -> None:
    with store.SessionDB(path) as db:
        db.create_session(values.FIRST, source="demo", title="The race")


def racer(path: str, role: values.Role, name: str, number: int) -> values.Racer:
    return Appender(path, name) if role == "appender" else Compactor(path, name, leased=number % 2 == 0)


class Appender:
    """Writes to the session it saw when the round began; the store knows where that leads by now."""

    def __init__(self, path: str, name: str) -> None:
        self._db = store.SessionDB(path)
        self._name = name
        self._session = values.FIRST
        self._written = 0

    def take(self, order: values.Order) -> values.Answer:
        if order.step == "talk":
            self._session = self._db.head(values.FIRST).id
        receipts = [self._write() for _ in range(order.messages)]
        followed = sum(receipt.moved_from is not None for receipt in receipts)
        return values.Answer(tuple(receipt.uid for receipt in receipts), followed)

    def _write(self) -> types.Receipt:
        self._written += 1
        text = values.label(self._name, self._written)
        return self._db.append_message(self._session, role="user", content=text, uid=text)

    def close(self) -> None:
        self._db.close()


class Compactor:
    """Reads, summarizes, and commits what it saw; only one of them can."""

    def __init__(self, path: str, name: str, *, leased: bool) -> None:
        self._db = store.SessionDB(path)
        self._name = name
        self._leased = leased
        self._work: types.Lease | types.Snapshot | None = None
        self._context: types.Context | None = None

    def take(self, order: values.Order) -> values.Answer:
        if order.step == "read":
            return self._begin()
        if order.step == "commit" and self._work is not None and self._context is not None:
            return values.Answer(outcome=self._commit(self._work, self._context, f"r{order.round}.{self._name}"))
        return values.Answer()

    def _begin(self) -> values.Answer:
        self._work = self._context = None
        try:
            take = self._db.begin_compaction if self._leased else self._db.snapshot
            self._work = take(values.FIRST)
        except errors.Busy:
            return values.Answer(outcome="busy")
        snapshot = self._work.snapshot if isinstance(self._work, types.Lease) else self._work
        self._context = self._db.context(values.FIRST, upto=snapshot.last_seq)
        return values.Answer()

    def _commit(self, work: types.Lease | types.Snapshot, context: types.Context, child: str) -> str:
        cut = max(context.cut_seq, context.last_seq - values.KEPT)
        text = values.summary(str(message.content) for message in context if message.seq <= cut)
        try:
            self._db.commit_compaction(work, summary=text, cut_seq=cut, child_id=child)
        except (errors.Superseded, errors.LeaseLost):
            if isinstance(work, types.Lease):
                self._db.release_lease(work)
            return "refused"
        return "committed"

    def close(self) -> None:
        self._db.close()


def measured(path: str, acknowledged: tuple[str, ...], answers: list[values.Answer]) -> values.Result:
    """What the database has, read back after every process has gone."""
    with store.SessionDB(path) as db:
        report = db.admin.fsck()
        transcript = db.transcript(values.FIRST)
        places = [
            values.Place(
                session.id,
                session.parent_session_id,
                session.live,
                frozenset(message.uid for message in transcript if message.session_id == session.id),
            )
            # Every session there is, not only this conversation's: a stray one must show.
            for session in reversed(db.list_sessions(every=True, limit=100_000))
        ]
        known = values.words(str(message.content) for message in db.context(values.FIRST))
    violations = [f"{violation.promise}: {violation.detail}" for violation in report.violations]
    logged = [message.uid for message in transcript]
    if len(logged) != len(set(logged)):
        violations.append("P1: a message is in the log twice")
    return values.Result(
        acknowledged,
        frozenset(logged),
        known,
        places,
        dict(collections.Counter(answer.outcome for answer in answers if answer.outcome)),
        sum(answer.followed for answer in answers),
        tuple(violations),
    )
