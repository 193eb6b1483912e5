"""Statements on their way to PostgreSQL over one connection: prepared from the second time on, and many at once where
nobody waits for what each of them says.

A cursor of psycopg costs more than an append has to spend, so a statement is handed to libpq as it is. How values are
converted, and how an answer is waited for, stays psycopg's.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import psycopg

from holdfast.store.driver import Row
from holdfast.store.postgres.connection import Connection

_BINARY = 1
_DONE, _ROWS = 1, 2  # what libpq calls an answer that is no refusal
_PLACE = re.compile(r"%(?:\((\w+)\)s|%)")


class Statement(NamedTuple):
    """A query as libpq takes it, and which value stands where."""

    sql: bytes
    names: tuple[str, ...]


@functools.cache
def statement(query: str) -> Statement:
    names: dict[str, int] = {}

    def place(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}" if found[1] else "%"

    return Statement(_PLACE.sub(place, query).encode(), tuple(names))


class Wire:
    """What one thread at a time sends over one connection. Raises psycopg's errors."""

    def __init__(self, connection: Connection, sql: Mapping[str, str]) -> None:
        self._connection = connection
        self._sql = sql
        self._server = connection.pgconn
        self._convert = psycopg.adapt.Transformer(connection)
        self._automatic = psycopg.adapt.PyFormat.AUTO
        self._answered = psycopg.generators.execute
        self._refusal = psycopg.errors.error_from_result
        self._many = connection.cursor(binary=True)
        # By the query and the types of its values. None: it was asked once, and is prepared when it comes again.
        self._prepared: dict[tuple[str, tuple[int, ...] | None], bytes | None] = {}
        self._numbers = itertools.count(1)

    def ask(self, query: str, values: dict[str, Any]) -> Any:
        """What the server answers to one query."""
        asked, convert = statement(self._sql[query]), self._convert
        given = convert.dump_sequence([values[name] for name in asked.names], (self._automatic,) * len(asked.names))
        kind = (query, convert.types)
        name = self._prepared.get(kind, b"")
        if name is None:
            name = b"%s_%d" % (query.encode(), next(self._numbers))
            self._server.send_prepare(name, asked.sql, convert.types)
            self._answer()
            self._prepared[kind] = name
        if name:
            self._server.send_query_prepared(name, given, convert.formats, _BINARY)
        else:
            self._prepared[kind] = None
            self._server.send_query_params(asked.sql, given, convert.types, convert.formats, _BINARY)
        return self._answer()

    def command(self, sql: str) -> bytes:
        """Statements without values or rows; what the last of them came to."""
        self._server.send_query(sql.encode())
        came: bytes = self._answer().command_status or b""
        return came

    def _answer(self) -> Any:
        *_, answer = self._connection.wait(self._answered(self._server))
        if answer.status not in (_DONE, _ROWS):
            raise self._refusal(answer, "utf-8")
        return answer

    def rows(self, answer: Any, most: int | None = None) -> list[Row]:
        """The rows of the answer that came last."""
        found = answer.ntuples if most is None else min(most, answer.ntuples)
        if not found:
            return []
        self._convert.set_pgresult(answer)
        rows: list[Row] = self._convert.load_rows(0, found, tuple)
        return rows

    def send(self, queries: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """All of them in their order, without a wait between one and the next. The first that is refused ends it."""
        for query, same in itertools.groupby(queries, key=itemgetter(0)):
            values: Sequence[dict[str, Any]] = [each for _, each in same]
            if len(values) == 1:
                self.ask(query, values[0])
            else:
                self._many.executemany(self._sql[query], values)
