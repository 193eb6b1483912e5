"""The declared PostgreSQL schema, the server's catalog, and the differences between the two.

PostgreSQL prints definitions in its own words, which differ between major versions. So the definitions are recorded
right after the schema was created, in the row `schema_shape` of `meta`, and compared with the catalog later
(docs/decisions/0021). On a server of another major version only missing, disabled and unvalidated objects count.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.store import queries
from holdfast.store.driver import MISSING, Execute, SchemaFault

FOLDER = "postgres"
QUERY_FOLDER = "postgres_catalog"
# Recreated without changing a row.
REPAIRABLE = ("function", "index", "trigger")
DISABLED = "is disabled"
CHANGED = "differs from its declaration"
NOT_VALID = "was never checked against the existing rows"

ATTEMPTS = 10

ObjectKey = tuple[str, str, str]  # kind, name, and the table of the object or ""
Definitions = dict[ObjectKey, str]


class SchemaStatement(NamedTuple):
    """A statement of the declared schema and the object it creates."""

    kind: str
    name: str
    table: str
    sql: str


class DeclaredSchema(NamedTuple):
    """The statements of the declared schema in order."""

    statements: tuple[SchemaStatement, ...]

    def names(self, kind: str) -> list[str]:
        return [each.name for each in self.statements if each.kind == kind]

    def has(self, key: ObjectKey) -> bool:
        kind, name, table = key
        return any((each.kind, each.name) == (kind, name) and each.table in ("", table) for each in self.statements)

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The parameters of the catalog queries."""
        return {"tables": self.names("table"), "functions": self.names("function")}


_CREATES = re.compile(
    r"(?:CREATE (?:OR REPLACE )?(?P<kind>TABLE|(?:UNIQUE )?INDEX|FUNCTION|TRIGGER)|(?P<alter>ALTER TABLE))"
    r" (?P<name>\w+)"
)
_ON = re.compile(r"\bON (\w+)")
# A statement ends with a line; the next line starts a statement or a comment, or is empty.
_END = re.compile(r";[ \t]*(?:\n(?=CREATE |ALTER |--|[ \t]*\n)|\s*\Z)")
_NO_TRUNCATE = (
    "CREATE TRIGGER {table}_is_not_truncated BEFORE TRUNCATE ON {table} FOR EACH STATEMENT "
    "EXECUTE FUNCTION refuse('nothing is truncated here')"
)


@functools.cache
def declared_schema() -> DeclaredSchema:
    store, *more = (
        [parse_statement(sql) for sql in split_statements(queries.schema(*file))]
        for file in ((FOLDER, "schema.sql"), (FOLDER, "functions.sql"), (f"{FOLDER}_search", "schema.sql"))
    )
    # TRUNCATE bypasses the row triggers. The search index may be truncated and rebuilt.
    guards = [parse_statement(_NO_TRUNCATE.format(table=each.name)) for each in store if each.kind == "table"]
    return DeclaredSchema((*store, *guards, *(each for part in more for each in part)))


def split_statements(text: str) -> Iterator[str]:
    """Yield the statements of a schema file without comments."""
    for piece in _END.split(text):
        sql = "\n".join(line for line in piece.splitlines() if not line.lstrip().startswith("--")).strip()
        if sql:
            yield sql


def parse_statement(sql: str) -> SchemaStatement:
    found = _CREATES.match(sql)
    if found is None:
        raise ValueError(f"not a schema statement: {sql[:60]}")
    kind = "alter" if found["alter"] else found["kind"].removeprefix("UNIQUE ").lower()
    on = _ON.search(sql) if kind in ("trigger", "index") else None
    return SchemaStatement(kind, found["name"], on[1] if on else "", sql)


def qualify(sql: str, schema: str) -> str:
    """Replace `store.` in function bodies by the name of the schema."""
    return re.sub(r"\bstore\.", lambda _: f"{quote(schema)}.", sql)


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --- the server's definitions -------------------------------------------------------------------------


def read_definitions(execute: Execute, schema: DeclaredSchema) -> Definitions:
    for _ in range(ATTEMPTS):
        rows = list(execute(queries.load(QUERY_FOLDER)["definitions"], schema.parameters))
        # A definition is NULL if another session replaced the object while the query ran.
        if all(row[3] is not None for row in rows):
            break
    return {(kind, name, table): text for kind, name, table, text in rows if text is not None}


