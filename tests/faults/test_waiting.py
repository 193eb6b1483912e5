"""Two who write at once, each of them right by what it saw: PostgreSQL lets the first through and refuses the second.

The second comes while the first is not committed, and waits for it. What it then writes is compared with what the first
left behind, and not with what there was when it came.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import psycopg
import pytest

from holdfast import types
from holdfast.store.db import SessionDB
from tests.faults import dialects, forbidden
from tests.support import postgres

Connection = psycopg.Connection[tuple[Any, ...]]

ENDED = f"{forbidden._end(1, 1, 120)}; {forbidden._moved('live = NULL', 1)}"
MEMORIES = "INSERT INTO memories (owner, text, at, updated_at) SELECT 'o', 'fact ' || i, 1.0, 1.0 FROM generate_series"
PINS = "INSERT INTO pins SELECT 1, i, 1.0 FROM generate_series"
RAISED = "UPDATE conversations SET fence = fence + 1 WHERE key = 1"
MOVED = "UPDATE conversations SET epoch = epoch + 1 WHERE key = 1"
DELETED = """
    INSERT INTO tombstones VALUES ('d', 1.0);
    DELETE FROM conversations WHERE id = 'd';
    DELETE FROM messages WHERE conversation = 2;
    DELETE FROM sessions WHERE conversation = 2
"""


class Race(NamedTuple):
    """What each of two writes, what was there before, and the words of the refusal."""

    name: str
    first: str
    second: str
    words: str
    before: str = ""


MADE = forbidden._compaction(1, 2, 2, "NULL", 4, 6, "NULL")


def _compacted(id: str) -> str:
    return "; ".join(
        (
            forbidden._end(1, 1, 120),
            forbidden._session(1, 2, "1", 121, id),
            MADE,
            "UPDATE conversations SET epoch = 2, head = 2, compaction_epoch = 2 WHERE key = 1",
        )
    )


RACES = [
    Race("a message behind the end", ENDED, forbidden._message(1, 121, 1), "must belong to a live session"),
    Race("an end before the last message", forbidden._message(1, 121, 1), ENDED, "must end at the last message"),
    Race("one number for two", forbidden._message(1, 121, 1), forbidden._message(1, 121, 1, "v"), "messages_pkey"),
    # The end of a session would wait as well, so the compaction comes first.
    Race(
        "two compactions of one context", _compacted("x"), f"{MADE}; {_compacted('y')}", "must follow the current one"
    ),
    Race(
        "a lease with an old token", RAISED, f"{forbidden.LEASE} (1, 'turn', 1, 'x', 1.0, 'u', 120)", "newest", RAISED
    ),
    Race(
        "a lease that changes hands with an old token",
        RAISED,
        "UPDATE leases SET token = 2, holder = 'y' WHERE conversation = 1",
        "changes its holder only with the newest token",
        f"{RAISED}; {forbidden.LEASE} (1, 'turn', 1, 'x', 1.0, 'u', 120); {RAISED}",
    ),
    Race("a hide of an epoch gone by", MOVED, f"{forbidden.HIDE} (1, 1, 5, 5, NULL)", "must lie within the log"),
    Race(
        "a hide shown at an epoch gone by",
        MOVED,
        "UPDATE hides SET shown_epoch = 3 WHERE conversation = 1",
        "being shown again once",
        f"{MOVED}; {forbidden.HIDE} (1, 2, 5, 5, NULL); {MOVED}",
    ),
    Race(
        "a deleted id in use",
        DELETED,
        forbidden._conversation("other").replace("'other', NULL", "'d', NULL"),
        "cannot be reused",
    ),
    Race("the 501st memory", f"{MEMORIES}(500, 500) i", f"{MEMORIES}(501, 501) i", "500 m", f"{MEMORIES}(1, 499) i"),
    Race("the 101st pin", f"{PINS}(100, 100) i", f"{PINS}(101, 101) i", "100 pins", f"{PINS}(1, 99) i"),
]


@pytest.fixture
def address() -> Iterator[str]:
    address = postgres.fresh()
    with SessionDB(address, durability="process-crash") as db:
        db.create_session("c", source="test")
        db.append_messages("c", [types.NewMessage(role="user", content="x") for _ in range(120)])
        db.append_message("d", role="user", content="x", create=types.NewConversation(source="test"))
        yield address
        assert {bad.promise for bad in db.admin.fsck().violations} <= {
            "P1"
        }  # messages written by hand have no true digest


@pytest.mark.parametrize("race", RACES, ids=lambda race: race.name)
def test_second_of_two_is_compared_with_what_the_first_left(race: Race, address: str) -> None:
    with psycopg.connect(address) as first, psycopg.connect(address) as second, ThreadPoolExecutor(1) as pool:
        first.execute(race.before)
        first.commit()
        first.execute(dialects.in_postgres(race.first))
        waiting = pool.submit(_committed, second, dialects.in_postgres(race.second))
        _await_wait(second.info.backend_pid, waiting)
        first.commit()
        with pytest.raises(psycopg.errors.IntegrityError, match=race.words):
            waiting.result()


def _committed(connection: Connection, sql: str) -> None:
    connection.execute(sql)
    connection.commit()


def _await_wait(pid: int, waiting: Future[None]) -> None:
    blocked = "SELECT 1 WHERE cardinality(pg_blocking_pids(%s)) > 0"
    while not postgres.admin().execute(blocked, (pid,)).fetchone():
        assert not waiting.done(), "the second did not wait for the first"
