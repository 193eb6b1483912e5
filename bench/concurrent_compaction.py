"""Messages that another client appends during a compaction stay in the context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import holdfast
from bench import systems
from bench.figures import Figure, at_least
from bench.scale import Scale

MESSAGES = 3


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    path = folder / "store.db"
    with holdfast.SessionDB(path) as compactor, holdfast.SessionDB(path) as other:
        session = compactor.create_session(source="bench").id
        for number in range(20):
            other.append_message(session, role=systems.ROLES[number & 1], content=systems.text(number))
        kept = sum(_round(compactor, other, session, number) for number in range(scale.fire_rounds))
    total = scale.fire_rounds * MESSAGES
    name = f"kept of {total} messages appended during compactions"
    yield Figure("fire", name, "", kept, ("appended", total), at_least(1))


def _round(compactor: holdfast.SessionDB, other: holdfast.SessionDB, session: str, number: int) -> int:
    work = compactor.begin_compaction(session)
    snapshot = work.snapshot if isinstance(work, holdfast.types.Lease) else work
    given = compactor.context(session, upto=snapshot.last_seq)
    late = [other.append_message(session, role="user", content=systems.text(n)).uid for n in range(MESSAGES)]
    compactor.commit_compaction(
        work, summary=f"Round {number}: {len(given)} messages.", cut_seq=snapshot.last_seq, child_id=f"round-{number}"
    )
    shown = {message.uid for message in other.context(session)}
    return sum(uid in shown for uid in late)
