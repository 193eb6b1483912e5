"""Create or migrate the schema of a PostgreSQL store, or check it if the role may not change it.

The declared schema is authoritative: missing objects are created, changed functions, triggers and indexes replaced, and
numbered steps convert data of an older format. Everything happens in one transaction under one lock, so that a killed
migration starts over at the next open, and of concurrent opens only one migrates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from holdfast import errors, fault_points
from holdfast.store import queries
from holdfast.store.driver import MISSING, SCHEMA_PLAN, Execute, SchemaFault, SchemaPlan
from holdfast.store.postgres import definitions

logger = logging.getLogger("holdfast.store")

MIN_SERVER_VERSION = 14  # CREATE OR REPLACE TRIGGER
ENCODING = "UTF8"  # other encodings lack characters or count bytes
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
MAX_LISTED_NAMES = 5  # in an error message
_TABLE_PARTS = ("constraint", "column")  # created with their table, not by statements of their own
_SQL = queries.load(definitions.QUERY_FOLDER)


class SchemaState(NamedTuple):
    """The schema, role and server of a connection, and the labels that the last migration has recorded."""

    schema: str | None
    role: str
    server: int
    may_create: bool
    tables: list[str]
    has_meta: bool
    encoding: str
    labels: Mapping[str, str] = {}

    @property
    def format(self) -> int:
        return int(self.labels.get("schema_format", 0))

    @property
    def revision(self) -> int:
        return int(self.labels.get("schema_revision", 0))


class Migration:
    """Creates, checks and repairs the schema over one connection that has no transaction open."""

    def __init__(self, execute: Execute, plan: SchemaPlan = SCHEMA_PLAN) -> None:
        self._execute, self._plan = execute, plan
        self._declared = definitions.declared_schema()

    def prepare(self, now: float) -> None:
        """Bring the schema to its declared state.

        Raises SchemaTooNew, and StoreUnusable if the server is too old, if the schema belongs to another program, or
        if something is missing that the role may not create.
        """
        state = self._read_state()
        if state.tables and not state.has_meta and not state.may_create:
            self._check_privileges(state)
        self._check_compatible(state)
        if not state.labels and not self._plan.create:
            name = state.schema or self._one("target_schema")[0]
            raise errors.StoreUnusable(
                f"There is no store in the schema {name} of this database. Choose another with --db or HOLDFAST_DB, or "
                "create one with `holdfast db init`; storing the first message creates it, too."
            )
        is_current = state.schema is not None and self._is_current(state)
        if state.may_create and is_current:  # the owner of the tables has every privilege
            return
        if state.schema is not None and not state.may_create:
            if not is_current:
                self._check_complete(state)
            self._check_privileges(state)
            return
        self._in_transaction(state.schema or self._new_schema(), lambda: self._migrate(now))
        fault_points.reach("migrate", "committed")

    def faults(self) -> list[SchemaFault]:
        """Return the differences from the declared schema."""
        return self._find_faults(self._read_state())

    def violations(self) -> list[str]:
        """Return the constraints that rows violate."""
        query = definitions.violations_query(self._read_recorded(self._read_state()))
        return [f"{found} rows break {name}" for name, found in self._execute(query)] if query else []

    def repair(self, now: float) -> None:
        """Recreate what is missing, disabled or changed. Fails with a constraint that existing rows violate."""

        def work() -> None:
            state = self._read_state()
            recorded = self._read_recorded(state)
            self._migrate(now)
            self._run_statements(_recreate_constraints(recorded, self._definitions()))
            self._record(state.server, now, self._definitions())

        self._in_transaction(self._read_state().schema or "", work)

    def allow(self, role: str) -> list[str]:
        """Let a role use the store without changing its schema. Return the statements that were executed."""
        if not list(self._execute("SELECT 1 FROM pg_roles WHERE rolname = %(role)s", {"role": role})):
            raise errors.StoreUnusable(f"There is no role {errors.quote(role)} on this server. Create it: CREATE ROLE.")
        schema = str(self._read_state().schema)
        statements = grant_statements(role, schema)

        def work() -> None:
            for statement in statements:
                self._execute(statement)
            # PostgreSQL only warns about a GRANT without the right to grant.
            if self._missing_privileges(role):
                raise errors.StoreUnusable(
                    "Only the owner of the tables can grant access to them. Connect as that role."
                )

        self._in_transaction(schema, work)
        return statements

    # --- reading the catalog --------------------------------------------------------------------------

    def _rows(self, query: str, **values: Any) -> Iterable[Any]:
        return self._execute(_SQL[query], values)

    def _one(self, query: str, **values: Any) -> Any:
        return next(iter(self._rows(query, **values)))

    def _read_state(self) -> SchemaState:
        row = self._one("environment", **self._declared.parameters)
        state = SchemaState(*row)
        return state._replace(labels=dict(self._rows("labels"))) if state.has_meta else state

    def _read_recorded(self, state: SchemaState) -> definitions.Definitions:
        rows = list(self._rows("recorded")) if state.has_meta else []
        return definitions.decode(rows[0][0]) if rows else {}

    def _definitions(self) -> definitions.Definitions:
        return definitions.read_definitions(self._execute, self._declared)

    def _cookie(self) -> str:
        return str(self._one("cookie", **self._declared.parameters)[0])

    def _is_current(self, state: SchemaState) -> bool:
        """Return whether nothing has changed since the last migration; cheap, because every open checks it."""
        outdated = state.format < self._plan.format or state.revision < self._plan.revision
        return not outdated and state.labels.get("schema_cookie") == self._cookie()

    def _find_faults(self, state: SchemaState) -> list[SchemaFault]:
        return definitions.find_faults(
            self._definitions(),
            self._read_recorded(state),
            self._declared,
            newer=state.revision > self._plan.revision,
            same_server=state.labels.get("schema_server") == str(state.server),
        )

    # --- checks ---------------------------------------------------------------------------------------

    def _check_compatible(self, state: SchemaState) -> None:
        if state.server < MIN_SERVER_VERSION:
            raise errors.StoreUnusable(
                f"This server is PostgreSQL {state.server}; at least {MIN_SERVER_VERSION} is needed."
            )
        if state.encoding != ENCODING:
            raise errors.StoreUnusable(
                f"This database stores text as {state.encoding}, which lacks characters that messages may contain. "
                f"Create another: createdb --template=template0 --encoding={ENCODING} holdfast"
            )
        if state.tables and "schema_format" not in state.labels:
            raise errors.StoreUnusable(
                f"The schema {state.schema} holds tables of another program ({_join_names(state.tables)}). Use a "
                "separate schema for Holdfast: add ?options=-csearch_path%3Dholdfast to the address."
            )
        if state.format > self._plan.format:
            raise errors.SchemaTooNew(state.format, self._plan.format)

    def _check_complete(self, state: SchemaState) -> None:
        """Check the schema for a role that may not change it."""
        schema, role = state.schema, state.role
        if not state.labels:
            raise _needs_owner(f"The schema {schema} holds no store, and the role {role} may not create one", role)
        if state.format < self._plan.format:
            raise _needs_owner(
                f"The store in the schema {schema} has format {state.format}, this Holdfast needs {self._plan.format}, "
                f"and the role {role} may not migrate it",
                role,
            )
        faults = self._find_faults(state)
        if missing := [str(fault) for fault in faults if fault.what == MISSING]:
            names = _join_names(missing)
            raise _needs_owner(f"In the schema {schema}, {names}; the role {role} may not create it", role)
        for fault in faults:
            logger.warning("Schema repair needed: %s, and the role %s may not recreate it.", fault, role)

    def _missing_privileges(self, role: str) -> list[str]:
        rows = self._rows(
            "missing_privileges", role=role, privileges=list(PRIVILEGES), tables=self._declared.names("table")
        )
        return [f"{privilege} on {table}" for privilege, table in rows]

    def _check_privileges(self, state: SchemaState) -> None:
        role = state.role
        if missing := self._missing_privileges(role):
            names = _join_names(missing)
            raise _needs_owner(f"The role {role} lacks privileges in the schema {state.schema}: {names}", role)

    def _new_schema(self) -> str:
        """Return the schema that the address names and that does not exist yet."""
        name, may_create, role = self._one("target_schema")
        if not may_create:
            raise _needs_owner(
                f"There is no schema {name}, and the role {role} may not create one in this database", role
            )
        return str(name)

    # --- changes --------------------------------------------------------------------------------------

    def _in_transaction(self, schema: str, work: Callable[[], None]) -> None:
        self._execute("BEGIN")
        try:
            self._rows("lock", schema=schema)
            if not list(self._rows("schema_exists", schema=schema)):
                self._execute(f"CREATE SCHEMA {definitions.quote(schema)}")
            work()
            fault_points.reach("migrate", "committing")
            self._execute("COMMIT")
        except BaseException:
            self._execute("ROLLBACK")
            raise

    def _migrate(self, now: float) -> None:
        """Migrate under the lock, unless another process has done so meanwhile."""
        state, plan = self._read_state(), self._plan
        self._check_compatible(state)
        if state.labels and self._is_current(state):
            return
        if state.labels:
            self._lock_tables(state)
            for number in range(state.format + 1, plan.format + 1):
                self._run_statements(plan.steps.get(number, ()))
        faults = self._find_faults(state)
        newer = state.revision > plan.revision
        found, recorded = (self._definitions(), self._read_recorded(state)) if state.labels else ({}, {})
        for statement in self._declared.statements:
            qualified = statement._replace(sql=definitions.qualify(statement.sql, str(state.schema)))
            self._run_statements(list(self._changes_to(qualified, found, recorded, newer)))
        if state.revision == plan.revision:
            # The same version made this schema, so another program changed it.
            for fault in faults:
                if fault.repairable and fault.kind not in _TABLE_PARTS:
                    logger.warning("Schema repair: recreating the %s %s, which %s.", fault.kind, fault.name, fault.what)
        # Missing constraints stay recorded until a repair. Objects that only an older version declares are no longer
        # recorded, but not dropped: a process of that version may still run.
        kept = {
            key: text for key, text in recorded.items() if newer or key[0] in _TABLE_PARTS or self._declared.has(key)
        }
        # A changed constraint keeps its recorded definition.
        current = self._definitions().items()
        kept |= {key: recorded.get(key, text) if key[0] in _TABLE_PARTS else text for key, text in current}
        self._record(state.server, now, kept)

    def _lock_tables(self, state: SchemaState) -> None:
        """Lock all tables, `conversations` first: a writer locks a conversation before any other row."""
        first = "conversations"
        if first in state.tables:
            self._execute(f"LOCK TABLE {first} IN EXCLUSIVE MODE")
        rest = [
            definitions.quote(name) for name in self._declared.names("table") if name in state.tables and name != first
        ]
        self._execute(f"LOCK TABLE {', '.join(rest)} IN SHARE ROW EXCLUSIVE MODE")

    def _changes_to(
        self,
        statement: definitions.SchemaStatement,
        found: definitions.Definitions,
        recorded: definitions.Definitions,
        newer: bool,
    ) -> Iterator[str]:
        """Yield the SQL that brings one object to its declared state."""
        kind, name, table, sql = statement
        key = kind, name, table
        if kind == "alter":
            if ("table", name, "") not in found:
                yield sql
        elif key not in found:
            yield sql
        elif kind == "table":
            for column, definition in queries.columns(sql):
                if ("column", column, name) not in found:
                    yield f"ALTER TABLE {name} ADD COLUMN {definition}"
        elif not newer:  # else the object of the newer version is kept
            yield from self._replace(statement, changed=recorded.get(key, found[key]) != found[key])

    def _replace(self, statement: definitions.SchemaStatement, *, changed: bool) -> Iterator[str]:
        kind, name, _, sql = statement
        if kind == "function" and not self._one("function_is_used", name=name)[0]:
            yield f"DROP FUNCTION {name}"  # CREATE OR REPLACE cannot change the parameters
        if kind != "index":
            yield sql.replace("CREATE", "CREATE OR REPLACE", 1)
        elif changed:
            yield f"DROP INDEX {name}"
            yield sql

    def _record(self, server: int, now: float, shape: definitions.Definitions) -> None:
        """Write the labels of the schema to `meta`."""
        revision = max(self._plan.revision, int(dict(self._rows("labels")).get("schema_revision", 0)))
        for key, value in (("created_at", repr(now)), ("generation", "1")):
            self._rows("label_insert", key=key, value=value)
        for key, value in (
            ("schema_format", str(self._plan.format)),
            ("schema_revision", str(revision)),
            ("schema_server", str(server)),
            ("schema_shape", definitions.encode(shape)),
            ("schema_cookie", self._cookie()),
        ):
            self._rows("label_delete", key=key)
            self._rows("label_insert", key=key, value=value)
        fault_points.reach("migrate", "labels")

    def _run_statements(self, statements: Iterable[str]) -> None:
        for statement in statements:
            self._execute(statement)
            fault_points.reach("migrate", " ".join(statement.split()[:3]))


def _recreate_constraints(recorded: definitions.Definitions, found: definitions.Definitions) -> Iterator[str]:
    for key, text in recorded.items():
        kind, name, table = key
        if kind != "constraint" or found.get(key) == text:
            continue
        if key in found:
            yield f"ALTER TABLE {table} DROP CONSTRAINT {definitions.quote(name)}"
        yield f"ALTER TABLE {table} ADD CONSTRAINT {definitions.quote(name)} {text}"


def _needs_owner(problem: str, role: str) -> errors.StoreUnusable:
    return errors.StoreUnusable(f"{problem}. Run as a role that may: holdfast db init ADDRESS --role {role}")


def _join_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + more


def grant_statements(role: str, schema: str) -> list[str]:
    """Return the GRANTs for a role that reads and writes rows and may not change the schema."""
    grantee, owner = definitions.quote(role), definitions.quote(schema)

    def qualified(names: Iterable[str]) -> str:
        return ", ".join(f"{owner}.{definitions.quote(name)}" for name in names)

    tables, functions = (qualified(definitions.declared_schema().names(kind)) for kind in ("table", "function"))
    return [
        f"GRANT USAGE ON SCHEMA {owner} TO {grantee}",
        f"GRANT {', '.join(PRIVILEGES)} ON TABLE {tables} TO {grantee}",
        # UPDATE: a copy sets the sequences.
        f"GRANT USAGE, SELECT, UPDATE ON SEQUENCE {qualified(identity_sequences())} TO {grantee}",
        f"GRANT EXECUTE ON FUNCTION {functions} TO {grantee}",
    ]


def identity_sequences() -> list[str]:
    """Return the sequences of the identity columns."""
    return [
        f"{each.name}_{name}_seq"
        for each in definitions.declared_schema().statements
        if each.kind == "table"
        for name, definition in queries.columns(each.sql)
        if " AS IDENTITY" in definition
    ]
