"""The tables that a copy writes besides conversations: how their rows are read and inserted.

Rows name conversations by id, because internal keys differ between stores. Triggers let a row begin only in its first
state, so a row that has moved on is inserted in that state and then updated, one step at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.store.driver import Row, Tx

PAGE_ROWS = 1_000

Values = dict[str, Any]


class Statement(NamedTuple):
    """One statement for a row. `only_if` decides by the row's values; `parameters` renames columns to parameters."""

    query: str
    only_if: Callable[[Values], object] = lambda _: True
    parameters: Mapping[str, str] = {}

    def run(self, tx: Tx, values: Values) -> None:
        if self.only_if(values):
            tx.defer(self.query, **values, **{name: values[column] for name, column in self.parameters.items()})


class Table(NamedTuple):
    """One table. `query` reads a page of it, with the columns in this order."""

    query: str
    columns: tuple[str, ...]
    statements: tuple[Statement, ...]
    # Values that sort before every key. The number of them is the number of key columns.
    before_first: tuple[str | int, ...] = (0,)
    # A column that finishing the copy advances.
    counter: int | None = None
    # The column to insert by, where the key does not give the order in which rows were added.
    order: int | None = None

    @property
    def name(self) -> str:
        return self.query.removeprefix("copy_")

    def rows(self, tx: Tx) -> Iterator[Row]:
        """Read every row in the order of the key."""
        after: Row = self.before_first
        while page := tx.all(self.query, limit=PAGE_ROWS, **dict(zip(("after", "beyond"), after, strict=False))):
            yield from page
            after = page[-1][: len(self.before_first)]

    def insert(self, tx: Tx, rows: Iterator[Row], keys: Mapping[str, int]) -> int:
        """Insert rows into an empty table. `keys` maps conversation ids to the target's keys."""
        count, order = 0, self.order
        if order is not None:
            rows = iter(sorted(rows, key=lambda row: float(row[order])))
        while page := [self._values(row, keys) for row in itertools.islice(rows, PAGE_ROWS)]:
            # Statement by statement rather than row by row: the driver sends equal statements together.
            for statement, values in itertools.product(self.statements, page):
                statement.run(tx, values)
            count += len(page)
        return count

    def _values(self, row: Row, keys: Mapping[str, int]) -> Values:
        values = dict(zip(self.columns, row, strict=True))
        for column in ("conversation", "source_conversation"):
            if values.get(column) is not None:
                values[column] = keys[values[column]]
        return values

    def differs(self, source: Tx, target: Tx, *, finished: bool) -> bool:
        pairs = itertools.zip_longest(self.rows(source), self.rows(target), fillvalue=())
        return any(self.comparable(a, finished=finished) != self.comparable(b, finished=finished) for a, b in pairs)

    def comparable(self, row: Row, *, finished: bool) -> Row:
        """Return the part of a row that is equal in both stores. Finishing a copy advances its counter."""
        return row if self.counter is None or not finished else row[: self.counter] + row[self.counter + 1 :]


def _if(column: str) -> Callable[[Values], bool]:
    return lambda values: values[column] is not None


def _columns(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# A table comes after the tables that its triggers look at: a process needs the notice of its end in the inbox.
TABLES = (
    Table("copy_tombstones", _columns("id at"), (Statement("tombstone_keep"),), ("",)),
    Table("copy_routes", _columns("key conversation version at"), (Statement("import_route"),), ("",), counter=2),
    Table(
        "copy_budgets",
        _columns("conversation version uid body"),
        (Statement("copy_budget"), Statement("copy_budget_version", lambda values: values["version"] > 1)),
        ("",),
        counter=1,
    ),
    Table("copy_memories", _columns("id owner text at updated_at source_conversation"), (Statement("copy_memory"),)),
    Table(
        "copy_inbox",
        _columns("id conversation key kind text at outcome seq settled_at settled_by redacted_at"),
        (
            Statement("copy_inbound"),
            Statement("copy_inbound_settled", _if("outcome")),
            Statement("copy_inbound_redacted", _if("redacted_at")),
        ),
    ),
    Table(
        "copy_processes",
        _columns("id conversation command folder place started_at state ended_at ended_by exit_code"),
        (
            Statement("process_insert"),
            Statement("process_end", _if("ended_at"), {"at": "ended_at", "uid": "ended_by"}),
        ),
        ("",),
        order=5,
    ),
    Table("copy_grants", _columns("id owner rule conversation at given_by"), (Statement("copy_grant"),)),
    Table(
        "copy_audit",
        _columns("id conversation uid call_id tool summary allowed decided_by begun_at ended_at ok redacted_at"),
        (
            Statement("copy_act"),
            Statement("audit_finish", _if("ended_at"), {"at": "ended_at"}),
            Statement("copy_act_redacted", _if("redacted_at")),
        ),
    ),
    Table("copy_pins", _columns("conversation seq at"), (Statement("pin_insert"),), ("", 0)),
    Table(
        "copy_arrivals",
        _columns(
            "id platform key route home chat sender address body at attempts target joined outcome conversation seq "
            "settled_at settled_by redacted_at"
        ),
        (
            Statement("copy_arrival"),
            Statement("copy_arrival_joined", lambda values: values["joined"] is not None and values["outcome"] is None),
            Statement("copy_arrival_begun", lambda values: values["attempts"] or values["target"]),
            Statement("copy_arrival_settled", _if("outcome")),
            Statement("copy_arrival_redacted", _if("redacted_at")),
        ),
    ),
    Table(
        "copy_outbox",
        _columns(
            "id arrival inbound part key conversation seq platform chat address kind body at attempts due_at "
            "delivered_at external failed_at error redacted_at"
        ),
        (
            Statement("copy_outgoing"),
            Statement("copy_outgoing_tried"),
            Statement("copy_outgoing_redacted", _if("redacted_at")),
        ),
    ),
    Table("copy_people", _columns("platform sender role name at by"), (Statement("person_put"),), ("", "")),
    Table(
        "copy_strangers",
        _columns("platform sender name told_at asked_at digest salt expires_at"),
        (Statement("copy_stranger"),),
        ("", ""),
    ),
    Table(
        "copy_lockouts", _columns("platform failures at"), (Statement("lockout_met"), Statement("lockout_set")), ("",)
    ),
    Table("copy_blobs", _columns("digest size media_type at dropped_at"), (Statement("copy_blob"),), ("",)),
)


def copy_sequences(source: Tx, target: Tx) -> None:
    """Continue numbering after the highest id the source ever assigned, even to a row it has deleted since."""
    for name, number in source.all("copy_numbers"):
        target.run("copy_number_first", name=name, number=number)
        target.run("copy_number", name=name, number=number)
