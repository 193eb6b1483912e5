"""`holdfast db`: a PostgreSQL store is created, copied, checked and used like a file."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest

from holdfast import SessionDB
from tests.support import postgres
from tests.support.cli_process import Holdfast

SECRET = "hunter2-secret"


@pytest.fixture
def address() -> str:
    """An empty schema on a server."""
    return postgres.with_schema(postgres.dsn(), postgres.empty_schema())


def test_store_is_copied_to_a_server_and_back(holdfast: Holdfast, trip: Path, address: str, tmp_path: Path) -> None:
    over = holdfast("db", "copy", trip, address, "--json")
    assert (over.code, over.data["ok"], over.data["conversations"]) == (0, True, 3)
    back = holdfast("db", "copy", address, tmp_path / "back.db")
    assert f"digest {over.data['digest']}" in back.words
    again = holdfast("db", "copy", trip, address, "--json")
    assert (again.code, again.data["already_there"], again.data["rows"]) == (0, True, 0)
    checked = holdfast("doctor", "--db", address, "--json").data
    assert (checked["report"]["ok"], checked["report"]["messages"]) == (True, 10)
    assert checked["store"]["engine"] == "PostgreSQL"
    assert holdfast("backup", tmp_path / "copy.db", "--db", address).code == 0
    full = holdfast("restore", tmp_path / "copy.db", "--db", address, "--yes")
    assert "into an empty PostgreSQL store only" in full.failure(1)
    stores = (trip, address, tmp_path / "back.db")
    assert len({holdfast("sessions", "show", "Trip to Lisbon", "--db", place).out for place in stores}) == 1
    assert len({holdfast("sessions", "tree", "--db", place).out for place in stores}) == 1


def test_copy_is_refused_or_reports_the_differences(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    with SessionDB(tmp_path / "other.db") as db:
        db.create_session("mine", source="test")
    assert "holds data already" in holdfast("db", "copy", trip, tmp_path / "other.db").failure(1)
    assert "There is no database" in holdfast("db", "copy", tmp_path / "nothing.db", tmp_path / "new.db").failure(1)
    assert not (tmp_path / "new.db").exists()
    assert holdfast("db", "copy", trip, tmp_path / "new.db").code == 0
    with SessionDB(tmp_path / "new.db") as db:
        db.append_message("other", role="user", content="since then")
    run = holdfast("db", "copy", trip, tmp_path / "new.db", "--json")
    assert (run.code, run.data["ok"], run.data["differing"]) == (1, False, ["other"])


def test_reading_command_creates_no_store_on_a_server(holdfast: Holdfast, address: str) -> None:
    for words in (["db", "status", address], ["sessions", "list", "--db", address], ["db", "copy", address, "new.db"]):
        run = holdfast(*words)
        assert run.code == 1
        assert re.search(r"There is no store in the schema \w+ of this database\. .*`holdfast db init`", run.sentence)
    checked = holdfast("doctor", "--db", address, "--json")
    assert (checked.code, [each["kind"] for each in checked.data["findings"]]) == (1, ["store"])
    with psycopg.connect(address) as connection:
        assert connection.execute("SELECT to_regclass('meta')").fetchone() == (None,)


def test_status_and_doctor_name_settings_that_break_promises(holdfast: Holdfast, address: str) -> None:
    """The server of these tests runs without fsync."""
    assert holdfast("db", "init", address).code == 0
    run = holdfast("db", "status", address, "--json")
    status = run.data
    assert (run.code, status["engine"]) == (1, "PostgreSQL")
    assert {promise["name"] for promise in status["promises"] if not promise["holds"]} == {"P1", "P8"}
    checked = holdfast("doctor", "--db", address, "--json")
    assert (checked.code, checked.data["ok"], checked.data["report"]["ok"]) == (1, False, True)
    problems = [each for each in checked.data["findings"] if each["level"] == "problem"]
    assert {each["kind"] for each in problems} == {"promise"}
    assert "P1 and P8 would be broken when the power fails" in problems[0]["what"]
    shown = holdfast("db", "status", HOLDFAST_DB=address).out
    assert all(text in shown for text in ("P1 breaks", "fsync = off", "P2 holds"))


def test_scrub_is_separate_from_removal_and_for_the_owner(holdfast: Holdfast, address: str, role: str) -> None:
    app = address.replace(f"{postgres.USER}@", f"{role}@")
    with SessionDB(address) as db:
        db.driver.allow(role)
        for name in ("c", "d"):
            db.create_session(name, source="test")
            db.append_messages(name, [{"role": "user", "content": "the harbour is closed"}] * 2)
        db.search("harbour")
        redacted = holdfast("sessions", "redact", "c", "1", "--yes", "--json", "--db", app)
        assert (redacted.code, redacted.data["redacted"], redacted.data["scrubbed"]) == (0, True, False)
        deleted = holdfast("sessions", "delete", "d", "--yes", "--db", app)
        assert (deleted.code, "`holdfast db scrub`" in deleted.words) == (0, True)
        fixed = holdfast("doctor", "--fix", "--json", "--db", address).data
        (note,) = [each for each in fixed["findings"] if each["kind"] == "scrub"]
        assert (note["level"], "`holdfast db scrub`" in note["next"]) == ("note", True)
        assert "Only the owner of the tables" in holdfast("db", "scrub", app, "--yes").failure(1)
        assert holdfast("db", "scrub", address).code == 1
        assert holdfast("db", "scrub", address, "--yes", "--json").data == {"scrubbed": True}
        found = holdfast("doctor", "--json", "--db", address).data["findings"]
        assert [each for each in found if each["kind"] == "scrub"] == []


def test_password_is_never_shown(holdfast: Holdfast) -> None:
    address = f"postgresql://me:{SECRET}@127.0.0.1:1/store?sslpassword={SECRET}"
    commands = (["sessions", "list"], ["doctor", "--json"], ["db", "copy", address, "new.db"], ["-p", "hello"])
    runs = [holdfast(*command, HOLDFAST_DB=address) for command in (*commands, ["config", "show"])]
    assert all(SECRET not in run.out + run.err for run in runs)
    assert "127.0.0.1" in runs[0].sentence
    assert runs[0].code == 1
    assert "postgresql://me@127.0.0.1:1/store" in runs[4].out


@pytest.mark.parametrize("words", ["db status ADDRESS", "db init ADDRESS", "doctor --db ADDRESS", "-p x --db ADDRESS"])
def test_unknown_scheme_is_not_a_path(holdfast: Holdfast, tmp_path: Path, words: str) -> None:
    run = holdfast(*words.replace("ADDRESS", f"mysql://me:{SECRET}@host/db").split())
    assert run.code == 1
    assert "mysql://me@host/db is not a store address" in run.words
    assert SECRET not in run.out + run.err
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith("mysql")]
