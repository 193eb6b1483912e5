"""The commands that keep and remove: what would go is shown first, and nothing goes unasked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB, config, errors, types
from holdfast.cli import console, sessions_edit
from holdfast.store import store_meta
from holdfast.store.driver import Tx
from holdfast.tools.shell import process_folders
from tests.cli.conftest import BRANCH, TRIP
from tests.support import cli_process, pty_terminal

Holdfast = Callable[..., cli_process.Run]


def ids(path: Path) -> set[str]:
    with SessionDB(path) as db:
        assert db.admin.fsck().ok
        return {session.conversation_id for session in db.list_sessions()}


EVERY = {TRIP, BRANCH, "other"}


# --- backup and restore --------------------------------------------------------------------------------------


def test_backup_says_what_it_has(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = holdfast("backup", tmp_path / "b" / "copy.db", "--db", trip)
    assert done.code == 0
    assert "3 conversations with 10 messages" in done.out
    data = holdfast("backup", tmp_path / "b" / "copy.db", "--db", trip, "--json").data
    assert (data["conversations"], data["messages"], data["path"]) == (3, 10, str(tmp_path / "b" / "copy.db"))


def test_backup_over_something_else_is_one_sentence(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("precious")
    done = holdfast("backup", tmp_path / "letter", "--db", trip)
    assert done.code == 1
    assert "not a backup" in done.sentence
    assert (tmp_path / "letter").read_text() == "precious"
    assert holdfast("backup", tmp_path / "letter", "--overwrite", "--db", trip).code == 0


def test_backups_go_to_the_folder_of_the_settings_and_only_when_due(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text('[backup]\nfolder = "copies"\nevery_hours = 24\nkeep = 2\n', encoding="utf-8")
    env = {"HOLDFAST_HOME": str(home), "HOLDFAST_DB": str(trip)}
    assert holdfast("backup", "--if-due", **env).code == 0
    (made,) = (home / "copies").glob("*.db")
    again = holdfast("backup", "--if-due", **env)
    assert (again.code, again.out) == (0, "")
    assert "No backup is due" in again.err
    assert holdfast("backup", "--if-due", "--json", **env).data == {"due": False}
    assert holdfast("backup", **env).code == 0
    assert holdfast("backup", "elsewhere.db", "--if-due", **env).code == 2
    with SessionDB(trip) as db:
        assert db.admin.check_backup(made).ok


def test_backup_that_is_asked_for_is_made_though_another_was_begun(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "config.toml").write_text('[backup]\nfolder = "copies"\n', encoding="utf-8")
    with SessionDB(trip) as db:
        db.driver.write("meta", lambda tx: tx.run("meta_set", key=store_meta.BACKUP_CLAIMED, value=repr(time.time())))
    assert holdfast("backup", "--if-due", "--json", "--db", trip).data == {"due": False}
    done = holdfast("backup", "--json", "--db", trip)
    assert (done.code, done.data["conversations"]) == (0, 3)
    assert os.path.exists(done.data["path"])


def test_backup_without_a_target_or_a_folder_is_exit_2(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("backup", "--db", trip)
    assert done.code == 2
    assert "Name a TARGET" in done.sentence


def test_restore_without_yes_says_what_would_go_and_changes_nothing(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    holdfast("backup", tmp_path / "copy.db", "--db", trip)
    holdfast("sessions", "delete", "other", "--yes", "--db", trip)
    done = holdfast("restore", tmp_path / "copy.db", "--db", trip)
    assert done.code == 1
    assert "3 conversations with 10 messages" in done.out
    assert "2 conversations with 9 messages, which will be replaced" in done.out
    assert "--yes" in done.err
    assert ids(trip) == {TRIP, BRANCH}
    data = holdfast("restore", tmp_path / "copy.db", "--db", trip, "--json").data
    assert (data["restored"], data["backup"]["conversations"], data["store"]["conversations"]) == (False, 3, 2)


def test_restore_brings_back_and_keeps_what_was_there(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    holdfast("backup", tmp_path / "copy.db", "--db", trip)
    holdfast("sessions", "delete", "other", "--yes", "--db", trip)
    done = holdfast("restore", tmp_path / "copy.db", "--yes", "--db", trip)
    assert done.code == 0
    assert "and restored: other" in done.out
    assert ids(trip) == EVERY
    (kept,) = tmp_path.glob("trip.db-before-restore-*.db")
    assert ids(kept) == {TRIP, BRANCH}


def test_what_an_earlier_restore_kept_is_never_replaced(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    holdfast("backup", tmp_path / "copy.db", "--db", trip)
    whole, now = (tmp_path / "copy.db").read_bytes(), time.time()
    stamps = [time.strftime("%Y%m%d-%H%M%S", time.gmtime(now + second)) for second in range(cli_process.PATIENCE)]
    earlier = [tmp_path / f"trip.db-before-restore-{stamp}.db" for stamp in stamps]
    for path in earlier:
        path.write_bytes(whole)
    holdfast("sessions", "delete", "other", "--yes", "--db", trip)
    done = holdfast("restore", tmp_path / "copy.db", "--yes", "--json", "--db", trip)
    kept = Path(done.data["kept"])
    assert kept.name.endswith("-2.db")
    assert all(path.read_bytes() == whole for path in earlier)
    assert ids(kept) == {TRIP, BRANCH}


def test_restore_that_cannot_keep_what_is_there_leaves_nothing_beside_it(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    holdfast("backup", tmp_path / "copy.db", "--db", trip)
    with SessionDB(trip) as db:
        db.driver._writer.execute(
            "DROP TRIGGER message_is_only_redacted; UPDATE messages SET body = '{}' WHERE seq = 1"
        )
    done = holdfast("restore", tmp_path / "copy.db", "--yes", "--db", trip)
    assert (done.code, "--no-keep" in done.err) == (1, True)
    assert list(tmp_path.glob("trip.db-before-restore-*")) == []
    assert holdfast("restore", tmp_path / "copy.db", "--yes", "--no-keep", "--db", trip).code == 0
    assert ids(trip) == EVERY


def test_restore_says_when_the_backup_was_made_not_when_its_file_was_touched(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    with SessionDB(trip, clock=lambda: 1_700_000_000.0) as db:
        db.admin.backup(copy)
    os.utime(copy, (1_000_000_000, 1_000_000_000))
    assert f"{copy} was made 2023-11-14" in holdfast("restore", copy, "--db", trip).out.replace("\n", " ")
    told = holdfast("restore", trip, "--db", tmp_path / "new.db").out.replace("\n", " ")
    assert f"{trip} is a store, not a backup" in told


def test_restore_makes_a_store_that_was_not_there_only_when_asked(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    holdfast("backup", tmp_path / "copy.db", "--db", trip)
    assert holdfast("restore", tmp_path / "copy.db", "--db", tmp_path / "new.db").code == 1
    assert not (tmp_path / "new.db").exists()
    data = holdfast("restore", tmp_path / "copy.db", "--yes", "--json", "--db", tmp_path / "new.db").data
    assert (data["restored"], data["kept"], data["generation"]) == (True, None, 2)
    assert ids(tmp_path / "new.db") == EVERY


@pytest.mark.parametrize("what", ["nothing", "text", "half a backup"])
def test_restore_from_what_is_no_backup_is_one_sentence(
    holdfast: Holdfast, trip: Path, tmp_path: Path, what: str
) -> None:
    copy = tmp_path / "copy.db"
    if what == "half a backup":
        holdfast("backup", copy, "--db", trip)
        copy.write_bytes(copy.read_bytes()[:40960])
    elif what == "text":
        copy.write_text("hello")
    done = holdfast("restore", copy, "--yes", "--db", trip)
    assert done.code == 1
    assert str(copy) in done.sentence
    assert "doctor" not in done.sentence, "it is not the store that is damaged"
    assert ids(trip) == EVERY


# --- titles --------------------------------------------------------------------------------------------------


def test_title_is_set_shown_and_taken_away(holdfast: Holdfast, trip: Path) -> None:
    assert holdfast("sessions", "title", "other", "Notes", "--db", trip).code == 0
    assert holdfast("sessions", "title", "other", "--db", trip).out == "Notes\n"
    assert holdfast("sessions", "title", "Notes", "--clear", "--json", "--db", trip).data["title"] is None
    assert holdfast("sessions", "title", "other", "--db", trip).out == "\n"


def test_title_that_is_taken_is_one_sentence(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "title", "other", "Trip to Lisbon", "--db", trip)
    assert done.code == 1
    assert TRIP in done.sentence
    assert holdfast("sessions", "title", "other", "x", "--clear", "--db", trip).code == 2


# --- removing ------------------------------------------------------------------------------------------------


def test_delete_without_yes_shows_what_would_go(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "delete", "other", BRANCH, "--db", trip)
    assert done.code == 1
    assert [line.split()[0] for line in done.out.splitlines()] == ["other", BRANCH]
    assert "--yes" in done.err
    assert ids(trip) == EVERY
    assert holdfast("sessions", "delete", "other", "--json", "--db", trip).data == {
        "deleted": False,
        "scrubbed": False,
        "conversations": ["other"],
        "copies": [],
    }


def test_delete_leaves_no_byte_of_the_text(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = holdfast("sessions", "delete", BRANCH, "--yes", "--db", trip)
    assert done.code == 0
    assert ids(trip) == {TRIP, "other"}
    for path in tmp_path.glob("trip.db*"):
        assert b"only in the branch" not in path.read_bytes()


@pytest.mark.parametrize("how", ["delete", "redact"])
def test_what_processes_wrote_goes_at_once_and_nothing_else_does(
    holdfast: Holdfast, trip: Path, tmp_path: Path, how: str
) -> None:
    home = Path(process_folders.store_folder(str(tmp_path / "data"), str(trip)))
    with SessionDB(trip) as db:
        for name, here in (("p1", TRIP), ("p2", "other")):
            folder = home / name
            folder.mkdir(parents=True, mode=0o700)
            (folder / "out.0").write_text("the key is 17")
            call = {"id": name, "name": "start_process", "arguments": {"command": f"make {name}"}}
            db.append_message(here, role="assistant", tool_calls=[call])
            db.processes.record_start(
                types.Process(
                    id=name, conversation_id=here, command=f"make {name}", folder="/", started_at=1.0, place="{}"
                )
            )  # fmt: skip
            db.processes.record_end(name, "exited", 0, "it ended")
        seq = db.conversation(TRIP).last_seq
    which = [TRIP, BRANCH] if how == "delete" else [TRIP, str(seq)]
    assert holdfast("sessions", how, *which, "--yes", "--db", trip).code == 0
    assert [each.name for each in home.iterdir()] == ["p2"]
    assert (home / "p2" / "out.0").exists()


def test_delete_takes_branches_before_what_they_read_from(holdfast: Holdfast, trip: Path) -> None:
    refused = holdfast("sessions", "delete", TRIP, "--yes", "--db", trip)
    assert refused.code == 1
    assert BRANCH in refused.err
    assert ids(trip) == EVERY
    assert holdfast("sessions", "delete", TRIP, BRANCH, "--yes", "--db", trip).code == 0
    assert ids(trip) == {"other"}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_nothing_is_deleted_when_one_has_branches_nobody_named(holdfast: Holdfast, trip: Path, form: list[str]) -> None:
    done = holdfast("sessions", "delete", "other", TRIP, "--yes", *form, "--db", trip)
    assert done.code == 1
    assert f"are branches of {TRIP}: {BRANCH}" in done.sentence
    assert ids(trip) == EVERY


def test_what_went_before_one_that_got_a_branch_meanwhile_is_told_of(
    trip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = console.Console(config.Settings(home=str(trip.parent), database=str(trip), colour=False, columns=None))
    with SessionDB(trip) as db:
        assert sessions_edit._delete(out, db, ["other", TRIP]) == ["other"]
        with pytest.raises(errors.HasBranches):
            sessions_edit._delete(out, db, [TRIP])
    assert f"Not deleted: {TRIP}. " in capsys.readouterr().err
    assert ids(trip) == {TRIP, BRANCH}


def test_nothing_is_deleted_when_one_is_not_found(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "delete", "other", "nobody", "--yes", "--db", trip)
    assert done.code == 1
    assert "nobody" in done.sentence
    assert ids(trip) == EVERY


def test_deleting_twice_takes_nothing_else_whose_id_begins_the_same(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.append_message(db.create_session("other-1", source="test").id, role="user", content="stays")
    assert holdfast("sessions", "delete", "other", "--yes", "--db", trip).code == 0
    again = holdfast("sessions", "delete", "other", "--yes", "--db", trip)
    assert again.code == 1
    assert "deleted" in again.sentence
    assert ids(trip) == {TRIP, BRANCH, "other-1"}


def test_removal_names_the_copies_that_restores_left(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    holdfast("backup", tmp_path / "copy.db", "--db", trip)
    holdfast("restore", tmp_path / "copy.db", "--yes", "--db", trip)
    (kept,) = tmp_path.glob("trip.db-before-restore-*.db")
    assert holdfast("sessions", "delete", "other", "--yes", "--json", "--db", trip).data["copies"] == [str(kept)]
    assert str(kept) in holdfast("sessions", "redact", TRIP, "1", "--yes", "--db", trip).out.replace("\n", " ")


def test_removal_a_reader_keeps_from_being_scrubbed_says_so_and_doctor_finishes_it(
    holdfast: Holdfast, trip: Path
) -> None:
    with SessionDB(trip) as db:

        def read(tx: Tx) -> cli_process.Run:
            tx.all("fsck_conversations")
            return holdfast("sessions", "delete", BRANCH, "--yes", "--json", "--db", trip)

        done = db.driver.read(read)
    assert (done.code, done.data["deleted"], done.data["scrubbed"]) == (1, True, False)
    assert "doctor --fix" in done.err
    (note,) = [each for each in holdfast("doctor", "--json", "--db", trip).data["findings"] if each["kind"] == "scrub"]
    assert note["level"] == "note"
    mended = holdfast("doctor", "--fix", "--json", "--db", trip).data
    assert "removed deleted and redacted text from the files" in mended["done"]
    assert [each["kind"] for each in mended["findings"]] == []
    for path in trip.parent.glob("trip.db*"):
        assert b"only in the branch" not in path.read_bytes()


def test_redact_shows_and_removes(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = holdfast("sessions", "redact", TRIP, "3", "1", "--db", trip)
    assert done.code == 1
    assert done.out.splitlines() == ["1  user  message 1", "3  user  message 3"]
    done = holdfast("sessions", "redact", TRIP, "3", "1", "--yes", "--json", "--db", trip)
    assert done.data == {"redacted": True, "scrubbed": True, "conversation": TRIP, "seqs": [1, 3], "copies": []}
    assert holdfast("sessions", "redact", TRIP, "3", "--db", trip).out == "3  user  [already redacted]\n"
    with SessionDB(trip) as db:
        assert [message.seq for message in db.transcript(TRIP) if message.redacted] == [1, 3]
    for path in tmp_path.glob("trip.db*"):
        assert b"message 3" not in path.read_bytes()


def test_redact_shows_what_was_said_in_parts(holdfast: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:
        db.append_message("other", role="user", content=[{"type": "image", "url": "x"}])
        db.append_message(
            "other", role="user", content=[{"type": "note", "text": "It is May."}, {"type": "text", "text": "typed"}]
        )
    shown = holdfast("sessions", "redact", "other", "1", "2", "3", "--db", trip).out
    assert shown.splitlines() == ["1  user  hi", "2  user  [no text]", "3  user  typed"]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("sessions", "delete", "other"), "other  1 message"),
        (("sessions", "redact", TRIP, "3"), "3  user  message 3"),
        (("sessions", "prune", "--older-than", "0"), "1 message  "),
        (("restore", "copy.db"), "which will be replaced"),
    ],
)
def test_who_is_asked_is_shown_what_would_go_beside_json_too(
    holdfast: Holdfast, trip: Path, tmp_path: Path, command: tuple[str, ...], shown: str
) -> None:
    holdfast("backup", "copy.db", "--db", trip)
    with pty_terminal.opened(tmp_path, *command, "--json", "--db", trip, columns=200) as screen:
        screen.wait_for(shown)
        screen.wait_for("[y/N]")
        screen.type("n\r")
        assert screen.end() == 1
    assert ids(trip) == EVERY
    assert shown not in holdfast(*command, "--json", "--db", trip).err, "a program reads the JSON"


def test_redact_of_no_message_removes_nothing(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "redact", TRIP, "1", "99", "--yes", "--json", "--db", trip)
    assert done.code == 1
    assert "99" in done.sentence
    with SessionDB(trip) as db:
        assert not any(message.redacted for message in db.transcript(TRIP))


# --- pruning -------------------------------------------------------------------------------------------------


def test_prune_without_yes_shows_what_would_go_and_what_stays(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    with SessionDB(trip) as db:
        db.bind_route("chat", "other", version=0)
    done = holdfast("sessions", "prune", "--older-than", "0", "--db", trip)
    assert done.code == 1
    shown = {line.split()[0]: line for line in done.out.splitlines()}
    assert "kept: a branch reads from it" in shown[TRIP]
    assert "kept: a route is bound to it" in shown["other"]
    assert "delete" in shown[BRANCH]
    assert ids(trip) == EVERY
    assert not (tmp_path / "archive").exists()


def test_prune_archives_and_removes(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = holdfast("sessions", "prune", "--older-than", "0", "--yes", "--db", trip)
    assert done.code == 0
    assert ids(trip) == {TRIP}
    (archive,) = (tmp_path / "archive").glob("trip-*.jsonl")
    with SessionDB(tmp_path / "new.db") as other, archive.open() as file:
        assert other.admin.import_from(file).ok
    assert ids(tmp_path / "new.db") == EVERY
    data = holdfast(
        "sessions", "prune", "--max-size", "0kb", "--archive", "a.jsonl", "--yes", "--json", "--db", trip
    ).data
    assert (data["pruned"], data["report"]["removed"]) == (True, [TRIP])
    assert os.path.exists(tmp_path / "a.jsonl")


def test_prune_takes_what_the_settings_say(holdfast: Holdfast, trip: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    said = '[retention]\nolder_than_days = 0\nmax_size = "1GB"\narchive = "old"\n'
    (home / "config.toml").write_text(said, encoding="utf-8")
    env = {"HOLDFAST_HOME": str(home), "HOLDFAST_DB": str(trip)}
    shown = holdfast("sessions", "prune", **env)
    assert str(home / "old") in shown.err
    assert ids(trip) == EVERY
    assert holdfast("sessions", "prune", "--yes", **env).code == 0
    assert ids(trip) < EVERY
    assert list((home / "old").glob("*.jsonl"))


def test_prune_of_nothing_is_fine(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast("sessions", "prune", "--max-size", "10GB", "--db", trip)
    assert (done.code, done.out) == (0, "")


@pytest.mark.parametrize("arguments", [[], ["--max-size", "lots"], ["--older-than", "-1"]])
def test_prune_used_wrongly_is_exit_2(holdfast: Holdfast, trip: Path, arguments: list[str]) -> None:
    assert holdfast("sessions", "prune", *arguments, "--yes", "--db", trip).code == 2
    assert ids(trip) == EVERY


# --- titles that go with a text ------------------------------------------------------------------------------


def test_redact_says_that_the_title_goes_and_takes_it_from_every_file(
    holdfast: Holdfast, trip: Path, tmp_path: Path
) -> None:
    with SessionDB(trip) as db:
        db.create_session("bank", source="test", title="My password is hunter2")
        db.append_message("bank", role="user", content="My password is hunter2 for the bank")
        db.branch("bank", branch_id="branch")
    shown = holdfast("sessions", "redact", "bank", "1", "--db", trip)
    assert "The title is removed, too, because it contains words of the text: My password is hunter2\n" in shown.out
    assert "My password is hunter2 #2" in shown.out
    assert holdfast("sessions", "redact", "bank", "1", "--yes", "--json", "--db", trip).code == 0
    assert "hunter2" not in holdfast("sessions", "list", "--json", "--db", trip).out
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()] == []


def test_prune_says_what_stays_for_a_damaged_attachment(holdfast: Holdfast, tmp_path: Path) -> None:
    with SessionDB(tmp_path / "album.db") as db:
        blob = db.blobs.put(b"picture")
        db.create_session("album", source="test")
        db.append_message("album", role="user", content=[{"type": "image", "blob": blob.digest}])
        Path(db.blobs.files.path(blob.digest)).write_bytes(b"p?cture")
    done = holdfast("sessions", "prune", "--max-size", "0kb", "--yes", "--db", tmp_path / "album.db")
    assert "Deleted 0 conversations" in done.out
    assert "album was kept: it changed or is needed now, or one of its attachments is damaged." in done.err
    assert f"The attachment {blob.digest} is missing or damaged, and is not in the archive." in done.err


def test_prune_into_a_file_of_the_store_is_one_sentence(holdfast: Holdfast, trip: Path) -> None:
    done = holdfast(
        "sessions", "prune", "--max-size", "0kb", "--archive", f"{trip}-journal", "--yes", "--json", "--db", trip
    )
    assert done.code == 1
    assert "belongs to the store itself" in done.sentence
    assert ids(trip) == EVERY


def test_delete_refuses_a_damaged_store_whose_branches_form_a_cycle() -> None:
    with pytest.raises(errors.StoreCorrupt):
        sessions_edit._branches_first({"one": {"other"}, "other": {"one"}})
