"""Migration of a SQLite file to the schema that this version declares.

Missing tables, columns, indexes and triggers are added; changed indexes and triggers are replaced. Numbered steps
convert data of an older format. All changes are one transaction, so a killed migration starts again at the next open. A
file of a newer format is refused; a newer revision of the same format is only added to.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import cache

import apsw

from holdfast import errors, fault_points
from holdfast.store import queries
from holdfast.store.driver import MISSING, Execute, SchemaFault, SchemaPlan

logger = logging.getLogger("holdfast.store")

APPLICATION_ID = 0x486F6C64  # "Hold"

Entries = dict[tuple[str, str], str]


@cache
def declared_schema(folder: str) -> Entries:
    """Return the declared schema in the form that SQLite stores."""
    scratch = apsw.Connection(":memory:")
    scratch.execute(queries.schema(folder))
    return read_schema(scratch.execute)


def read_schema(execute: Execute) -> Entries:
    """Return the SQL text of every table, index and trigger of a database."""
    rows = execute(
        "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' "
        "AND name NOT IN (SELECT name FROM pragma_table_list WHERE type = 'shadow')"
    )
    # A damaged page may contain a BLOB instead of text.
    return {(kind, name): sql if isinstance(sql, str) else repr(sql) for kind, name, sql in rows}


def is_current(execute: Execute, plan: SchemaPlan) -> bool:
    """Return whether the schema needs no change, by comparing revision and schema cookie only."""
    found = _read_pragma(execute, "PRAGMA user_version")
    if found > plan.format:
        raise errors.SchemaTooNew(found, plan.format)
    if found < plan.format or ("table", "meta") not in read_schema(execute):
        return False
    known = {row[0]: row[1] for row in execute("SELECT key, value FROM meta WHERE key LIKE 'schema_%'")}
    # A newer version records its own cookie; its additions stay.
    same = known.get("schema_cookie") == str(_read_pragma(execute, "PRAGMA schema_version"))
    return same and int(known.get("schema_revision", 0)) >= plan.revision


def reconcile(execute: Execute, plan: SchemaPlan, declared: Entries, now: float) -> None:
    """Bring the database to the declared schema, inside a write transaction."""
    found = _read_pragma(execute, "PRAGMA user_version")
    if found > plan.format:
        raise errors.SchemaTooNew(found, plan.format)
    actual = read_schema(execute)
    revision = _read_revision(execute, actual)
    if actual:
        _run(execute, (step for number in range(found + 1, plan.format + 1) for step in plan.steps.get(number, ())))
        actual = read_schema(execute)
    if revision == plan.revision:
        # The same version made this schema, so another program changed it.
        for fault in faults(execute, plan, declared):
            if fault.repairable:
                logger.warning("Schema repair: recreating the %s %s, which %s.", fault.kind, fault.name, fault.what)
    _run(execute, list(_differences(execute, declared, actual, replace=revision <= plan.revision)))
    _record(execute, plan.format, max(plan.revision, revision), now)


def _differences(execute: Execute, declared: Entries, actual: Entries, *, replace: bool) -> Iterable[str]:
    for (kind, name), sql in declared.items():
        found = actual.get((kind, name))
        if found is None:
            yield sql
        elif kind == "table":
            for _, definition in _missing_columns(execute, name, sql):
                yield f"ALTER TABLE {name} ADD COLUMN {definition}"
        elif found != sql and replace:
            yield f"DROP {kind} {name}"
            yield sql


def _missing_columns(execute: Execute, table: str, sql: str) -> list[tuple[str, str]]:
    present = {row[1] for row in execute(f"PRAGMA table_xinfo({table})")}
    return [column for column in queries.columns(sql) if column[0] not in present]


def faults(execute: Execute, plan: SchemaPlan, declared: Entries) -> list[SchemaFault]:
    """Return the differences from the declared schema; of a newer revision, only what is missing."""
    actual = read_schema(execute)
    if _read_revision(execute, actual) > plan.revision:
        return [SchemaFault(kind, name, MISSING, True) for kind, name in declared if (kind, name) not in actual]
    found = []
    for (kind, name), sql in declared.items():
        present = actual.get((kind, name))
        if present is None:
            found.append(SchemaFault(kind, name, MISSING, True))
        elif kind == "table" and (missing := _missing_columns(execute, name, sql)):
            found += [SchemaFault("column", f"{column} of {name}", MISSING, True) for column, _ in missing]
        elif normalize_declaration(present) != normalize_declaration(sql):
            found.append(SchemaFault(kind, name, "differs from its declaration", kind != "table"))
    foreign = [name for kind, name in actual if kind == "trigger" and (kind, name) not in declared]
    return found + [SchemaFault("trigger", name, "is not part of the schema", False) for name in foreign]


def normalize_declaration(sql: str) -> tuple[str, ...]:
    """Return the parts of a declaration in a form that ignores layout, comments and the order of columns."""
    plain = " ".join(re.sub(r"--[^\n]*", "", sql).split())
    if not plain.startswith("CREATE TABLE"):
        return (plain,)
    head, _, rest = plain.partition("(")
    body, _, tail = rest.rpartition(")")
    return (head.strip(), *sorted(piece.strip() for piece in _split_at_commas(body)), tail.strip())


def _split_at_commas(body: str) -> Iterable[str]:
    """Split at commas outside of parentheses."""
    depth, begin = 0, 0
    for at, character in enumerate(body):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            yield body[begin:at]
            begin = at + 1
    yield body[begin:]


def _read_revision(execute: Execute, actual: Entries) -> int:
    if ("table", "meta") not in actual:
        return 0
    rows = list(execute("SELECT value FROM meta WHERE key = 'schema_revision'"))
    return int(rows[0][0]) if rows else 0


def _record(execute: Execute, format_: int, revision: int, now: float) -> None:
    _run(execute, [f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {format_}"])
    keep = "INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)"
    replace = "INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)"
    execute(keep, ("created_at", repr(now)))
    execute(keep, ("generation", "1"))
    execute(replace, ("schema_revision", str(revision)))
    execute(replace, ("schema_cookie", str(_read_pragma(execute, "PRAGMA schema_version"))))
    fault_points.reach("migrate", "labels")


def _run(execute: Execute, statements: Iterable[str]) -> None:
    for statement in statements:
        execute(statement)
        fault_points.reach("migrate", " ".join(statement.split()[:3]))


def _read_pragma(execute: Execute, pragma: str) -> int:
    return int(next(iter(execute(pragma)))[0])
