"""Stores as an older version would have left them: the declared schema with something taken away, data inside."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from holdfast import types
from holdfast.store import queries
from holdfast.store.db import SessionDB
from holdfast.store.driver import SchemaPlan
from holdfast.store.sqlite import driver as sqlite_driver
from holdfast.store.sqlite import migration as sqlite_migration
from tests.faults import kill_points, steps, zygote


class Older(NamedTuple):
    """The objects that the older schema lacks or defines differently."""

    columns: tuple[tuple[str, str], ...] = ()
    tables: tuple[str, ...] = ()
    triggers: tuple[str, ...] = ()
    indexes: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # triggers that had another text


ALL_TRIGGERS = tuple(re.findall(r"CREATE TRIGGER (\w+)", queries.schema("sqlite")))

ACTS = ("memories", "inbox", "processes", "grants", "audit", "pins")
# What refers to others goes first.
MAIL = ("outbox", "arrivals", "claims", "people", "strangers", "lockouts", "links", "link_codes")
OF_MAIL = tuple(re.findall(rf"INDEX (\w+) ON (?:{'|'.join(MAIL)}) ", queries.schema("sqlite")))
TAKES_MAIL = "conversation_redacts_its_mail"
OF_ACTS = tuple(re.findall(rf"INDEX (\w+) ON (?:{'|'.join(ACTS)}) ", queries.schema("sqlite")))

OLDER: dict[str, Older] = {
    "no redaction of messages": Older(columns=(("messages", "redacted_at"),), indexes=("messages_redacted",)),
    "no metadata": Older(columns=(("conversations", "metadata"),)),
    "no acts": Older(tables=(*MAIL, *ACTS), indexes=(*OF_MAIL, *OF_ACTS), triggers=(TAKES_MAIL,)),
    "no index": Older(indexes=("conversations_by_origin", "routes_by_conversation")),
    "no triggers": Older(triggers=ALL_TRIGGERS),
    "other triggers": Older(changed=ALL_TRIGGERS[:5]),
    "much": Older(
        columns=(("messages", "redacted_at"), ("compactions", "redacted_at"), ("conversations", "redo_epoch")),
        tables=("hides", "tombstones", "leases", "budgets", *MAIL, *ACTS),
        triggers=tuple({*ALL_TRIGGERS[::2], TAKES_MAIL}),
        changed=ALL_TRIGGERS[1::4],
        indexes=("conversations_by_origin", "messages_redacted", *OF_MAIL, *OF_ACTS),
    ),
}


def populate(db: SessionDB) -> None:
    """Only what every older schema could hold."""
    steps.compacted(db, "a")
    db.append_message("a", role="user", content="after it", uid="a:5")
    db.bind_route("chat", "a", version=0)
    steps.begin(db, "b", 2)
    db.end_session("b", "done")
    db.branch("a", 3, branch_id="a-b")
    db.append_message("a-b", role="user", content="in the branch", uid="a-b:4")


def contents(db: SessionDB) -> str:
    """All there is to read, as text."""
    found: list[Any] = [db.route("chat")]
    for session in db.list_sessions(every=True):
        context = db.context(session.id)
        found += [session, db.transcript(session.id), list(context), context.summary, db.compactions(session.id)]
    return json.dumps(found, default=msgspec.to_builtins)


def make(path: Path, older: Older) -> str:
    """A store of an older schema at this path; its contents."""
    source = path.with_name("source.db")
    with SessionDB(source) as db:
        populate(db)
        before = contents(db)
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    parts = _statements(older)
    connection.execute(";\n".join(part for part in parts if "CREATE TABLE" in part))
    connection.execute(f"ATTACH '{source}' AS source")
    for (table,) in list(connection.execute("SELECT name FROM main.sqlite_schema WHERE type = 'table'")):
        if not table.startswith("sqlite_"):
            names = ", ".join(row[1] for row in connection.execute(f"PRAGMA main.table_info({table})"))
            connection.execute(f"INSERT INTO main.{table} ({names}) SELECT {names} FROM source.{table}")
    connection.execute("DETACH source")
    connection.execute(";\n".join(part for part in parts if "CREATE TABLE" not in part))
    connection.pragma("application_id", sqlite_migration.APPLICATION_ID)
    connection.pragma("user_version", 1)
    connection.execute("UPDATE meta SET value = '0' WHERE key = 'schema_revision'")
    connection.close()
    kill_points.remove(source)
    return before


def _statements(older: Older) -> list[str]:
    """The declared schema without what the older one had not."""
    kept = []
    for (kind, name), sql in _declared().items():
        gone = {"table": older.tables, "index": older.indexes, "trigger": older.triggers}[kind]
        names = [column for _, column in older.columns] + list(older.tables)
        if name in gone or (kind == "trigger" and any(re.search(rf"\b{word}\b", sql) for word in names)):
            continue
        kept.append(
            _table(sql, [column for table, column in older.columns if table == name]) if kind == "table" else sql
        )
        if name in older.changed and kind == "trigger":
            kept[-1] = f"CREATE TRIGGER {name} BEFORE DELETE ON meta BEGIN SELECT 1; END"
    return kept


def _declared() -> sqlite_migration.Entries:
    scratch = apsw.Connection(":memory:")
    scratch.execute(queries.schema("sqlite"))
    return sqlite_migration.read_schema(scratch.execute)


def _table(sql: str, gone: list[str]) -> str:
    """Without the lines that name a column, be it the column itself or a constraint."""
    first, *lines, last = sql.splitlines()
    kept = [line.rstrip(",") for line in lines if not any(re.search(rf"\b{name}\b", line) for name in gone)]
    return "\n".join([first, ",\n".join(kept), last])


NEXT = SchemaPlan(
    format=2,
    revision=SchemaPlan().revision,
    steps={
        2: [
            "ALTER TABLE routes ADD COLUMN label TEXT",
            "UPDATE routes SET label = 'from format 1: ' || key, version = version + 1",
            "UPDATE conversations SET title = upper(title)",
        ]
    },
)


def open_as_next_version(stage: zygote.Stage) -> None:
    """Open the store as the next version does."""
    sqlite_driver.SqliteDriver(stage.path, plan=NEXT).close()


def open_and_append(stage: zygote.Stage) -> None:
    """A task: each message by a new SessionDB, so that all processes create or migrate, recover and close at once."""
    for number in range(stage.args["rounds"]):
        stage.barrier.wait()
        for again in range(3):
            with SessionDB(f"{stage.path}.{number}") as db:
                create = types.NewConversation(source="race")
                db.append_message("c", role="user", content="new", uid=f"{stage.index}.{again}", create=create)
