"""`sessions title`, `delete`, `redact` and `prune`: they show what they would remove, and ask first."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from holdfast import SessionDB, types
from holdfast.store.driver import Tx
from holdfast.tools.shell import process_folders
from tests.cli.conftest import ALL, BRANCH, TRIP, conversation_ids
from tests.support import pty_terminal
from tests.support.cli_process import Configure, Holdfast, Run


def files_with(folder: Path, text: bytes) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and text in path.read_bytes()]


def test_title_is_set_shown_and_cleared(sessions: Holdfast) -> None:
    title = partial(sessions, "title")
    assert title("other", "Notes").code == 0
    assert title("other").out == "Notes\n"
    assert title("Notes", "--clear", "--json").data["title"] is None
    assert title("other").out == "\n"
    assert TRIP in title("other", "Trip to Lisbon").failure(1)
    assert title("other", "x", "--clear").code == 2


def test_delete_asks_first_and_leaves_no_byte(sessions: Holdfast, trip: Path, tmp_path: Path) -> None:
    done = sessions("delete", "other", BRANCH)
    assert done.code == 1
    assert [line.split()[0] for line in done.out.splitlines()] == ["other", BRANCH]
    assert "--yes" in done.err
    data = sessions("delete", "other", "--json").data
    assert data == {"deleted": False, "scrubbed": False, "conversations": ["other"], "copies": []}
    assert conversation_ids(trip) == ALL
    assert sessions("delete", BRANCH, "--yes").code == 0
    assert conversation_ids(trip) == {TRIP, "other"}
    assert files_with(tmp_path, b"only in the branch") == []


@pytest.mark.parametrize("how", ["delete", "redact"])
def test_removal_deletes_output_of_its_processes_only(sessions: Holdfast, trip: Path, tmp_path: Path, how: str) -> None:
    folder = Path(process_folders.store_folder(str(tmp_path / "data"), str(trip)))
    with SessionDB(trip) as db:
        for name, here in (("p1", TRIP), ("p2", "other")):
            (folder / name).mkdir(parents=True, mode=0o700)
            (folder / name / "out.0").write_text("the key is 17")
            call = {"id": name, "name": "start_process", "arguments": {"command": f"make {name}"}}
            db.append_message(here, role="assistant", tool_calls=[call])
            place = {"folder": "/", "started_at": 1.0, "place": "{}"}
            db.processes.record_start(types.Process(id=name, conversation_id=here, command=f"make {name}", **place))
            db.processes.record_end(name, "exited", 0, "it ended")
        seq = db.conversation(TRIP).last_seq
    names = [TRIP, BRANCH] if how == "delete" else [TRIP, str(seq)]
    assert sessions(how, *names, "--yes").code == 0
    assert [path.relative_to(folder) for path in folder.rglob("out.0")] == [Path("p2/out.0")]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [(["other", TRIP], f"are branches of {TRIP}: {BRANCH}"), (["other", "Trip to"], "no session 'Trip to'")],
    ids=["branch", "part of a title"],
)
@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
def test_delete_is_atomic(sessions: Holdfast, trip: Path, names: list[str], sentence: str, form: list[str]) -> None:
    assert sentence in sessions("delete", *names, "--yes", *form).failure(1)
    assert conversation_ids(trip) == ALL


def test_removal_names_the_copies_of_earlier_restores(on_trip: Holdfast, sessions: Holdfast, tmp_path: Path) -> None:
    on_trip("backup", tmp_path / "copy.db")
    on_trip("restore", tmp_path / "copy.db", "--yes")
    (kept,) = tmp_path.glob("trip.db-before-restore-*.db")
    assert sessions("delete", "other", "--yes", "--json").data["copies"] == [str(kept)]
    assert str(kept) in sessions("redact", TRIP, "1", "--yes").words


def test_scrub_that_a_reader_blocks_is_finished_by_doctor(on_trip: Holdfast, sessions: Holdfast, trip: Path) -> None:
    with SessionDB(trip) as db:

        def read(tx: Tx) -> Run:
            tx.all("fsck_conversations")
            return sessions("delete", BRANCH, "--yes", "--json")

        done = db.driver.read(read)
    assert (done.code, done.data["deleted"], done.data["scrubbed"]) == (1, True, False)
    assert "doctor --fix" in done.err
    (note,) = [each for each in on_trip("doctor", "--json").data["findings"] if each["kind"] == "scrub"]
    assert note["level"] == "note"
    fixed = on_trip("doctor", "--fix", "--json").data
    assert "removed deleted and redacted text from the files" in fixed["done"]
    assert fixed["findings"] == []
    assert files_with(trip.parent, b"only in the branch") == []


def test_redact_shows_the_messages_and_removes_them(sessions: Holdfast, trip: Path, tmp_path: Path) -> None:
    shown = sessions("redact", TRIP, "3", "1")
    assert (shown.code, shown.out.splitlines()) == (1, ["1  user  message 1", "3  user  message 3"])
    done = sessions("redact", TRIP, "3", "1", "--yes", "--json")
    assert done.data == {"redacted": True, "scrubbed": True, "conversation": TRIP, "seqs": [1, 3], "copies": []}
    assert sessions("redact", TRIP, "3").out == "3  user  [already redacted]\n"
    assert "99" in sessions("redact", TRIP, "2", "99", "--yes", "--json").failure(1)
    with SessionDB(trip) as db:
        assert [message.seq for message in db.transcript(TRIP) if message.redacted] == [1, 3]
    assert files_with(tmp_path, b"message 3") == []


def test_redact_removes_titles_with_words_of_the_text(sessions: Holdfast, trip: Path, tmp_path: Path) -> None:
    with SessionDB(trip) as db:
        db.create_session("bank", source="test", title="My password is hunter2")
        db.append_message("bank", role="user", content="My password is hunter2 for the bank")
        db.branch("bank", branch_id="branch")
    shown = sessions("redact", "bank", "1")
    assert "The title is removed, too, because it contains words of the text: My password is hunter2\n" in shown.out
    assert "My password is hunter2 #2" in shown.out
    assert sessions("redact", "bank", "1", "--yes", "--json").code == 0
    assert files_with(tmp_path, b"hunter2") == []


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("sessions", "delete", "other"), "other  1 message"),
        (("sessions", "redact", TRIP, "3"), "3  user  message 3"),
        (("sessions", "prune", "--older-than", "0"), "1 message  "),
        (("restore", "copy.db"), "which will be replaced"),
    ],
    ids=["delete", "redact", "prune", "restore"],
)
def test_confirmation_on_a_terminal_lists_the_conversations_to_remove(
    on_trip: Holdfast, trip: Path, tmp_path: Path, command: tuple[str, ...], shown: str
) -> None:
    on_trip("backup", "copy.db")
    with pty_terminal.open_terminal(tmp_path, *command, "--json", "--db", trip, columns=200) as screen:
        screen.wait_for(shown)
        screen.wait_for("[y/N]")
        screen.type("n\r")
        assert screen.end() == 1
    assert conversation_ids(trip) == ALL
    assert shown not in on_trip(*command, "--json").err, "a program reads the JSON"


def test_prune_without_yes_lists_removed_and_kept_conversations(sessions: Holdfast, trip: Path, tmp_path: Path) -> None:
    with SessionDB(trip) as db:
        db.bind_route("chat", "other", version=0)
    done = sessions("prune", "--older-than", "0")
    assert done.code == 1
    shown = {line.split()[0]: line for line in done.out.splitlines()}
    assert "kept: a branch reads from it" in shown[TRIP]
    assert "kept: a route is bound to it" in shown["other"]
    assert "delete" in shown[BRANCH]
    assert conversation_ids(trip) == ALL
    assert not (tmp_path / "archive").exists()


def test_prune_archives_removed_conversations(sessions: Holdfast, trip: Path, tmp_path: Path) -> None:
    assert sessions("prune", "--older-than", "0", "--yes").code == 0
    assert conversation_ids(trip) == {TRIP}
    (archive,) = (tmp_path / "archive").glob("trip-*.jsonl")
    with SessionDB(tmp_path / "new.db") as other, archive.open() as file:
        assert other.admin.import_from(file).ok
    assert conversation_ids(tmp_path / "new.db") == ALL
    options = ["--max-size", "0kb", "--archive", "a.jsonl", "--yes", "--json"]
    data = sessions("prune", *options).data
    assert (data["pruned"], data["report"]["removed"]) == (True, [TRIP])
    assert os.path.exists(tmp_path / "a.jsonl")


def test_prune_uses_the_settings(sessions: Holdfast, trip: Path, home: Path, configure: Configure) -> None:
    configure('[retention]\nolder_than_days = 0\nmax_size = "1GB"\narchive = "old"\n')
    assert str(home / "old") in sessions("prune").err
    assert conversation_ids(trip) == ALL
    assert sessions("prune", "--yes").code == 0
    assert conversation_ids(trip) < ALL
    assert list((home / "old").glob("*.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--max-size", "10GB"], 0), ([], 2), (["--max-size", "lots"], 2), (["--older-than", "-1"], 2)],
)
def test_prune_within_limits_removes_nothing(sessions: Holdfast, trip: Path, arguments: list[str], code: int) -> None:
    done = sessions("prune", *arguments, "--yes")
    assert (done.code, done.out) == (code, "")
    assert conversation_ids(trip) == ALL
