"""Brings a SQLite file to the schema this version declares.

The declared schema is the truth: missing tables, columns, indexes and triggers are added, changed
indexes and triggers replaced. Where data must change, numbered steps run. All of it is one transaction:
killed anywhere, the next open begins again. A file from a newer version is refused when its format is
newer, and left alone when it only has more than this version declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from holdfast import errors
from holdfast.store import points

APPLICATION_ID = 0x486F6C64  # "Hold"

Execute = Callable[..., Iterable[Sequence[Any]]]
Entries = dict[tuple[str, str], str]


class Plan(NamedTuple):
    """Which format and revision this version writes, and how data of an older format is changed."""

    format: int = 1
    revision: int = 2
    steps: Mapping[int, Sequence[str]] = {}


PLAN = Plan()


def entries(execute: Execute) -> Entries:
    """Every table, index and trigger of a database with the text that made it."""
    rows = execute(
        "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
        "AND name NOT IN (SELECT name FROM pragma_table_list WHERE type = 'shadow')"
    )
    return {(kind, name): sql for kind, name, sql in rows}


def is_current(execute: Execute, plan: Plan) -> bool:
    """Whether nothing needs doing: the cheap look every open begins with."""
    found = _value(execute, "PRAGMA user_version")
    if found > plan.format:
        raise errors.SchemaTooNew(found, plan.format)
    if found < plan.format or ("table", "meta") not in entries(execute):
        return False
    known = {row[0]: row[1] for row in execute("SELECT key, value FROM meta WHERE key LIKE 'schema_%'")}
    # A newer version's additions bear its cookie, and are none of this version's business.
    same = known.get("schema_cookie") == str(_value(execute, "PRAGMA schema_version"))
    return same and int(known.get("schema_revision", 0)) >= plan.revision


def reconcile(execute: Execute, plan: Plan, declared: Entries, now: float) -> None:
    """Run inside a write transaction."""
    found = _value(execute, "PRAGMA user_version")
    if found > plan.format:
        raise errors.SchemaTooNew(found, plan.format)
    actual = entries(execute)
    fresh = not actual
    newest = _revision(execute, actual) <= plan.revision
    if not fresh:
        _run(execute, (step for number in range(found + 1, plan.format + 1) for step in plan.steps.get(number, ())))
        actual = entries(execute)
    _run(execute, list(_differences(execute, declared, actual, replace=newest)))
    _labels(execute, plan, now)


def _differences(execute: Execute, declared: Entries, actual: Entries, *, replace: bool) -> Iterable[str]:
    for (kind, name), sql in declared.items():
        there = actual.get((kind, name))
        if there is None:
            yield sql
        elif kind == "table":
            yield from _missing_columns(execute, name, sql)
        elif there != sql and replace:
            yield f"DROP {kind} {name}"
            yield sql


def _missing_columns(execute: Execute, table: str, sql: str) -> Iterable[str]:
    for _, definition in _absent(execute, table, sql):
        yield f"ALTER TABLE {table} ADD COLUMN {definition}"


def _absent(execute: Execute, table: str, sql: str) -> list[tuple[str, str]]:
    present = {row[1] for row in execute(f"PRAGMA table_xinfo({table})")}
    return [column for column in columns(sql) if column[0] not in present]


def lacking(execute: Execute, declared: Entries) -> Iterable[str]:
    """What of the declared schema a database does not have, in words."""
    actual = entries(execute)
    for (kind, name), sql in declared.items():
        if (kind, name) not in actual:
            yield f"the {kind} {name} is missing"
        elif kind == "table":
            yield from (f"the column {column} of {name} is missing" for column, _ in _absent(execute, name, sql))


def columns(sql: str) -> list[tuple[str, str]]:
    """Name and definition of each column; our schema has one a line, before the table's own constraints."""
    if not sql.startswith("CREATE TABLE"):
        return []  # a virtual table is made anew or left alone
    lines = [line.strip().rstrip(",") for line in sql.splitlines()[1:-1]]
    return [(line.split()[0], line) for line in lines if line and line.split()[0].islower()]


def _revision(execute: Execute, actual: Entries) -> int:
    if ("table", "meta") not in actual:
        return 0
    rows = list(execute("SELECT value FROM meta WHERE key = 'schema_revision'"))
    return int(rows[0][0]) if rows else 0


def _labels(execute: Execute, plan: Plan, now: float) -> None:
    revision = max(plan.revision, _revision(execute, entries(execute)))
    _run(execute, [f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {plan.format}"])
    keep = "INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)"
    replace = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
    execute(keep, ("created_at", repr(now)))
    execute(keep, ("generation", "1"))
    execute(replace, ("schema_revision", str(revision)))
    execute(replace, ("schema_cookie", str(_value(execute, "PRAGMA schema_version"))))
    points.reach("migrate", "labels")


def _run(execute: Execute, statements: Iterable[str]) -> None:
    for statement in statements:
        execute(statement)
        points.reach("migrate", " ".join(statement.split()[:3]))


def _value(execute: Execute, pragma: str) -> int:
    return int(next(iter(execute(pragma)))[0])
