"""Load named SQL queries from `sql/`.

A query starts with `-- name: one_name`, or `-- name: one, other` when several names share one text; the comment lines
after it describe it. Parameters are written `:name` in every file. `sql/common/` holds the queries that both databases
share; `sql/sqlite/` and `sql/postgres/` hold the schemas and the queries that differ, which override common ones.
`schema.sql` and `functions.sql` are not made of queries and are read whole.

Common queries may call these macros. All but the last exist because the databases differ in one expression:

- `message_at(m, conversation, seq)`: the row `m` of `messages` is this message.
- `messages_of(m, conversation)`: the row `m` of `messages` belongs to this conversation.
- `greatest(a, b)`: the larger value.
- `json_valid(text)`: whether a text is valid JSON.
- `linked_owner(a)`: the owner that the sender of the row `a` of `arrivals` is linked to, or NULL.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

COMMON = "common"
# The folders that build on the common queries.
DIALECTS = ("sqlite", "postgres")

# The id of a message in SQLite is its conversation and seq in one integer; PostgreSQL has both as its primary key.
_LINKED_OWNER = "(SELECT l.owner FROM links l WHERE l.platform = {0}.platform AND l.sender = {0}.sender)"
MACROS = {
    "sqlite": {
        "linked_owner": _LINKED_OWNER,
        "message_at": "{0}.id = ({1} << 32) + {2}",
        "messages_of": "{0}.id > {1} << 32 AND {0}.id <= ({1} << 32) + 4294967295",
        "greatest": "max({0}, {1})",
        "json_valid": "json_valid({0})",
    },
    "postgres": {
        "linked_owner": _LINKED_OWNER,
        "message_at": "{0}.conversation = {1} AND {0}.seq = {2}",
        "messages_of": "{0}.conversation = {1}",
        "greatest": "greatest({0}, {1})",
        "json_valid": "(json_kind({0}) IS NOT NULL)",
    },
}
_MACRO = re.compile(rf"\b({'|'.join(MACROS['sqlite'])})\(([^()]*)\)")

_HEADER = re.compile(r"^-- name: *(.+?) *$", re.MULTILINE)
_WHOLE = ("schema.sql", "functions.sql")
# A `:name` that is not part of a `::cast`.
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


@functools.cache
def load(folder: str) -> dict[str, str]:
    """Return every query of a folder by name, in the parameter syntax of its database."""
    queries = {name: expand(sql, folder) for name, sql in read(COMMON).items()} if folder in DIALECTS else {}
    queries |= read(folder)
    if folder.startswith("postgres"):
        return {name: to_psycopg(sql) for name, sql in queries.items()}
    return queries


def read(folder: str) -> dict[str, str]:
    """Return the queries of one folder as they are written."""
    found: dict[str, str] = {}
    directory = resources.files("holdfast.store") / "sql" / folder
    for file in sorted(directory.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql") and file.name not in _WHOLE:
            for names, text in parse(file.read_text("utf-8")):
                for name in names:
                    if name in found:
                        raise ValueError(f"{file.name}: the query {name} is defined twice")
                    found[name] = text
    return found


def expand(sql: str, folder: str) -> str:
    """Replace the macros of a common query by the SQL of a database."""
    macros = MACROS[folder]
    return _MACRO.sub(lambda call: macros[call[1]].format(*map(str.strip, call[2].split(","))), sql)


def to_psycopg(sql: str) -> str:
    """Rewrite `:name` as `%(name)s`; a literal percent sign is doubled."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def schema(folder: str, file: str = "schema.sql") -> str:
    return (resources.files("holdfast.store") / "sql" / folder / file).read_text("utf-8")


def parse(text: str) -> list[tuple[list[str], str]]:
    """Split one file into queries: their names, and their SQL without comments."""
    parts, found = _HEADER.split(text)[1:], list[tuple[list[str], str]]()
    for names, sql in zip(parts[::2], parts[1::2], strict=True):
        lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
        found.append(([name.strip() for name in names.split(",")], "\n".join(lines).strip().rstrip(";")))
    return found


def columns(sql: str) -> list[tuple[str, str]]:
    """Return name and definition of each column of a CREATE TABLE statement; none of a virtual table.

    Our schema files declare one column per line, before the table constraints.
    """
    if not sql.startswith("CREATE TABLE"):
        return []
    lines = [line.strip().rstrip(",") for line in sql.splitlines()[1:-1]]
    return [(line.split()[0], line) for line in lines if line and line.split()[0].islower()]
