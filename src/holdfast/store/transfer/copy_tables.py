"""The tables that a copy writes besides conversations: how their rows are read and inserted.

Rows name conversations by id, because internal keys differ between stores. Triggers let a row begin only in its first
state, so a row in a later state is inserted in the first one and then updated, one statement at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.store.driver import Row, Tx

PAGE_ROWS = 1_000

Condition = Callable[[dict[str, Any]], object]


class CopyTable:
    """One table. `query` reads a page of it with these columns.

    `writes` are the queries that write a row, with parameters named like the columns; a condition selects the rows that
    need the query. `before_first` are values that sort before every key, one for each key column. `counter` is the
    index of a column that finishing the copy advances, `order` the index of the column to insert by, where the key does
    not give the order in which rows were added.
    """

    def __init__(
        self,
        query: str,
        columns: str,
        *writes: str | tuple[str, Condition],
        before_first: tuple[str | int, ...] = (0,),
        counter: int | None = None,
        order: int | None = None,
    ) -> None:
        self.name = query.removeprefix("copy_")
        self._query = query
        self._columns = columns.split()
        self._writes = [(each, lambda _: True) if isinstance(each, str) else each for each in writes]
        self._before_first = before_first
        self._counter = counter
        self._order = order

    def rows(self, tx: Tx) -> Iterator[Row]:
        """Read every row in the order of the key."""
        after: Row = self._before_first
        while page := tx.all(self._query, limit=PAGE_ROWS, **dict(zip(("after", "beyond"), after, strict=False))):
            yield from page
            after = page[-1][: len(self._before_first)]

    def insert(self, tx: Tx, rows: Iterator[Row], keys: Mapping[str, int]) -> int:
        """Insert rows into an empty table; return how many. `keys` maps conversation ids to the target's keys."""
        count, order = 0, self._order
        if order is not None:
            rows = iter(sorted(rows, key=lambda row: float(row[order])))
        while page := [self._parameters(row, keys) for row in itertools.islice(rows, PAGE_ROWS)]:
            # Statement by statement rather than row by row: the driver sends equal statements together.
            for query, is_needed in self._writes:
                for values in filter(is_needed, page):
                    tx.defer(query, **values)
            count += len(page)
        return count

    def _parameters(self, row: Row, keys: Mapping[str, int]) -> dict[str, Any]:
        values = dict(zip(self._columns, row, strict=True))
        for column in ("conversation", "source_conversation"):
            if values.get(column) is not None:
                values[column] = keys[values[column]]
        return values

    def differs(self, source: Tx, target: Tx, *, finished: bool) -> bool:
        pairs = itertools.zip_longest(self.rows(source), self.rows(target), fillvalue=())
        return any(self.comparable(a, finished=finished) != self.comparable(b, finished=finished) for a, b in pairs)

    def comparable(self, row: Row, *, finished: bool) -> Row:
        """Return a row without the counter that finishing a copy advances."""
        return row if self._counter is None or not finished else row[: self._counter] + row[self._counter + 1 :]


def _has_value(column: str) -> Condition:
    return lambda row: row[column] is not None


# A table comes after the tables that its triggers look at: a process needs the notice of its end in the inbox.
COPY_TABLES = (
    CopyTable("copy_tombstones", "id at", "tombstone_keep", before_first=("",)),
    CopyTable("copy_routes", "key conversation version at", "import_route", before_first=("",), counter=2),
    CopyTable(
        "copy_budgets",
        "conversation version uid body",
        "copy_budget",
        ("copy_budget_version", lambda row: row["version"] > 1),
        before_first=("",),
        counter=1,
    ),
    CopyTable("copy_memories", "id owner text at updated_at source_conversation", "copy_memory"),
    CopyTable(
        "copy_inbox",
        "id conversation key kind text at outcome seq settled_at settled_by redacted_at",
        "copy_inbox_entry",
        ("copy_inbox_entry_settled", _has_value("outcome")),
        ("copy_inbox_entry_redacted", _has_value("redacted_at")),
    ),
    CopyTable(
        "copy_processes",
        "id conversation command folder place started_at state at uid exit_code",
        "process_insert",
        ("process_end", _has_value("at")),
        before_first=("",),
        order=5,
    ),
    CopyTable("copy_grants", "id owner rule conversation at given_by", "copy_grant"),
    CopyTable(
        "copy_audit",
        "id conversation uid call_id tool summary allowed decided_by begun_at at ok redacted_at",
        "copy_act",
        ("audit_end", _has_value("at")),
        ("copy_act_redacted", _has_value("redacted_at")),
    ),
    CopyTable("copy_pins", "conversation seq at", "pin_insert", before_first=("", 0)),
    CopyTable(
        "copy_arrivals",
        "id platform key route home chat sender address body at attempts target joined outcome conversation seq "
        "settled_at settled_by redacted_at",
        "copy_arrival",
        ("copy_arrival_joined", lambda row: row["joined"] is not None and row["outcome"] is None),
        ("copy_arrival_begun", lambda row: row["attempts"] or row["target"]),
        ("copy_arrival_settled", _has_value("outcome")),
        ("copy_arrival_redacted", _has_value("redacted_at")),
    ),
    CopyTable(
        "copy_outbox",
        "id arrival inbound part key conversation seq platform chat address kind body at attempts due_at delivered_at "
        "external failed_at error redacted_at",
        "copy_outgoing",
        "copy_outgoing_tried",
        ("copy_outgoing_redacted", _has_value("redacted_at")),
    ),
    CopyTable("copy_people", "platform sender role name at by", "contact_put", before_first=("", "")),
    CopyTable(
        "copy_strangers",
        "platform sender name told_at asked_at digest salt expires_at",
        "copy_stranger",
        before_first=("", ""),
    ),
    CopyTable("copy_lockouts", "platform failures at", "lockout_insert", "lockout_set", before_first=("",)),
    CopyTable("copy_links", "platform sender owner at", "link_put", before_first=("", "")),
    CopyTable("copy_blobs", "digest size media_type at dropped_at", "copy_blob", before_first=("",)),
)
