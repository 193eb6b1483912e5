"""Execute queries over one connection: prepared from the second use on, and several in one round trip.

Queries are passed to libpq directly, because a psycopg cursor takes longer than an append. psycopg converts the values
and waits for the results.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import psycopg

from holdfast.store.driver import QueryCall, Row
from holdfast.store.postgres.connection import PostgresConnection

_BINARY = 1
_SUCCESS = (1, 2, 10, 11)  # libpq: COMMAND_OK, TUPLES_OK, PIPELINE_SYNC, PIPELINE_ABORTED
_PARAMETER = re.compile(r"%(?:\((\w+)\)s|%)")

Command = str | QueryCall
"""SQL without parameters, or a query by name with its parameters."""
PreparedKey = tuple[str, tuple[int, ...] | None]
"""The name of a query and the types of its parameters: PostgreSQL prepares a query for fixed types."""


class CompiledQuery(NamedTuple):
    """A query with libpq's `$1` placeholders, and the names of its parameters in order."""

    sql: bytes
    parameters: tuple[str, ...]


@functools.cache
def compile_query(query: str) -> CompiledQuery:
    numbers: dict[str, int] = {}

    def placeholder(found: re.Match[str]) -> str:
        return f"${numbers.setdefault(found[1], len(numbers) + 1)}" if found[1] else "%"

    return CompiledQuery(_PARAMETER.sub(placeholder, query).encode(), tuple(numbers))


class StatementExecutor:
    """Executes the statements of one connection, for one thread at a time. Raises psycopg's errors."""

    def __init__(self, connection: PostgresConnection, sql: Mapping[str, str]) -> None:
        self._connection = connection
        self._sql = sql
        self._pgconn = connection.pgconn
        self._transformer = psycopg.adapt.Transformer(connection)
        self._auto_format = psycopg.adapt.PyFormat.AUTO
        # The names of prepared statements. None: the query was used once, and is prepared when it is used again.
        self._prepared: dict[PreparedKey, bytes | None] = {}
        self._numbers = itertools.count(1)

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Execute commands in one round trip and return a libpq result for each. The first error stops the rest."""
        prepared: dict[PreparedKey, bytes | None] = {}
        if len(commands) == 1:
            for send in self._requests(commands[0], prepared):
                send()
                results = [self.receive()]
        else:
            results = self._pipeline(commands, prepared)
        if prepared:
            self._prepared.update(prepared)
        return results

    def receive(self) -> Any:
        """Wait for the result of the request that was sent."""
        *_, result = self._connection.wait(psycopg.generators.execute(self._pgconn))
        _raise_for_error(result)
        return result

    def load_rows(self, result: Any, limit: int | None = None) -> list[Row]:
        count = result.ntuples if limit is None else min(limit, result.ntuples)
        if not count:
            return []
        self._transformer.set_pgresult(result)
        rows: list[Row] = self._transformer.load_rows(0, count, tuple)
        return rows

    def _pipeline(self, commands: Sequence[Command], prepared: dict[PreparedKey, bytes | None]) -> list[Any]:
        is_result_of_command = list[bool]()
        self._pgconn.enter_pipeline_mode()
        try:
            # libpq buffers requests that the socket does not accept yet; the generator sends them.
            for command in commands:
                requests = self._requests(command, prepared)
                for send in requests:
                    send()
                is_result_of_command += [False] * (len(requests) - 1) + [True]
            self._pgconn.pipeline_sync()
            results = self._connection.wait(self._send_and_receive(len(is_result_of_command) + 1))
        finally:
            if not self._connection.closed:
                self._pgconn.exit_pipeline_mode()
        for result in results:
            _raise_for_error(result)
        return list(itertools.compress(results, is_result_of_command))

    def _send_and_receive(self, count: int) -> Generator[Any, Any, list[Any]]:
        yield from psycopg.generators.send(self._pgconn)
        results = list[Any]()
        while len(results) < count:
            results.append((yield from psycopg.generators.fetch_many(self._pgconn))[-1])
        return results

    def _requests(self, command: Command, prepared: dict[PreparedKey, bytes | None]) -> list[Callable[[], None]]:
        """Return functions that send a command: a query that is used for the second time is prepared first.

        `prepared` collects the changes to the prepared statements, which are valid if all requests succeed.
        """
        if isinstance(command, str):
            return [partial(self._pgconn.send_query_params, command.encode(), None)]
        query, values = command
        compiled, transformer = compile_query(self._sql[query]), self._transformer
        parameters = transformer.dump_sequence(
            [values[name] for name in compiled.parameters], (self._auto_format,) * len(compiled.parameters)
        )
        types, formats, key = transformer.types, transformer.formats, (query, transformer.types)
        name = prepared[key] if key in prepared else self._prepared.get(key, b"")
        if name == b"":
            prepared[key] = None
            return [partial(self._pgconn.send_query_params, compiled.sql, parameters, types, formats, _BINARY)]
        requests: list[Callable[[], None]] = []
        if name is None:
            name = prepared[key] = b"%s_%d" % (query.encode(), next(self._numbers))
            requests.append(partial(self._pgconn.send_prepare, name, compiled.sql, types))
        requests.append(partial(self._pgconn.send_query_prepared, name, parameters, formats, _BINARY))
        return requests


def _raise_for_error(result: Any) -> None:
    if result.status not in _SUCCESS:
        raise psycopg.errors.error_from_result(result, "utf-8")
