"""Statements on their way to PostgreSQL: which value stands where, and changes that are gathered."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors
from holdfast.store.driver import Tx
from holdfast.store.postgres import statements, transaction
from tests.support import postgres


@pytest.mark.parametrize(
    ("query", "sql", "names"),
    [
        ("SELECT 1", b"SELECT 1", ()),
        ("SELECT %(b)s, %(a)s, %(b)s", b"SELECT $1, $2, $1", ("b", "a")),
        ("SELECT 'x%%' LIKE %(a)s", b"SELECT 'x%' LIKE $1", ("a",)),
    ],
)
def test_values_stand_where_they_were_named(query: str, sql: bytes, names: tuple[str, ...]) -> None:
    assert statements.compile_query(query) == statements.CompiledQuery(sql, names)


def _kept(tx: Tx, *keys: str) -> None:
    for key in keys:
        tx.defer("meta_set", key=key, value="x")


def test_what_is_done_later_is_done_before_the_next_question_and_before_the_commit() -> None:
    keys = [f"key {number}" for number in range(transaction.MAX_DEFERRED + 2)]
    with SessionDB(postgres.fresh()) as db:

        def step(tx: Tx) -> None:
            _kept(tx, "asked for")
            assert tx.one("meta_get", key="asked for") == ("x",)
            _kept(tx, *keys)

        db.driver.write("meta", step)
        assert all(db.driver.read(lambda tx: [tx.one("meta_get", key=key) for key in keys]))


def test_what_is_refused_later_undoes_the_step() -> None:
    with SessionDB(postgres.fresh()) as db:
        db.create_session("talk", source="test")

        def step(tx: Tx) -> None:
            _kept(tx, "before")
            (key,) = tx.one("conversation_key", id="talk") or (0,)
            for fence in (1, 0):
                tx.defer("import_fence", key=key, fence=fence)

        with pytest.raises(errors.StoreRefused):
            db.driver.write("meta", step)
        assert db.driver.read(lambda tx: tx.one("meta_get", key="before")) is None
        assert db.append_message("talk", role="user", content="next").seq == 1


def test_a_statement_is_prepared_once_for_each_kind_of_values() -> None:
    with SessionDB(postgres.fresh()) as db:

        def step(tx: Tx) -> list[str]:
            for key in (None, 1) * 3:
                tx.all("import_unsound", key=key)
            found = tx.execute("SELECT name FROM pg_prepared_statements").fetchall()  # type: ignore[attr-defined]
            return [name for (name,) in found if name.startswith("import_unsound")]

        assert len(db.driver.read(step)) == 2
