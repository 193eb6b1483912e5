"""Named queries: read from their files, all of them used, none of them missing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

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
    """What stands, as text, where a transaction is asked for a query by its name."""
    found: set[str] = set()
    for node in (node for tree in trees() for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            asked, whom = node.func, node.func.value
            if asked.attr in ("one", "all", "run", "defer") and isinstance(whom, ast.Name) and whom.id == "tx":
                found |= texts(node.args[0])
    return found


def test_every_query_that_is_asked_for_exists() -> None:
    asked = asked_for()
    assert len(asked) > 40
    assert asked - defined() == set()


def test_every_query_that_exists_is_asked_for() -> None:
    mentioned = {text for tree in trees() for text in texts(tree)}
    assert defined() - mentioned - set(fsck.CHECKS) == set()


# A whole append in one message to the server, attachments in tables, and a scrub that SQLite notes by itself.
ONLY_POSTGRES = {
    *("append_message", "append_to_each", "flush_wal"),
    *("part_insert", "part_get", "parts_delete", "parts_strays"),
}


def test_both_dialects_define_the_same_queries() -> None:
    assert set(queries.load("postgres")) - set(queries.load("sqlite")) == ONLY_POSTGRES
    assert set(queries.load("sqlite")) - set(queries.load("postgres")) == set()


def test_macros_expand_to_the_sql_of_each_database() -> None:
    sql = "SELECT greatest(a + 1, :b) FROM messages m WHERE message_at(m, :conversation, c.last_seq)"
    assert queries.expand(sql, "sqlite") == (
        "SELECT max(a + 1, :b) FROM messages m WHERE m.id = (:conversation << 32) + c.last_seq"
    )
    assert queries.expand(sql, "postgres") == (
        "SELECT greatest(a + 1, :b) FROM messages m WHERE m.conversation = :conversation AND m.seq = c.last_seq"
    )
    assert queries.MACROS["sqlite"].keys() == queries.MACROS["postgres"].keys()


def same(one: str, other: str) -> bool:
    return one.split() == other.split()


@pytest.mark.parametrize("dialect", queries.DIALECTS)
def test_no_override_equals_the_common_query(dialect: str) -> None:
    common = queries.read(queries.COMMON)
    overrides = queries.read(dialect)
    assert [name for name in overrides if name in common and same(overrides[name], common[name])] == []


def test_queries_that_the_dialects_share_are_common() -> None:
    sqlite, postgres = map(queries.read, queries.DIALECTS)
    assert [name for name in sqlite if name in postgres and same(sqlite[name], postgres[name])] == []


def test_parameters_are_rewritten_for_psycopg() -> None:
    written = "SELECT :one::text, 'a:b', '50%' FROM t WHERE x = :two_three AND y = '{\"z\":\"'"
    rewritten = "SELECT %(one)s::text, 'a:b', '50%%' FROM t WHERE x = %(two_three)s AND y = '{\"z\":\"'"
    assert queries.to_psycopg(written) == rewritten


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_query_is_one_statement(dialect: str) -> None:
    for name, sql in queries.load(dialect).items():
        assert sql, name
        assert ";" not in sql, name


def test_nothing_is_asked_for_that_a_server_may_not_be_allowed_to_compute() -> None:
    """md5 is switched off where only approved functions may be used."""
    asked = [notify._SEND, notify.SELECT_CHANNEL, queries.schema("postgres")]
    for folder in ("postgres", "postgres_search", "postgres_catalog"):
        asked += queries.load(folder).values()
    assert not [sql for sql in asked if "md5(" in sql]


def test_both_search_indexes_know_the_same_queries() -> None:
    # FTS5 weighs words by itself.
    assert queries.load("postgres_search").keys() - queries.load("sqlite_search").keys() == {"index_weights"}
    assert queries.load("sqlite_search").keys() - queries.load("postgres_search").keys() == set()


def test_file_is_read_as_names_and_their_sql() -> None:
    text = (
        "-- A remark about the file.\n\n-- name: one\n-- What it is for.\nSELECT 1;\n\n"
        "-- name: two, three\nSELECT 2\n  FROM x -- not a remark of its own line\n WHERE y;\n"
    )
    assert queries.parse(text) == [
        (["one"], "SELECT 1"),
        (["two", "three"], "SELECT 2\n  FROM x -- not a remark of its own line\n WHERE y"),
    ]


def test_file_without_names_has_no_queries() -> None:
    assert queries.parse("SELECT 1;\n") == []


def test_schema_is_no_query() -> None:
    assert "CREATE TABLE conversations" in queries.schema("sqlite")
    assert not any("CREATE TABLE" in sql for sql in queries.load("sqlite").values())
