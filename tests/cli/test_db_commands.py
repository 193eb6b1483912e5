"""`holdfast db`: a store on a server is made, moved, looked at and used as a file is."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from holdfast import SessionDB, fault_points
from tests.support import cli_in_process, cli_process, postgres

Holdfast = Callable[..., cli_process.Run]
SECRET = "hunter2-of-nobody"


@pytest.fixture
def holdfast(tmp_path: Path) -> Holdfast:
    """The program within this process: loading what a server needs would take longer than most of what is asked."""

    def run(*arguments: str | Path, **env: str) -> cli_process.Run:
        return cli_in_process.run(tmp_path, *map(str, arguments), env=env)

    return run


@pytest.fixture
def address() -> str:
    """An empty place on a server."""
    return postgres.with_schema(postgres.dsn(), postgres.empty_schema())


def test_a_store_moves_to_a_server_and_back_and_is_the_same(
    holdfast: Holdfast, trip: Path, address: str, tmp_path: Path
) -> None:
    over = holdfast("db", "copy", trip, address, "--json")
    assert (over.code, over.data["ok"], over.data["conversations"]) == (0, True, 3)
    back = holdfast("db", "copy", address, tmp_path / "back.db")
    assert back.code == 0, back.err
    assert f"digest {over.data['digest']}" in " ".join(back.out.split())
    stores = (trip, address, tmp_path / "back.db")
    transcripts = {holdfast("sessions", "show", "Trip to Lisbon", "--db", place).out for place in stores}
    assert len(transcripts) == 1
    again = holdfast("db", "copy", trip, address, "--json")
    assert (again.code, again.data["already_there"], again.data["rows"]) == (0, True, 0)


def test_a_copy_into_a_store_in_use_is_refused_with_a_sentence(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    with SessionDB(tmp_path / "other.db") as db:
        db.create_session("mine", source="test")
    run = holdfast("db", "copy", trip, tmp_path / "other.db")
    assert run.code == 1
    assert "holds data already" in run.sentence
    missing = holdfast("db", "copy", tmp_path / "nothing.db", tmp_path / "new.db")
    assert missing.code == 1
    assert "There is no database" in missing.sentence
    assert not (tmp_path / "new.db").exists()


def test_stores_that_differ_after_the_copy_exit_with_one_and_say_where(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    assert holdfast("db", "copy", trip, tmp_path / "new.db").code == 0
    with SessionDB(tmp_path / "new.db") as db:
        db.append_message("other", role="user", content="since then")
    run = holdfast("db", "copy", trip, tmp_path / "new.db", "--json")
    assert (run.code, run.data["ok"], run.data["differing"]) == (1, False, ["other"])


class Stopped(BaseException):
    """Where a copy would have been killed."""


def test_half_a_copy_is_not_taken_for_a_store(
    holdfast: Holdfast, trip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(point: str) -> None:
        if point == "copy.checked":
            raise Stopped

    with SessionDB(trip) as source, SessionDB(tmp_path / "half.db") as target, monkeypatch.context() as patch:
        patch.setattr(fault_points, "hook", stop)
        with pytest.raises(Stopped):
            source.admin.copy_to(target.admin)
    refused = holdfast("sessions", "list", "--db", tmp_path / "half.db")
    assert refused.code == 1
    assert "is an unfinished copy" in refused.sentence
    assert "is an unfinished copy" in holdfast("-p", "hello", "--db", tmp_path / "half.db").err
    assert holdfast("db", "status", tmp_path / "half.db", "--json").data["unfinished"] is True
    assert holdfast("db", "copy", trip, tmp_path / "half.db").code == 0
    assert holdfast("sessions", "list", "--db", tmp_path / "half.db").code == 0


def test_status_of_a_file_tells_what_it_holds_and_that_all_promises_hold(holdfast: Holdfast, trip: Path) -> None:
    run = holdfast("db", "status", trip, "--json")
    assert (run.code, run.data["ok"], run.data["engine"]) == (0, True, "SQLite")
    assert (run.data["conversations"], run.data["messages"]) == (3, 10)
    assert [promise["name"] for promise in run.data["promises"]] == [f"P{number}" for number in range(1, 9)]
    assert "P8 holds" in holdfast("db", "status", trip).out


def test_who_only_looks_makes_no_store_on_a_server(holdfast: Holdfast, address: str) -> None:
    for command in (
        ("db", "status", address),
        ("sessions", "list", "--db", address),
        ("db", "copy", address, "new.db"),
    ):
        run = holdfast(*command)
        assert run.code == 1
        assert re.search(r"There is no store in the schema \w+ of this database\. .*`holdfast db init`", run.sentence)
    told = holdfast("doctor", "--db", address, "--json")
    assert (told.code, [each["kind"] for each in told.data["findings"]]) == (1, ["store"])
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT to_regclass('meta')").fetchone() == (None,)


def test_status_and_doctor_name_what_breaks_which_promise_on_a_server(holdfast: Holdfast, address: str) -> None:
    """The server of these tests does not wait for its disk."""
    assert holdfast("db", "init", address).code == 0
    run = holdfast("db", "status", address, "--json")
    status = run.data
    assert (run.code, status["engine"]) == (1, "PostgreSQL")
    assert {promise["name"] for promise in status["promises"] if not promise["holds"]} == {"P1", "P8"}
    told = holdfast("doctor", "--db", address, "--json")
    assert (told.code, told.data["ok"], told.data["report"]["ok"]) == (1, False, True)
    problems = [each for each in told.data["findings"] if each["level"] == "problem"]
    breaches = {breach["remedy"] for promise in status["promises"] for breach in promise["breaches"]}
    assert {each["kind"] for each in problems} == {"promise"}
    assert {each["next"] for each in problems} == breaches
    assert "P1 and P8 would be broken when the power fails" in problems[0]["what"]
    assert [f"{each['what']} {each['next']}" for each in told.data["findings"] if each["level"] == "note"] == (
        status["notes"]
    )
    assert told.data["store"]["settings"] == status["settings"]
    assert "P1 and P8 would be broken" in " ".join(holdfast("doctor", "--db", address).out.split())
    shown = holdfast("db", "status", HOLDFAST_DB=address).out
    assert "P1 breaks" in shown
    assert "fsync = off" in shown
    assert "P2 holds" in shown


# --- a role that may not change the schema ------------------------------------------------------------------------


class Place(NamedTuple):
    """A schema of a server, as its owner reaches it and as a role does that may only use it."""

    role: str
    owner: str
    app: str


@pytest.fixture
def place() -> Iterator[Place]:
    role, schema, admin = f"r{secrets.token_hex(6)}", postgres.empty_schema(), postgres.admin()
    admin.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}")
    yield Place(role, postgres.with_schema(postgres.dsn(), schema), postgres.with_schema(postgres.dsn(), schema, role))
    admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_role_that_may_not_change_the_schema_uses_what_its_owner_made(holdfast: Holdfast, place: Place) -> None:
    talk = ("-p", "the harbour is closed", "--model", "offline", "--db", place.app)
    told = holdfast(*talk)
    assert told.code == 1
    assert f"the role {place.role} may not create one. Run as a role that may: holdfast db init" in told.err
    made = holdfast("db", "init", place.owner, "--role", place.role)
    assert made.code == 0, made.err
    assert f'TO "{place.role}";' in made.out
    assert holdfast(*talk).code == 0
    found = holdfast("sessions", "search", "harbour", "--db", place.app, "--json").data
    assert len(found["hits"]) >= 1
    status = holdfast("db", "status", place.app, "--json").data
    assert (status["role"], status["conversations"]) == (place.role, 1)
    sound = holdfast("doctor", "--db", place.app, "--json").data
    assert {each["kind"] for each in sound["findings"] if each["level"] == "problem"} == {"promise"}
    with psycopg.connect(place.app) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute("ALTER TABLE messages DISABLE TRIGGER ALL")


def test_such_a_role_is_told_of_a_schema_that_is_older_or_newer(holdfast: Holdfast, place: Place) -> None:
    assert holdfast("db", "init", place.owner, "--role", place.role).code == 0
    label = "UPDATE meta SET value = %s WHERE key = 'schema_format'"
    with psycopg.connect(place.owner, autocommit=True) as owner:
        owner.execute("DROP TABLE pins; UPDATE meta SET value = '1' WHERE key = 'schema_revision'")
        older = holdfast("sessions", "list", "--db", place.app)
        assert older.code == 1
        assert "the table pins is missing, " in older.sentence
        assert f"holdfast db init ADDRESS --role {place.role}" in older.sentence
        assert holdfast("db", "init", place.owner, "--role", place.role).code == 0
        assert holdfast("sessions", "list", "--db", place.app).code == 0
        owner.execute(label, ("2",))
        newer = holdfast("sessions", "list", "--db", place.app)
        assert newer.code == 1
        assert "schema 2" in newer.sentence
        found = holdfast("doctor", "--db", place.app, "--json").data["findings"]
        assert [(each["kind"], each["next"]) for each in found] == [
            ("version", "Upgrade Holdfast: pip install --upgrade holdfast")
        ]


def test_such_a_role_brings_a_store_over(holdfast: Holdfast, place: Place, trip: Path) -> None:
    assert holdfast("db", "init", place.owner, "--role", place.role).code == 0
    with SessionDB(trip) as db:
        db.memory.add("me", "likes tea")
        db.mail.add_inbox_entry("other", "key", "text")  # rows that the server numbers
    over = holdfast("db", "copy", trip, place.app, "--json")
    assert (over.code, over.data["ok"], over.data["conversations"]) == (0, True, 3), over.err


def test_only_the_owner_lets_a_role_in(holdfast: Holdfast, place: Place) -> None:
    with psycopg.connect(place.owner) as owner:
        owner.execute("CREATE TABLE somebody_elses (x bigint)")
    assert holdfast("db", "init", place.owner, "--role", place.role).code == 0
    assert "Only the owner" in holdfast("db", "init", place.app, "--role", "pg_monitor").sentence
    assert "no role" in holdfast("db", "init", place.owner, "--role", "nobody at all").sentence
    file = holdfast("db", "init", "new.db", "--role", place.role)
    assert file.code == 1
    assert "SQLite has no roles" in file.sentence


# --- secrets, and the rest of the program ---------------------------------------------------------------------------


def test_a_password_is_never_shown(holdfast: Holdfast, tmp_path: Path) -> None:
    asked = f"postgresql://me:{SECRET}@127.0.0.1:1/store?sslpassword={SECRET}"
    runs = [
        holdfast(*command, HOLDFAST_DB=asked)
        for command in (
            ("sessions", "list"),
            ("doctor", "--json"),
            ("db", "copy", asked, "new.db"),
            ("-p", "hello"),
            ("config", "show"),
        )
    ]
    assert all(SECRET not in run.out + run.err for run in runs)
    assert "127.0.0.1" in runs[0].sentence
    assert runs[0].code == 1
    assert "postgresql://me@127.0.0.1:1/store" in runs[4].out


def test_the_address_of_a_server_in_a_file_of_settings_is_no_path(
    holdfast: Holdfast, tmp_path: Path, address: str
) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "config.toml").write_text(f"database = '{address}'\n")
    assert holdfast("-p", "hello", "--model", "offline").code == 0
    listed = holdfast("sessions", "list", "--json").data
    assert len(listed["conversations"]) == 1
    assert listed["database"].startswith("postgresql://")
    assert not [entry for entry in tmp_path.rglob("*") if entry.name.startswith("postgresql")]


def test_an_address_of_something_else_is_no_path(holdfast: Holdfast, tmp_path: Path) -> None:
    asked = f"mysql://me:{SECRET}@host/db"
    for command in (
        ("db", "status", asked),
        ("db", "init", asked),
        ("doctor", "--db", asked),
        ("-p", "x", "--db", asked),
    ):
        run = holdfast(*command)
        assert run.code == 1
        assert "mysql://me@host/db is not a store address" in " ".join((run.out + run.err).split())
        assert SECRET not in run.out + run.err
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith("mysql")]


def test_doctor_backup_and_restore_serve_a_store_on_a_server(
    holdfast: Holdfast, trip: Path, address: str, tmp_path: Path
) -> None:
    assert holdfast("db", "copy", trip, address).code == 0
    checked = holdfast("doctor", "--db", address, "--json")
    assert (checked.data["report"]["ok"], checked.data["report"]["messages"]) == (True, 10), checked.err
    assert checked.data["store"]["engine"] == "PostgreSQL"
    kept = holdfast("backup", tmp_path / "kept.db", "--db", address)
    assert kept.code == 0, kept.err
    full = holdfast("restore", tmp_path / "kept.db", "--db", address, "--yes")
    assert full.code == 1
    assert "into an empty PostgreSQL store only" in full.sentence
    other = postgres.with_schema(postgres.dsn(), postgres.empty_schema())
    assert holdfast("restore", tmp_path / "kept.db", "--db", other, "--yes").code == 0
    assert holdfast("sessions", "tree", "--db", other).out == holdfast("sessions", "tree", "--db", trip).out


FILES = "SELECT pg_relation_filenode('messages'), pg_relation_filenode('search_words')"


def test_what_is_removed_on_a_server_makes_nobody_wait_and_says_what_stays(holdfast: Holdfast, place: Place) -> None:
    with SessionDB(place.owner) as db, psycopg.connect(place.owner, autocommit=True) as owner:
        db.driver.allow(place.role)
        for name in ("c", "d"):
            db.create_session(name, source="test")
            db.append_messages(name, [{"role": "user", "content": "the harbour is closed"}] * 2)
        db.search("harbour")
        before = owner.execute(FILES).fetchone()
        redacted = holdfast("sessions", "redact", "c", "1", "--yes", "--json", "--db", place.app)
        deleted = holdfast("sessions", "delete", "d", "--yes", "--db", place.app)
        assert (redacted.code, redacted.data["redacted"], redacted.data["scrubbed"]) == (0, True, False)
        assert deleted.code == 0
        assert "`holdfast db scrub`" in " ".join(deleted.err.split())
        assert owner.execute(FILES).fetchone() == before
        mended = holdfast("doctor", "--fix", "--json", "--db", place.owner).data
        (note,) = [each for each in mended["findings"] if each["kind"] == "scrub"]
        assert (note["level"], "`holdfast db scrub`" in note["next"]) == ("note", True)
        assert owner.execute(FILES).fetchone() == before
        refused = holdfast("db", "scrub", place.app, "--yes")
        assert refused.code == 1
        assert "Only the owner of the tables" in refused.sentence
        asked = holdfast("db", "scrub", place.owner)
        assert (asked.code, owner.execute(FILES).fetchone()) == (1, before)
        assert holdfast("db", "scrub", place.owner, "--yes", "--json").data == {"scrubbed": True}
        after = owner.execute(FILES).fetchone()
        assert all(new != old for new, old in zip(after, before, strict=True))
        found = holdfast("doctor", "--json", "--db", place.owner).data["findings"]
        assert [each for each in found if each["kind"] == "scrub"] == []
