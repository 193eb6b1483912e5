"""Create or migrate the schema of a PostgreSQL store, or check it if the role may not change it.

The declared schema is authoritative: missing objects are created, changed functions, triggers and indexes replaced, and
numbered steps convert data of an older format. Everything happens in one transaction under one lock, so that a killed
migration starts over at the next open, and of concurrent opens only one migrates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from holdfast import errors
from holdfast.store import fault_points, queries, schema_plan
from holdfast.store.postgres import catalog

logger = logging.getLogger("holdfast.store")

OLDEST = 14  # CREATE OR REPLACE TRIGGER
ENCODING = "UTF8"  # other encodings lack characters or count bytes
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")
MAX_LISTED = 5  # names in an error message
_TABLE_PARTS = ("constraint", "column")  # created with their table, not by statements of their own
_SQL = queries.load(catalog.QUERIES)


class Environment(NamedTuple):
    """The schema, role and server of a connection."""

    schema: str | None
    role: str
    server: int
    may_create: bool
    tables: list[str]
    has_meta: bool
    encoding: str


class Migration:
    """The schema of one connection, which is outside of a transaction at each call."""

    def __init__(self, execute: schema_plan.Execute, plan: schema_plan.Plan = schema_plan.PLAN) -> None:
        self._execute, self._plan = execute, plan
        self._declared = catalog.declared()

    def prepare(self, now: float) -> None:
        """Bring the schema to its declared state.

        Raises SchemaTooNew, and StoreUnusable if the server is too old, if the schema belongs to another program, or
        if something is missing that the role may not create.
        """
        env = self._environment()
        if env.tables and not env.has_meta and not env.may_create:
            self._check_privileges(env)
        labels = self._labels(env)
        self._check_compatible(env, labels)
        if not labels and not self._plan.begin:
            name = env.schema or self._one("target_schema")[0]
            raise errors.StoreUnusable(
                f"There is no store in the schema {name} of this database. Choose another with --db or HOLDFAST_DB, or "
                "create one with `holdfast db init`; storing the first message creates it, too."
            )
        current = env.schema is not None and self._is_current(labels)
        if env.may_create and current:  # the owner of the tables has every privilege
            return
        if env.schema is not None and not env.may_create:
            if not current:
                self._check(env, labels)
            self._check_privileges(env)
            return
        self._in_transaction(env.schema or self._new_schema(), lambda: self._migrate(now))
        fault_points.reach("migrate", "committed")

    def faults(self) -> list[schema_plan.Fault]:
        """Return the differences from the declared schema."""
        env = self._environment()
        return self._faults(env, self._labels(env))

    def violations(self) -> list[str]:
        """Return the constraints that rows violate."""
        query = catalog.violations_query(self._recorded(self._environment()))
        return [f"{found} rows break {name}" for name, found in self._execute(query)] if query else []

    def repair(self, now: float) -> None:
        """Recreate what is missing, disabled or changed. Fails with a constraint that existing rows violate."""

        def work() -> None:
            env = self._environment()
            recorded = self._recorded(env)
            self._migrate(now)
            self._run(list(_recreate_constraints(recorded, self._definitions())))
            self._record(env.server, now, self._definitions())

        self._in_transaction(self._environment().schema or "", work)

    def allow(self, role: str) -> list[str]:
        """Let a role use the store without changing its schema. Return the statements that were executed."""
        if not list(self._execute("SELECT 1 FROM pg_roles WHERE rolname = %(role)s", {"role": role})):
            raise errors.StoreUnusable(f"There is no role {errors.shown(role)} on this server. Create it: CREATE ROLE.")
        schema = str(self._environment().schema)
        statements = grants(role, schema)

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

    def _environment(self) -> Environment:
        return Environment(*self._one("environment", **self._declared.parameters))

    def _labels(self, env: Environment) -> dict[str, str]:
        return {row[0]: row[1] for row in self._rows("labels")} if env.has_meta else {}

    def _recorded(self, env: Environment) -> catalog.Definitions:
        rows = list(self._rows("recorded")) if env.has_meta else []
        return catalog.decode(rows[0][0]) if rows else {}

    def _definitions(self) -> catalog.Definitions:
        return catalog.read_definitions(self._execute, self._declared)

    def _cookie(self) -> str:
        return str(self._one("cookie", **self._declared.parameters)[0])

    def _is_current(self, labels: dict[str, str]) -> bool:
        """The cheap check of every open."""
        format_, revision = int(labels.get("schema_format", 0)), self._revision(labels)
        outdated = format_ < self._plan.format or revision < self._plan.revision
        return not outdated and labels.get("schema_cookie") == self._cookie()

    @staticmethod
    def _revision(labels: dict[str, str]) -> int:
        return int(labels.get("schema_revision", 0))

    def _faults(self, env: Environment, labels: dict[str, str]) -> list[schema_plan.Fault]:
        return catalog.faults(
            self._definitions(),
            self._recorded(env),
            self._declared,
            newer=self._revision(labels) > self._plan.revision,
            same_server=labels.get("schema_server") == str(env.server),
        )

    # --- checks ---------------------------------------------------------------------------------------

    def _check_compatible(self, env: Environment, labels: dict[str, str]) -> None:
        if env.server < OLDEST:
            raise errors.StoreUnusable(f"This server is PostgreSQL {env.server}; at least {OLDEST} is needed.")
        if env.encoding != ENCODING:
            raise errors.StoreUnusable(
                f"This database stores text as {env.encoding}, which lacks characters that messages may contain. "
                f"Create another: createdb --template=template0 --encoding={ENCODING} holdfast"
            )
        if env.tables and "schema_format" not in labels:
            raise errors.StoreUnusable(
                f"The schema {env.schema} holds tables of another program ({_list(env.tables)}). Use a separate schema "
                "for Holdfast: add ?options=-csearch_path%3Dholdfast to the address."
            )
        found = int(labels.get("schema_format", 0))
        if found > self._plan.format:
            raise errors.SchemaTooNew(found, self._plan.format)

    def _check(self, env: Environment, labels: dict[str, str]) -> None:
        """Check the schema for a role that may not change it."""
        if not labels:
            raise errors.StoreUnusable(
                f"The schema {env.schema} holds no store, and the role {env.role} may not create one. {_init(env.role)}"
            )
        if int(labels["schema_format"]) < self._plan.format:
            raise errors.StoreUnusable(
                f"The store in the schema {env.schema} has format {labels['schema_format']}, this Holdfast needs "
                f"{self._plan.format}, and the role {env.role} may not migrate it. {_init(env.role)}"
            )
        found = self._faults(env, labels)
        missing = [str(fault) for fault in found if fault.what == schema_plan.MISSING]
        if missing:
            raise errors.StoreUnusable(
                f"In the schema {env.schema}, {_list(missing)}; the role {env.role} may not create it. "
                f"{_init(env.role)}"
            )
        for fault in found:
            logger.warning("In the database %s; the role %s may not recreate it.", fault, env.role)

    def _missing_privileges(self, role: str) -> list[str]:
        rows = self._rows(
            "missing_privileges", role=role, privileges=list(PRIVILEGES), tables=self._declared.names("table")
        )
        return [f"{privilege} on {table}" for privilege, table in rows]

    def _check_privileges(self, env: Environment) -> None:
        if missing := self._missing_privileges(env.role):
            raise errors.StoreUnusable(
                f"The role {env.role} lacks privileges in the schema {env.schema}: {_list(missing)}. {_init(env.role)}"
            )

    def _new_schema(self) -> str:
        """Return the schema that the address names and that does not exist yet."""
        name, may_create, role = self._one("target_schema")
        if not may_create:
            raise errors.StoreUnusable(
                f"There is no schema {name}, and the role {role} may not create one in this database. {_init(role)}"
            )
        return str(name)

    # --- changes --------------------------------------------------------------------------------------

    def _in_transaction(self, schema: str, work: Callable[[], None]) -> None:
        self._execute("BEGIN")
        try:
            self._rows("lock", schema=schema)
            if not list(self._rows("schema_exists", schema=schema)):
                self._execute(f"CREATE SCHEMA {catalog.quote(schema)}")
            work()
            fault_points.reach("migrate", "committing")
            self._execute("COMMIT")
        except BaseException:
            self._execute("ROLLBACK")
            raise

    def _migrate(self, now: float) -> None:
        """Migrate under the lock, unless another process has done so meanwhile."""
        env, plan = self._environment(), self._plan
        labels = self._labels(env)
        self._check_compatible(env, labels)
        if labels and self._is_current(labels):
            return
        if labels:
            self._lock_tables(env)
        known = int(labels.get("schema_format", plan.format))
        self._run(step for number in range(known + 1, plan.format + 1) for step in plan.steps.get(number, ()))
        faults = self._faults(env, labels)
        newer = self._revision(labels) > plan.revision
        found, recorded = (self._definitions(), self._recorded(env)) if labels else ({}, {})
        for statement in self._declared.statements:
            here = statement._replace(sql=catalog.qualify(statement.sql, str(env.schema)))
            self._run(list(self._changes(here, found, recorded, newer)))
        if labels.get("schema_revision") == str(plan.revision):
            # The same version made this schema, so another program changed it.
            for fault in faults:
                if fault.repairable and fault.kind not in _TABLE_PARTS:
                    logger.warning("In the database %s; it is recreated.", fault)
        # Missing constraints stay recorded until a repair. Objects that only an older version declares are forgotten,
        # but not dropped: a process of that version may still run.
        kept = {
            key: text for key, text in recorded.items() if newer or key[0] in _TABLE_PARTS or self._declared.has(key)
        }
        # A changed constraint keeps its recorded definition.
        now_there = self._definitions().items()
        kept |= {key: recorded.get(key, text) if key[0] in _TABLE_PARTS else text for key, text in now_there}
        self._record(env.server, now, kept)

    def _lock_tables(self, env: Environment) -> None:
        """Lock all tables at once, `conversations` first: there every writer starts, before it holds any lock."""
        first = "conversations"
        if first in env.tables:
            self._execute(f"LOCK TABLE {first} IN EXCLUSIVE MODE")
        rest = [catalog.quote(name) for name in self._declared.names("table") if name in env.tables and name != first]
        self._execute(f"LOCK TABLE {', '.join(rest)} IN SHARE ROW EXCLUSIVE MODE")

    def _changes(
        self, statement: catalog.Statement, found: catalog.Definitions, recorded: catalog.Definitions, newer: bool
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
            for column, definition in schema_plan.columns(sql):
                if ("column", column, name) not in found:
                    yield f"ALTER TABLE {name} ADD COLUMN {definition}"
        elif not newer:  # else the object of the newer version is kept
            yield from self._replace(statement, changed=recorded.get(key, found[key]) != found[key])

    def _replace(self, statement: catalog.Statement, *, changed: bool) -> Iterator[str]:
        kind, name, _, sql = statement
        if kind == "function" and not self._one("function_is_used", name=name)[0]:
            yield f"DROP FUNCTION {name}"  # CREATE OR REPLACE cannot change the parameters
        if kind != "index":
            yield sql.replace("CREATE", "CREATE OR REPLACE", 1)
        elif changed:
            yield f"DROP INDEX {name}"
            yield sql

    def _record(self, server: int, now: float, definitions: catalog.Definitions) -> None:
        """Write the labels of the schema to `meta`."""
        revision = max(self._plan.revision, self._revision(dict(self._rows("labels"))))
        for key, value in (("created_at", repr(now)), ("generation", "1")):
            self._rows("label_insert", key=key, value=value)
        for key, value in (
            ("schema_format", str(self._plan.format)),
            ("schema_revision", str(revision)),
            ("schema_server", str(server)),
            ("schema_shape", catalog.encode(definitions)),
            ("schema_cookie", self._cookie()),
        ):
            self._rows("label_delete", key=key)
            self._rows("label_insert", key=key, value=value)
        fault_points.reach("migrate", "labels")

    def _run(self, statements: Iterable[str]) -> None:
        for statement in statements:
            self._execute(statement)
            fault_points.reach("migrate", " ".join(statement.split()[:3]))


def _recreate_constraints(recorded: catalog.Definitions, found: catalog.Definitions) -> Iterator[str]:
    for key, text in recorded.items():
        kind, name, table = key
        if kind != "constraint" or found.get(key) == text:
            continue
        if key in found:
            yield f"ALTER TABLE {table} DROP CONSTRAINT {catalog.quote(name)}"
        yield f"ALTER TABLE {table} ADD CONSTRAINT {catalog.quote(name)} {text}"


def _init(role: str) -> str:
    return f"Run as a role that may: holdfast db init ADDRESS --role {role}"


def _list(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def grants(role: str, schema: str) -> list[str]:
    """Return the GRANTs for a role that reads and writes rows and may not change the schema."""
    grantee, owner = catalog.quote(role), catalog.quote(schema)

    def qualified(names: Iterable[str]) -> str:
        return ", ".join(f"{owner}.{catalog.quote(name)}" for name in names)

    tables, functions = (qualified(catalog.declared().names(kind)) for kind in ("table", "function"))
    return [
        f"GRANT USAGE ON SCHEMA {owner} TO {grantee}",
        f"GRANT {', '.join(PRIVILEGES)} ON TABLE {tables} TO {grantee}",
        # UPDATE: a copy sets the sequences.
        f"GRANT USAGE, SELECT, UPDATE ON SEQUENCE {qualified(sequences())} TO {grantee}",
        f"GRANT EXECUTE ON FUNCTION {functions} TO {grantee}",
    ]


def sequences() -> list[str]:
    """Return the sequences of the identity columns."""
    return [
        f"{each.name}_{name}_seq"
        for each in catalog.declared().statements
        if each.kind == "table"
        for name, definition in schema_plan.columns(each.sql)
        if " AS IDENTITY" in definition
    ]
