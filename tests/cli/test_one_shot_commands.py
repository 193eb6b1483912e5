"""A slash command given with -p is executed as in a chat, and its answer is printed in three formats."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.agent import commands
from tests.support import cli_process, polling
from tests.support.cli_process import OFFLINE, Holdfast
from tests.support.provider_process import hanging_reply, serve

# Commands that need a chat.
CHATS = {"quit", "stop", "steer", "queue", "approve", "deny", "new", "reset", "resume", "link"}


@pytest.fixture
def holdfast(holdfast: Holdfast) -> Holdfast:
    return partial(holdfast, **OFFLINE)


@pytest.fixture
def talk(home: Path) -> Path:
    """A conversation that is long enough for a compaction."""
    path = home / "holdfast.db"
    with SessionDB(path) as db:
        db.create_session("talk", source="test", title="Trip", folder=str(home.parent))
        for number in range(1, 21):
            role = "user" if number % 2 else "assistant"
            db.append_message("talk", role=role, content=f"Message {number} about the trip. " * 40)
    return path


def count_messages(path: Path) -> int:
    with SessionDB(path) as db:
        return sum(head.last_seq for head in db.list_sessions())


def test_command_is_executed_and_not_sent_as_message(holdfast: Holdfast, talk: Path) -> None:
    done = holdfast("-c", "-p", "/compact here 1")
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert done.out.startswith("Compacted up to message 18")
    with SessionDB(talk) as db:
        assert len(db.compactions("talk")) == 1
        assert db.resolve("talk").last_seq == 20


def test_answer_of_a_command_is_the_same_in_every_format(holdfast: Holdfast, talk: Path) -> None:
    text = holdfast("-r", "Trip", "-p", "/recall 3")
    assert (text.code, text.err) == (0, "")
    assert "Message 3 about the trip." in text.out
    document = holdfast("-r", "Trip", "-p", "/recall 3", "--output-format", "json")
    assert (document.code, document.err) == (0, "")
    assert document.data["final_response"] + "\n" == text.out
    assert (document.data["completed"], document.data["error"], document.data["api_calls"]) == (True, None, 0)
    assert document.data["conversation_id"] == "talk"
    streamed = holdfast("-c", "-p", "/recall 3", "--output-format", "stream-json").out
    answer, result = map(json.loads, streamed.splitlines())
    assert (answer["type"], result["type"]) == ("answer", "turn.complete")
    assert answer["text"] == result["result"]["final_response"] == document.data["final_response"]


@pytest.mark.parametrize("words", ["//compact it", "/etc/hosts is wrong", "/usr/bin/env"])
def test_escaped_slash_and_paths_are_messages(holdfast: Holdfast, tmp_path: Path, words: str) -> None:
    assert holdfast("-p", words).code == 0
    assert cli_process.read_log(tmp_path)[0][1] == words.replace("//", "/")


def test_standard_input_is_never_a_command(holdfast: Holdfast, tmp_path: Path) -> None:
    assert holdfast(piped=b"/title Mine\n").code == 0
    assert count_messages(tmp_path / "data" / "holdfast.db") == 2
    assert "standard input" in holdfast("-c", "-p", "/title Mine", piped=b"text").failure(2)
    assert holdfast("-c", "-p", "/title Mine", piped=b"").code == 0


@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_failed_command_is_reported_with_exit_1(holdfast: Holdfast, talk: Path, form: str) -> None:
    done = holdfast("-c", "-p", "/undo 99", "--output-format", form)
    assert (done.code, done.err) == (1, "" if form == "stream-json" else "There are only 10 turns to undo.\n")
    if form == "json":
        assert (done.data["failed"], done.data["error"]) == (True, "There are only 10 turns to undo.")
    elif form == "stream-json":
        assert json.loads(done.out.splitlines()[-1])["result"]["exit_reason"] == "failed"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("/compcat", "Did you mean /compact?"),
        ("/sess", "Did you mean /sessions?"),
        ("/xyzzy", "-p /help"),
        ("/", "/help"),
        ("/model offline", "Use --model"),
        ("/title Mine", "Add -c"),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_unusable_command_is_refused(holdfast: Holdfast, tmp_path: Path, words: str, sentence: str, form: str) -> None:
    done = holdfast("-p", words, "--output-format", form)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert sentence in done.err
    assert done.out == "" if form == "text" else sentence in done.data["error"]
    assert list(tmp_path.iterdir()) == []


def test_every_command_is_executed_or_refused_with_its_own_sentence(holdfast: Holdfast, talk: Path) -> None:
    given = {"search": "trip", "recall": "3", "unpin": "1", "steer": "faster", "compress": "--preview"}
    before = count_messages(talk)
    for name in commands.COMMANDS:
        done = holdfast("-c", "-p", f"/{name} {given.get(name, '')}".strip())
        assert "Traceback" not in done.err, name
        if name in CHATS:
            assert done.code == 2
            assert commands.COMMANDS[name].instead
            assert commands.COMMANDS[name].instead in done.sentence
        else:
            assert done.code == 0 or done.sentence, name
            assert done.out or done.err, name
    assert count_messages(talk) - before in (20, 22)  # The branch has 20 messages, and /retry was answered.


def test_help_lists_the_commands_of_one_message(holdfast: Holdfast) -> None:
    named = {line.split()[0].lstrip("/") for line in holdfast("-p", "/help").out.splitlines()}
    assert named == set(commands.COMMANDS) - CHATS
    assert holdfast("-p", "/help queue").out.startswith("/queue [drop N|all]\n")


def test_ctrl_c_stops_a_command_without_a_change(talk: Path, tmp_path: Path) -> None:
    words = ["-c", "-p", "/compact here 1", "--output-format", "json"]
    with serve(hanging_reply("Once")) as provider, cli_process.start(tmp_path, *words, env=provider.env) as process:
        polling.until(lambda: provider.asked)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=cli_process.PATIENCE)
    assert process.returncode == 130
    assert err.endswith("Interrupted.\n")
    assert json.loads(out)["interrupted"]
    with SessionDB(talk) as db:
        assert db.compactions("talk") == []
        assert db.admin.fsck().ok
