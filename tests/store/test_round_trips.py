"""How many round trips to PostgreSQL the common operations take."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast import SessionDB, types
from tests.support import postgres, round_trips


@pytest.fixture
def db() -> Iterator[SessionDB]:
    with SessionDB(postgres.fresh()) as opened:
        yield opened


def test_compaction_commit_takes_two_round_trips(db: SessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    db.create_session("talk", source="test")
    counts = list[int]()
    for number in range(5):
        for content in ("question", "answer"):
            db.append_message("talk", role="user", content=content)
        lease = db.begin_compaction("talk")
        assert isinstance(lease, types.Lease)
        counter = round_trips.Counter(monkeypatch)
        child = db.commit_compaction(lease, summary="gist", cut_seq=lease.snapshot.last_seq, child_id=f"child-{number}")
        counts.append(counter.count)
        monkeypatch.undo()
        assert child.ordinal == number + 2
        assert db.leases() == []
    # The first commits prepare their statements.
    assert counts[-1] <= 2