def encode(definitions: Definitions) -> str:
    return json.dumps([[*key, text] for key, text in sorted(definitions.items())], separators=(",", ":"))


@functools.lru_cache(2)  # long, and the same for every store of one server
def decode(text: str) -> Definitions:
    return {(kind, name, table): definition for kind, name, table, definition in json.loads(text)}


# --- differences --------------------------------------------------------------------------------------


def find_faults(
    found: Definitions, recorded: Definitions, schema: DeclaredSchema, *, newer: bool, same_server: bool
) -> list[SchemaFault]:
    """Return the differences. `newer`: a newer version changed the schema, so only missing objects count."""
    names = {(kind, name) for kind, name, _ in found}
    missing = [
        (each.kind, each.name, each.table)
        for each in schema.statements
        if each.kind != "alter" and (each.kind, each.name) not in names
    ]
    if newer:
        return [_fault(key, MISSING) for key in missing]
    # The columns and constraints of a missing table are not listed one by one.
    missing += [key for key in recorded if key not in found and (not key[2] or ("table", key[2], "") in found)]
    changed = {key: what for key, text in found.items() if (what := _compare(text, recorded.get(key), same_server))}
    declared_triggers = set(schema.names("trigger"))
    foreign = sorted({name for kind, name, _ in found if kind == "trigger" and name not in declared_triggers})
    return [
        *(_fault(key, what) for key, what in (dict.fromkeys(missing, MISSING) | changed).items()),
        *(SchemaFault("trigger", name, "is not part of the schema", False) for name in foreign),
    ]


def _compare(text: str, before: str | None, same_server: bool) -> str:
    if text == before:
        return ""
    if text.endswith(" DISABLED"):
        return DISABLED
    if text.endswith(" NOT VALID"):
        return NOT_VALID
    return CHANGED if before is not None and same_server else ""


def _fault(key: ObjectKey, what: str) -> SchemaFault:
    kind, name, table = key
    full_name = f"{name} of {table}" if kind in ("column", "constraint") else name
    return SchemaFault(kind, full_name, what, kind in REPAIRABLE or what != CHANGED)


def violations_query(recorded: Definitions) -> str:
    """Build a query that counts the rows violating CHECK, UNIQUE and PRIMARY KEY constraints, by constraint.

    Rows can violate a constraint that was disabled for a while, or whose index is damaged.
    """
    checks: dict[str, list[tuple[str, str]]] = {}
    selects = []
    for (kind, name, table), text in sorted(recorded.items()):
        rule = re.match(r"(CHECK|UNIQUE|PRIMARY KEY) (\(.*\))", text) if kind == "constraint" else None
        if rule is not None and rule[1] == "CHECK":
            checks.setdefault(table, []).append((name, rule[2]))
        elif rule is not None:
            selects.append(_count_duplicates(table, name, rule[2].strip("()")))
    selects += [_count_failed_checks(table, rules) for table, rules in checks.items()]
    # Names and expressions were printed by the server.
    union = " UNION ALL ".join(selects)
    return f"SELECT name, found FROM ({union}) violations (name, found) WHERE found > 0" if selects else ""  # noqa: S608


def _count_duplicates(table: str, name: str, columns: str) -> str:
    given = " AND ".join(f"{column} IS NOT NULL" for column in columns.split(", "))
    rows = f"SELECT FROM {table} WHERE {given} GROUP BY {columns} HAVING count(*) > 1"
    return f"SELECT '{name} of {table}', count(*) FROM ({rows}) duplicates"  # noqa: S608


def _count_failed_checks(table: str, rules: list[tuple[str, str]]) -> str:
    """All checks of a table in one pass."""
    names = ", ".join(f"'{name} of {table}'" for name, _ in rules)
    counts = ", ".join(f"count(*) FILTER (WHERE NOT {rule})" for _, rule in rules)
    return f"SELECT unnest(ARRAY[{names}]), unnest(ARRAY[{counts}]) FROM {table}"  # noqa: S608
