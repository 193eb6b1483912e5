"""Named queries: parsed from their files, defined for both dialects, and all of them used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from holdfast.store import fsck, queries
from holdfast.store.postgres import notify

STORE = Path(str(resources.files("holdfast.store")))
DIALECTS = sorted(folder.name for folder in (STORE / "sql").iterdir() if folder.is_dir())


def defined() -> set[str]:
    return {name for dialect in DIALECTS for name in queries.load(dialect)}


def trees() -> Iterator[ast.AST]:
    for file in sorted(STORE.rglob("*.py")):
        yield ast.parse(file.read_text("utf-8"))


def texts(node: ast.AST) -> set[str]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def asked_for() -> set[str]:
    """The names with which a transaction is asked for a query."""
    found: set[str] = set()
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            asked, whom = node.func, node.func.value
            if asked.attr in ("one", "all", "run", "defer") and isinstance(whom, ast.Name) and whom.id == "tx":
                found |= texts(node.args[0])
    return found


def test_every_query_exists_and_is_used() -> None:
    used, defined_names = asked_for(), defined()
    assert len(used) > 40
    assert used - defined_names == set()
    mentioned = {text for tree in trees() for text in texts(tree)}
    assert defined_names - mentioned - set(fsck.CHECKS) == set()


def test_no_query_uses_md5() -> None:
    """It is not available on servers that permit only approved functions."""
    sql = [notify._SEND, notify.SELECT_CHANNEL, queries.schema("postgres")]
    for folder in ("postgres", "postgres_search", "postgres_catalog"):
        sql += queries.load(folder).values()
    assert not [each for each in sql if "md5(" in each]
