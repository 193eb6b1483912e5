"""Reads the named queries of a dialect from `sql/<dialect>/*.sql`.

A query begins with `-- name: one_name` or, where one text serves several, `-- name: one, other`. The
comment lines after it say what it is for. `schema.sql` is not made of queries and is read whole.
"""

from __future__ import annotations

import functools
import re
from importlib import resources

_HEADER = re.compile(r"^-- name: *(.+?) *$", re.MULTILINE)


@functools.cache
def load(dialect: str) -> dict[str, str]:
    """Every query of a dialect by its name."""
    found: dict[str, str] = {}
    folder = resources.files("holdfast.store") / "sql" / dialect
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".sql") and file.name != "schema.sql":
            for names, text in parse(file.read_text("utf-8")):
                for name in names:
                    if name in found:
                        raise ValueError(f"{file.name}: the query {name} is defined twice")
                    found[name] = text
    return found


def schema(dialect: str, file: str = "schema.sql") -> str:
    return (resources.files("holdfast.store") / "sql" / dialect / file).read_text("utf-8")


def parse(text: str) -> list[tuple[list[str], str]]:
    """The queries of one file: their names, and their SQL without the comments."""
    parts = _HEADER.split(text)[1:]
    return [
        ([name.strip() for name in names.split(",")], _without_comments(sql))
        for names, sql in zip(parts[::2], parts[1::2], strict=True)
    ]


def _without_comments(sql: str) -> str:
    lines = [line for line in sql.splitlines() if not line.lstrip().startswith("--")]
    return "\n".join(lines).strip().rstrip(";")
