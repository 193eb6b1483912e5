"""Send statements to PostgreSQL over one connection: prepared from the second use on, and several in one round trip.

A cursor of psycopg costs more than an append may take, so statements are passed to libpq directly. psycopg converts the
values and waits for the results.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import psycopg

from holdfast.store.driver import Row
from holdfast.store.postgres.connection import Connection

_BINARY = 1
_DONE, _ROWS, _SYNC, _ABORTED = 1, 2, 10, 11  # libpq's names for the status of a result that is no error
_PLACE = re.compile(r"%(?:\((\w+)\)s|%)")


class Statement(NamedTuple):
    """A query as libpq takes it, and the names of its parameters in order."""

    sql: bytes
    names: tuple[str, ...]


@functools.cache
def statement(query: str) -> Statement:
    names: dict[str, int] = {}

    def place(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}" if found[1] else "%"

    return Statement(_PLACE.sub(place, query).encode(), tuple(names))


Kind = tuple[str, tuple[int, ...] | None]
"""The name of a query and the types of its values; each kind is prepared by itself."""
Call = str | tuple[str, dict[str, Any]]
"""A statement as SQL without values, or a query by name with its values."""


class Wire:
    """Sends the statements of one thread at a time over one connection. Raises psycopg's errors."""

    def __init__(self, connection: Connection, sql: Mapping[str, str]) -> None:
        self._connection = connection
        self._sql = sql
        self._server = connection.pgconn
        self._convert = psycopg.adapt.Transformer(connection)
        self._automatic = psycopg.adapt.PyFormat.AUTO
        # The names of prepared statements. None: the query was used once, and is prepared when it is used again.
        self._prepared: dict[Kind, bytes | None] = {}
        self._numbers = itertools.count(1)

    def execute(self, query: str, values: dict[str, Any]) -> Any:
        """Execute a query and return libpq's result."""
        asked, convert = statement(self._sql[query]), self._convert
        given = convert.dump_sequence([values[name] for name in asked.names], (self._automatic,) * len(asked.names))
        kind = (query, convert.types)
        name = self._prepared.get(kind, b"")
        if name is None:
            name = b"%s_%d" % (query.encode(), next(self._numbers))
            self._server.send_prepare(name, asked.sql, convert.types)
            self.result()
            self._prepared[kind] = name
        if name:
            self._server.send_query_prepared(name, given, convert.formats, _BINARY)
        else:
            self._prepared[kind] = None
            self._server.send_query_params(asked.sql, given, convert.types, convert.formats, _BINARY)
        return self.result()

    def command(self, sql: str) -> None:
        """Execute statements without values or rows."""
        self._server.send_query(sql.encode())
        self.result()

    def result(self) -> Any:
        """Wait for the result of the statement that was sent; of several, return the last one."""
        *_, result = self._connection.wait(psycopg.generators.execute(self._server))
        if result.status not in (_DONE, _ROWS):
            raise psycopg.errors.error_from_result(result, "utf-8")
        return result

    def rows(self, result: Any, limit: int | None = None) -> list[Row]:
        count = result.ntuples if limit is None else min(limit, result.ntuples)
        if not count:
            return []
        self._convert.set_pgresult(result)
        rows: list[Row] = self._convert.load_rows(0, count, tuple)
        return rows

    def pipeline(self, calls: Sequence[Call]) -> list[Any]:
        """Send statements in one round trip; return the result of each. After the first that fails none is executed."""
        expected, prepared = list[bool](), dict[Kind, bytes | None]()
        self._server.enter_pipeline_mode()
        try:
            # libpq only buffers what the socket does not take; the generator sends the rest.
            for call in calls:
                commands = self._commands(call, prepared)
                for command in commands:
                    command()
                expected += [False] * (len(commands) - 1) + [True]
            self._server.pipeline_sync()
            results = self._connection.wait(self._results(len(expected) + 1))
        finally:
            if not self._connection.closed:
                self._server.exit_pipeline_mode()
        for result in results:
            if result.status not in (_DONE, _ROWS, _SYNC, _ABORTED):
                raise psycopg.errors.error_from_result(result, "utf-8")
        self._prepared.update(prepared)
        return [result for result, wanted in zip(results, expected, strict=False) if wanted]

    def _results(self, expected: int) -> Generator[Any, Any, list[Any]]:
        yield from psycopg.generators.send(self._server)
        results = list[Any]()
        while len(results) < expected:
            results.append((yield from psycopg.generators.fetch_many(self._server))[-1])
        return results

    def _commands(self, call: Call, prepared: dict[Kind, bytes | None]) -> list[Callable[[], None]]:
        """Return the messages of one call: a query that is used for the second time is prepared first."""
        if isinstance(call, str):
            return [partial(self._server.send_query_params, call.encode(), None)]
        query, values = call
        asked, convert = statement(self._sql[query]), self._convert
        given = convert.dump_sequence([values[name] for name in asked.names], (self._automatic,) * len(asked.names))
        types, formats, kind = convert.types, convert.formats, (query, convert.types)
        name = prepared[kind] if kind in prepared else self._prepared.get(kind, b"")
        if name == b"":
            prepared[kind] = None
            return [partial(self._server.send_query_params, asked.sql, given, types, formats, _BINARY)]
        first = list[Callable[[], None]]()
        if name is None:
            name = prepared[kind] = b"%s_%d" % (query.encode(), next(self._numbers))
            first = [partial(self._server.send_prepare, name, asked.sql, types)]
        return [*first, partial(self._server.send_query_prepared, name, given, formats, _BINARY)]
