"""Load named SQL queries from `sql/`.

A query starts with `-- name: one_name`, or `-- name: one, other` when several names share one text; the comment lines
after it describe it. Parameters are written `:name` in every file. `sql/common/` holds the queries that both databases
share; `sql/sqlite/` and `sql/postgres/` hold the schemas and the queries that differ, which override common ones.
`schema.sql` and `functions.sql` are not made of queries and are read whole.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

COMMON = "common"
# The folders that build on the common queries.
DIALECTS = ("sqlite", "postgres")

_HEADER = re.compile(r"^-- name: *(.+?) *$", re.MULTILINE)
_WHOLE = ("schema.sql", "functions.sql")
# A `:name` that is not part of a `::cast`.
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")


@functools.cache
def load(folder: str) -> dict[str, str]:
    """Return every query of a folder by name, in the parameter syntax of its database."""
    queries = {**read(COMMON), **read(folder)} if folder in DIALECTS else read(folder)
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


def to_psycopg(sql: str) -> str:
    """Rewrite `:name` as `%(name)s`; a literal percent sign is doubled."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def schema(folder: str, file: str = "schema.sql") -> str:
    return (resources.files("holdfast.store") / "sql" / folder / file).read_text("utf-8")


def parse(text: str) -> list[tuple[list[str], str]]:
    """Split one file into queries: their names, and their SQL without comments."""
    parts = _HEADER.split(text)[1:]
    return [
        ([name.strip() for name in names.split(",")], _without_comments(sql))
        for names, sql in zip(parts[::2], parts[1::2], strict=True)
    ]


def _without_comments(sql: str) -> str:
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().rstrip(";")
