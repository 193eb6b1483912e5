"""What a PostgreSQL schema holds, and where that is not what was declared.

SQLite keeps the text a table was made from; PostgreSQL keeps its own words for it, which differ from version to
version. So the schema is written down as the server tells it at the moment it is made, in the row `schema_shape` of
`meta`, and compared with what the server tells later. A server of another major version may use other words: then only
what is missing, disabled or not validated counts.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.store import queries, schema_plan

FOLDER = "postgres"
LOOKS = "postgres_catalog"
# Made again without touching a row; what else differs is a matter for people.
REPAIRABLE = ("function", "index", "trigger")
DISABLED = "is disabled"
CHANGED = "is not what was declared"
UNCHECKED = "was never checked against the rows there are"

ATTEMPTS = 10

Place = tuple[str, str, str]  # kind, name, and the table it belongs to or ""
Shape = dict[Place, str]


class Part(NamedTuple):
    """A statement of the declared schema, and what it makes."""

    kind: str
    name: str
    table: str
    sql: str


class Declared(NamedTuple):
    """The statements of a dialect, in their order."""

    parts: tuple[Part, ...]

    def names(self, kind: str) -> list[str]:
        return [part.name for part in self.parts if part.kind == kind]

    def of(self, place: Place) -> str | None:
        """The statement that makes this, of what has one of its own."""
        kind, name, table = place
        return next((p.sql for p in self.parts if (p.kind, p.name) == (kind, name) and p.table in ("", table)), None)


_MAKES = re.compile(
    r"(?:CREATE (?:OR REPLACE )?(?P<kind>TABLE|(?:UNIQUE )?INDEX|FUNCTION|TRIGGER)|(?P<alter>ALTER TABLE))"
    r" (?P<name>\w+)"
)
_ON = re.compile(r"\bON (\w+)")
_BETWEEN = re.compile(r";[ \t]*(?:\n[ \t]*\n|\n?\Z)")


@functools.cache
def declared(folder: str = FOLDER) -> Declared:
    texts = [queries.schema(folder)]
    if folder == FOLDER:
        texts += [queries.schema(folder, "functions.sql"), queries.schema(f"{folder}_search")]
    return Declared(tuple(part(sql) for text in texts for sql in statements(text)))


def statements(text: str) -> Iterator[str]:
    """Statements end with a line; an empty line or the end of the file is behind it."""
    for piece in _BETWEEN.split(text):
        sql = "\n".join(line for line in piece.splitlines() if not line.lstrip().startswith("--")).strip()
        if sql:
            yield sql


def part(sql: str) -> Part:
    """What a statement makes."""
    found = _MAKES.match(sql)
    if found is None:
        raise ValueError(f"not a part of a schema: {sql[:60]}")
    kind = "alter" if found["alter"] else found["kind"].removeprefix("UNIQUE ").lower()
    on = _ON.search(sql) if kind in ("trigger", "index") else None
    return Part(kind, found["name"], on[1] if on else "", sql)


def placed(sql: str, schema: str) -> str:
    """A declaration for one schema: its functions name it."""
    return re.sub(r"\bstore\.", lambda _: f"{quoted(schema)}.", sql)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# --- what is there ------------------------------------------------------------------------------------


def wanted(parts: Declared) -> dict[str, list[str]]:
    """What the queries of the catalogue are asked about."""
    return {"tables": parts.names("table"), "functions": parts.names("function")}


def shape(execute: schema_plan.Execute, parts: Declared) -> Shape:
    for _ in range(ATTEMPTS):
        rows = list(execute(queries.load(LOOKS)["shape"], wanted(parts)))
        # The text of an object is NULL if another session replaced the object while the query ran.
        if all(row[3] is not None for row in rows):
            break
    return {(kind, name, table): text for kind, name, table, text in rows if text is not None}


def written(found: Shape) -> str:
    return json.dumps([[*place, text] for place, text in sorted(found.items())], separators=(",", ":"))


def read(text: str | None) -> Shape:
    return dict(_read(text)) if text else {}


@functools.lru_cache(2)  # it is long, and the same every time
def _read(text: str) -> Shape:
    return {(kind, name, table): words for kind, name, table, words in json.loads(text)}


# --- where it differs ---------------------------------------------------------------------------------


def faults(found: Shape, recorded: Shape, parts: Declared, *, newer: bool, same_words: bool) -> list[schema_plan.Fault]:
    """Where a schema is not what was declared. What a newer version made is its own business."""
    absent = dict.fromkeys(_absent(found, parts), schema_plan.MISSING)
    if newer:
        return [_fault(place, what) for place, what in absent.items()]
    absent |= {place: schema_plan.MISSING for place in recorded if place not in found and _own(place, found)}
    changed = {place: what for place, text in found.items() if (what := _changed(place, text, recorded, same_words))}
    return [
        *(_fault(place, what) for place, what in (absent | changed).items()),
        *(schema_plan.Fault("trigger", name, "is not part of the schema", False) for name in _strange(found, parts)),
    ]


def breaches(recorded: Shape) -> str:
    """A query for the constraints of single tables that rows break all the same: their names, and how many do.

    None, where they hold; but rows get past one that was off for a while, or whose index is damaged.
    """
    checks: dict[str, list[tuple[str, str]]] = {}
    looks = []
    for (kind, name, table), text in sorted(recorded.items()):
        rule = re.match(r"(CHECK|UNIQUE|PRIMARY KEY) (\(.*\))", text) if kind == "constraint" else None
        if rule is not None and rule[1] == "CHECK":
            checks.setdefault(table, []).append((name, rule[2]))
        elif rule is not None:
            looks.append(_twice(table, name, rule[2].strip("()")))
    looks += [_broken(table, rules) for table, rules in checks.items()]
    # Names and rules are the server's own words.
    every = " UNION ALL ".join(looks)
    return f"SELECT name, found FROM ({every}) looks (name, found) WHERE found > 0" if looks else ""  # noqa: S608


def _twice(table: str, name: str, columns: str) -> str:
    given = " AND ".join(f"{column} IS NOT NULL" for column in columns.split(", "))
    rows = f"SELECT FROM {table} WHERE {given} GROUP BY {columns} HAVING count(*) > 1"
    return f"SELECT '{name} of {table}', count(*) FROM ({rows}) twice"  # noqa: S608


def _broken(table: str, rules: list[tuple[str, str]]) -> str:
    """All checks of a table in one pass over it."""
    names = ", ".join(f"'{name} of {table}'" for name, _ in rules)
    counts = ", ".join(f"count(*) FILTER (WHERE NOT {rule})" for _, rule in rules)
    return f"SELECT unnest(ARRAY[{names}]), unnest(ARRAY[{counts}]) FROM {table}"  # noqa: S608


def _absent(found: Shape, parts: Declared) -> Iterator[Place]:
    there = {(kind, name) for kind, name, _ in found}
    for part in parts.parts:
        if part.kind != "alter" and (part.kind, part.name) not in there:
            yield (part.kind, part.name, part.table)


def _own(place: Place, found: Shape) -> bool:
    """Of a table that is gone, its columns and constraints are not told one by one."""
    return not place[2] or ("table", place[2], "") in found


def _changed(place: Place, text: str, recorded: Shape, same_words: bool) -> str:
    before = recorded.get(place)
    if text == before:
        return ""
    if text.endswith(" DISABLED"):
        return DISABLED
    if text.endswith(" NOT VALID"):
        return UNCHECKED
    return CHANGED if before is not None and same_words else ""


def _fault(place: Place, what: str) -> schema_plan.Fault:
    kind, name, table = place
    of = f"{name} of {table}" if kind in ("column", "constraint") else name
    return schema_plan.Fault(kind, of, what, kind in REPAIRABLE or what != CHANGED)


def _strange(found: Shape, parts: Declared) -> list[str]:
    known = set(parts.names("trigger"))
    return sorted({name for kind, name, _ in found if kind == "trigger" and name not in known})
