"""Makes the schema of a PostgreSQL store, or checks it when the role may not make anything.

The declared schema is the truth: missing tables, columns, indexes, functions and triggers are added, changed functions
and triggers replaced. Where data must change, numbered steps run. All of it is one transaction under one lock: killed
anywhere, the next open begins again, and of many that open at once one makes it.

A role without the right to make anything runs on a schema that `holdfast db init` made; what such a role lacks is said
with the command that brings it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from holdfast import errors
from holdfast.store import fault_points, queries, schema_plan
from holdfast.store.postgres import catalog

logger = logging.getLogger("holdfast.store")

PLAN = schema_plan.Plan()
OLDEST = 14  # CREATE OR REPLACE TRIGGER
ENCODING = "UTF8"  # another lacks characters, or counts them as bytes
RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")
NAMED = 5  # of what is missing, in a sentence
WRITERS_BEGIN = "conversations"
_WITHIN = ("constraint", "column")  # parts of a table, which no statement of their own makes
_SQL = queries.load(catalog.LOOKS)


class Ground(NamedTuple):
    """Where a connection stands, and what its role may do there."""

    schema: str | None
    role: str
    server: int
    may_make: bool
    tables: list[str]
    labelled: bool
    encoding: str


def prepare(
    execute: schema_plan.Execute, now: float, plan: schema_plan.Plan = PLAN, folder: str = catalog.FOLDER
) -> None:
    """The schema as declared, when this returns; the connection is in no transaction.

    Raises SchemaTooNew, and StoreUnusable when the server is too old, the schema another program's, or something is
    missing that this role may not make.
    """
    parts = catalog.declared(folder)
    ground = _look(execute, parts)
    if ground.tables and not ground.labelled and not ground.may_make:
        _refuse_without_rights(execute, parts, ground)  # also not to look whose they are
    labels = _labels(execute, ground)
    _refuse(ground, labels, plan)
    if not labels and not plan.begin:
        raise errors.StoreUnusable(_nothing(execute, ground))
    if ground.schema is not None and _current(execute, parts, labels, plan):
        if not ground.may_make:  # who owns the tables has every right
            _refuse_without_rights(execute, parts, ground)
        return
    if ground.schema is not None and not ground.may_make:
        _check(execute, parts, ground, labels, plan)
        return
    _in_transaction(execute, ground.schema or _wanted(execute), lambda: _make(execute, parts, plan, now))
    fault_points.reach("migrate", "committed")


def faults(
    execute: schema_plan.Execute, plan: schema_plan.Plan = PLAN, folder: str = catalog.FOLDER
) -> list[schema_plan.Fault]:
    """Where the schema differs from the declared one."""
    parts = catalog.declared(folder)
    ground = _look(execute, parts)
    return _faults(execute, parts, ground, _labels(execute, ground), plan)


def complaints(execute: schema_plan.Execute, folder: str = catalog.FOLDER) -> list[str]:
    """Rows that break a constraint all the same."""
    ground = _look(execute, catalog.declared(folder))
    look = catalog.breaches(_recorded(execute, ground))
    return [f"{found} rows break {name}" for name, found in execute(look)] if look else []


def mend(execute: schema_plan.Execute, now: float, plan: schema_plan.Plan = PLAN, folder: str = catalog.FOLDER) -> None:
    """Make what is missing, disabled or not as declared again; a constraint that the rows break is refused."""
    parts = catalog.declared(folder)

    def mended() -> None:
        ground = _look(execute, parts)
        recorded = _recorded(execute, ground)
        _make(execute, parts, plan, now)
        _run(execute, list(_constraints(recorded, catalog.shape(execute, parts))))
        _label(execute, parts, plan, ground.server, now, catalog.shape(execute, parts))

    _in_transaction(execute, _look(execute, parts).schema or "", mended)


def grants(role: str, schema: str, folder: str = catalog.FOLDER) -> list[str]:
    """What a role without the right to make anything needs in order to run a store: rows, and nothing else."""
    parts = catalog.declared(folder)
    who, where = catalog.quoted(role), catalog.quoted(schema)

    def each(names: Iterable[str]) -> str:
        return ", ".join(f"{where}.{catalog.quoted(name)}" for name in names)

    return [
        f"GRANT USAGE ON SCHEMA {where} TO {who}",
        f"GRANT {', '.join(RIGHTS)} ON TABLE {each(parts.names('table'))} TO {who}",
        # To set one on is part of a copy.
        f"GRANT USAGE, SELECT, UPDATE ON SEQUENCE {each(sequences(folder))} TO {who}",
        f"GRANT EXECUTE ON FUNCTION {each(parts.names('function'))} TO {who}",
    ]


def sequences(folder: str = catalog.FOLDER) -> list[str]:
    """Those that number rows."""
    return [
        f"{part.name}_{name}_seq"
        for part in catalog.declared(folder).parts
        if part.kind == "table"
        for name, definition in schema_plan.columns(part.sql)
        if " AS IDENTITY" in definition
    ]


# --- looking ------------------------------------------------------------------------------------------


def _look(execute: schema_plan.Execute, parts: catalog.Declared) -> Ground:
    return Ground(*next(iter(execute(_SQL["ground"], catalog.wanted(parts)))))


def _labels(execute: schema_plan.Execute, ground: Ground) -> dict[str, str]:
    return {row[0]: row[1] for row in execute(_SQL["labels"])} if ground.labelled else {}


def _recorded(execute: schema_plan.Execute, ground: Ground) -> catalog.Shape:
    rows = list(execute(_SQL["recorded"])) if ground.labelled else []
    return catalog.read(rows[0][0]) if rows else {}


def _refuse(ground: Ground, labels: dict[str, str], plan: schema_plan.Plan) -> None:
    if ground.server < OLDEST:
        raise errors.StoreUnusable(f"This server is PostgreSQL {ground.server}; at least {OLDEST} is needed.")
    if ground.encoding != ENCODING:
        raise errors.StoreUnusable(
            f"This database keeps text as {ground.encoding}, which not every message fits into. Make one for Holdfast: "
            f"createdb --template=template0 --encoding={ENCODING} holdfast"
        )
    if ground.tables and "schema_format" not in labels:
        raise errors.StoreUnusable(
            f"The schema {ground.schema} holds tables of another program ({_some(ground.tables)}). Give Holdfast a "
            "schema of its own: add ?options=-csearch_path%3Dholdfast to the address."
        )
    found = int(labels.get("schema_format", 0))
    if found > plan.format:
        raise errors.SchemaTooNew(found, plan.format)


def _current(
    execute: schema_plan.Execute, parts: catalog.Declared, labels: dict[str, str], plan: schema_plan.Plan
) -> bool:
    """Whether nothing needs doing: the cheap look every open begins with."""
    if int(labels.get("schema_format", 0)) < plan.format or int(labels.get("schema_revision", 0)) < plan.revision:
        return False
    return labels.get("schema_cookie") == _cookie(execute, parts)


def _cookie(execute: schema_plan.Execute, parts: catalog.Declared) -> str:
    return str(next(iter(execute(_SQL["cookie"], catalog.wanted(parts))))[0])


def _faults(
    execute: schema_plan.Execute,
    parts: catalog.Declared,
    ground: Ground,
    labels: dict[str, str],
    plan: schema_plan.Plan,
) -> list[schema_plan.Fault]:
    return catalog.faults(
        catalog.shape(execute, parts),
        _recorded(execute, ground),
        parts,
        newer=int(labels.get("schema_revision", 0)) > plan.revision,
        same_words=labels.get("schema_server") == str(ground.server),
    )


# --- without the right to make ------------------------------------------------------------------------


def _check(
    execute: schema_plan.Execute,
    parts: catalog.Declared,
    ground: Ground,
    labels: dict[str, str],
    plan: schema_plan.Plan,
) -> None:
    if not labels:
        raise errors.StoreUnusable(
            f"The schema {ground.schema} holds no store, and the role {ground.role} may not make one. {_init(ground)}"
        )
    if int(labels["schema_format"]) < plan.format:
        raise errors.StoreUnusable(
            f"The store in the schema {ground.schema} is of format {labels['schema_format']}, this Holdfast writes "
            f"{plan.format}, and the role {ground.role} may not change it. {_init(ground)}"
        )
    found = _faults(execute, parts, ground, labels, plan)
    missing = [str(fault) for fault in found if fault.what == schema_plan.MISSING]
    if missing:
        raise errors.StoreUnusable(
            f"In the schema {ground.schema}, {_some(missing)}; the role {ground.role} may not make it. {_init(ground)}"
        )
    for fault in found:
        logger.warning("In the database %s; the role %s may not make it again.", fault, ground.role)
    _refuse_without_rights(execute, parts, ground)


def _refuse_without_rights(execute: schema_plan.Execute, parts: catalog.Declared, ground: Ground) -> None:
    wanted = {**catalog.wanted(parts), "rights": list(RIGHTS)}
    lacking = [f"{right} on {table}" for right, table in execute(_SQL["lacking"], wanted)]
    if lacking:
        raise errors.StoreUnusable(
            f"The role {ground.role} lacks rights in the schema {ground.schema}: {_some(lacking)}. {_init(ground)}"
        )


def _init(ground: Ground) -> str:
    return f"Let a role that may run: holdfast db init ADDRESS --role {ground.role}"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _nothing(execute: schema_plan.Execute, ground: Ground) -> str:
    name = ground.schema or next(iter(execute(_SQL["wanted"], {})))[0]
    return (
        f"There is no store in the schema {name} of this database. Name another with --db or HOLDFAST_DB; "
        "`holdfast db init` makes one, and so does the first message that is stored."
    )


# --- making -------------------------------------------------------------------------------------------


def _wanted(execute: schema_plan.Execute) -> str:
    """The schema that the address names and that is not there yet."""
    name, may, role = next(iter(execute(_SQL["wanted"], {})))
    if not may:
        raise errors.StoreUnusable(
            f"There is no schema {name}, and the role {role} may not make one in this database. "
            f"Let a role that may run: holdfast db init ADDRESS --role {role}"
        )
    return str(name)


def _in_transaction(execute: schema_plan.Execute, schema: str, work: Callable[[], None]) -> None:
    execute("BEGIN")
    try:
        execute(_SQL["lock"], {"schema": schema})
        if not _exists(execute, schema):
            execute(f"CREATE SCHEMA {catalog.quoted(schema)}")
        work()
        fault_points.reach("migrate", "committing")
        execute("COMMIT")
    except BaseException:
        execute("ROLLBACK")
        raise


def _exists(execute: schema_plan.Execute, schema: str) -> bool:
    return bool(list(execute(_SQL["there"], {"schema": schema})))


def _make(execute: schema_plan.Execute, parts: catalog.Declared, plan: schema_plan.Plan, now: float) -> None:
    """Run inside a transaction, under the lock: another may have made it meanwhile."""
    ground = _look(execute, parts)
    labels = _labels(execute, ground)
    _refuse(ground, labels, plan)
    if labels and _current(execute, parts, labels, plan):
        return
    fresh = not labels
    if not fresh:
        _lock_tables(execute, parts, ground)
    known = int(labels.get("schema_format", plan.format))
    _run(execute, (step for number in range(known + 1, plan.format + 1) for step in plan.steps.get(number, ())))
    found = _faults(execute, parts, ground, labels, plan)
    newer = int(labels.get("schema_revision", 0)) > plan.revision
    shape, recorded = ({}, {}) if fresh else (catalog.shape(execute, parts), _recorded(execute, ground))
    for part in parts.parts:
        _run(execute, list(_statements(execute, part, shape, recorded, str(ground.schema), keep=newer)))
    if labels.get("schema_revision") == str(plan.revision):
        # Not an older version's: somebody changed it. What stood behind a promise is worth a word.
        for fault in found:
            if fault.repairable and fault.kind not in ("column", "constraint"):
                logger.warning("In the database %s; it is made again.", fault)
    # What was there and is gone stays on the list: constraints are made again by mending only. What an older version
    # declared and this one does not is nobody's to miss; it stays, since such a version may still be at work.
    kept = {place: text for place, text in recorded.items() if newer or place[0] in _WITHIN or parts.of(place)}
    _label(execute, parts, plan, ground.server, now, {**kept, **_sound(catalog.shape(execute, parts), recorded)})


def _lock_tables(execute: schema_plan.Execute, parts: catalog.Declared, ground: Ground) -> None:
    """All that is about to be changed. A writer locks its conversation before anything else: it waits there, and holds
    nothing yet. Taken one by one as they are changed, each table would be waited for by who has the next."""
    there = [name for name in parts.names("table") if name in ground.tables and name != WRITERS_BEGIN]
    if WRITERS_BEGIN in ground.tables:
        execute(f"LOCK TABLE {WRITERS_BEGIN} IN EXCLUSIVE MODE")
    execute(f"LOCK TABLE {', '.join(map(catalog.quoted, there))} IN SHARE ROW EXCLUSIVE MODE")


def _sound(shape: catalog.Shape, recorded: catalog.Shape) -> catalog.Shape:
    """A constraint somebody changed is still to be what it was."""
    return {place: recorded.get(place, text) if place[0] in _WITHIN else text for place, text in shape.items()}


def _statements(
    execute: schema_plan.Execute,
    part: catalog.Part,
    shape: catalog.Shape,
    recorded: catalog.Shape,
    schema: str,
    *,
    keep: bool,
) -> Iterator[str]:
    place = (part.kind, part.name, part.table)
    there = place in shape
    sql = catalog.placed(part.sql, schema)
    if part.kind == "table" and there:
        yield from _missing_columns(part, shape)
    elif part.kind == "alter":
        if ("table", part.name, "") not in shape:
            yield sql
    elif there and part.kind == "function" and not keep:
        if not next(iter(execute(_SQL["used"], {"name": part.name})))[0]:
            yield f"DROP FUNCTION {part.name}"  # its arguments may be others now
        yield sql.replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
    elif there and part.kind == "trigger" and not keep:
        yield sql.replace("CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1)
    elif there and part.kind == "index" and not keep and shape[place] != recorded.get(place, shape[place]):
        yield f"DROP INDEX {part.name}"
        yield sql
    elif not there:
        yield sql


def _missing_columns(part: catalog.Part, shape: catalog.Shape) -> Iterator[str]:
    for name, definition in schema_plan.columns(part.sql):
        if ("column", name, part.name) not in shape:
            yield f"ALTER TABLE {part.name} ADD COLUMN {definition}"


def _constraints(recorded: catalog.Shape, found: catalog.Shape) -> Iterator[str]:
    """Those that are gone, switched off or never checked, again."""
    for place, text in recorded.items():
        kind, name, table = place
        if kind != "constraint" or found.get(place) == text:
            continue
        if place in found:
            yield f"ALTER TABLE {table} DROP CONSTRAINT {catalog.quoted(name)}"
        yield f"ALTER TABLE {table} ADD CONSTRAINT {catalog.quoted(name)} {text}"


def _label(
    execute: schema_plan.Execute,
    parts: catalog.Declared,
    plan: schema_plan.Plan,
    server: int,
    now: float,
    shape: catalog.Shape,
) -> None:
    rows = list(execute("SELECT value FROM meta WHERE key = 'schema_revision'"))
    revision = max(plan.revision, int(rows[0][0]) if rows else 0)
    for key, value in (("created_at", repr(now)), ("generation", "1")):
        execute(_SQL["label_keep"], {"key": key, "value": value})
    for key, value in (
        ("schema_format", str(plan.format)),
        ("schema_revision", str(revision)),
        ("schema_server", str(server)),
        ("schema_shape", catalog.written(shape)),
        ("schema_cookie", _cookie(execute, parts)),
    ):
        execute(_SQL["label_gone"], {"key": key})
        execute(_SQL["label_keep"], {"key": key, "value": value})
    fault_points.reach("migrate", "labels")


def _run(execute: schema_plan.Execute, statements: Iterable[str]) -> None:
    for statement in statements:
        execute(statement)
        fault_points.reach("migrate", " ".join(statement.split()[:3]))
