"""A slash command given with -p: carried out like in a chat, told in three forms, and never sent as words."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.agent import commands
from holdfast.app import models
from tests.support import cli_in_process, cli_process, polling, provider_process

OFFLINE = {"HOLDFAST_MODEL": "offline"}
Ask = Callable[..., cli_process.Run]
# What means something only while somebody goes on talking.
CHATS = {"quit", "stop", "steer", "queue", "approve", "deny", "new", "reset", "resume"}


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    def run(*arguments: str, piped: bytes | None = None, **env: str) -> cli_process.Run:
        return cli_in_process.run(tmp_path, *arguments, piped=piped, env={**OFFLINE, **env})

    return run


@pytest.fixture
def talk(tmp_path: Path) -> Path:
    """A conversation that is long enough to be compacted."""
    path = tmp_path / "data" / "holdfast.db"
    with SessionDB(path) as db:
        db.create_session("talk", source="test", title="Trip", folder=str(tmp_path))
        for number in range(1, 21):
            role = "user" if number % 2 else "assistant"
            db.append_message("talk", role=role, content=f"Message {number} about the trip. " * 40)
    return path


def said(path: Path) -> int:
    """How many messages there are, in all."""
    with SessionDB(path) as db:
        return sum(head.last_seq for head in db.list_sessions())


# --- carried out ---------------------------------------------------------------------------------------


def test_it_is_carried_out_and_not_said(ask: Ask, talk: Path) -> None:
    done = ask("-c", "-p", "/compact here 1")
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert done.out.startswith("Compacted up to message 18")
    with SessionDB(talk) as db:
        assert len(db.compactions("talk")) == 1
        assert db.resolve("talk").last_seq == 20


def test_what_it_says_is_the_answer_in_every_form(ask: Ask, talk: Path) -> None:
    text = ask("-r", "Trip", "-p", "/recall 3")
    assert (text.code, text.err) == (0, "")
    assert "Message 3 about the trip." in text.out
    document = ask("-r", "Trip", "-p", "/recall 3", "--output-format", "json")
    assert (document.code, document.err) == (0, "")
    assert document.data["final_response"] + "\n" == text.out
    assert (document.data["completed"], document.data["error"], document.data["api_calls"]) == (True, None, 0)
    assert document.data["conversation_id"] == "talk"
    lines = [
        json.loads(line) for line in ask("-c", "-p", "/recall 3", "--output-format", "stream-json").out.splitlines()
    ]
    assert [line["type"] for line in lines] == ["answer", "turn.complete"]
    assert lines[0]["text"] == lines[1]["result"]["final_response"] == document.data["final_response"]


def test_a_title_and_a_branch_are_told_with_where_they_are(ask: Ask, talk: Path) -> None:
    assert ask("-c", "-p", "/title Porto") == (0, "Title: Porto\n", "")
    made = ask("-c", "-p", "/branch", "--output-format", "json").data
    assert made["conversation_id"] != "talk"
    with SessionDB(talk) as db:
        assert db.resolve("Porto").conversation_id == "talk"
        assert db.resolve(made["conversation_id"]).last_seq == 20


def test_a_command_that_stands_for_words_has_them_answered(ask: Ask, talk: Path) -> None:
    assert ask("-c", "-p", "My train leaves at 9:40.").code == 0
    before = said(talk)
    for form in ("text", "json", "stream-json"):
        done = ask("-c", "-p", "/retry", "--output-format", form)
        assert done.code == 0
        assert "Noted: this is kept as message" in done.out
    assert said(talk) == before + 3 * 2
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["type"] for line in lines].count("turn.complete") == 1
    assert lines[0]["type"] == "say"


@pytest.mark.parametrize("words", ["//compact it", "/etc/hosts is wrong", "/usr/bin/env"])
def test_two_slashes_and_paths_are_messages(ask: Ask, tmp_path: Path, words: str) -> None:
    assert ask("-p", words).code == 0
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        content = db.transcript(db.list_sessions()[0].id)[0].content
    text = content if isinstance(content, str) else content[-1]["text"]
    assert text == words.replace("//", "/")


def test_what_is_piped_in_is_never_a_command(ask: Ask, tmp_path: Path) -> None:
    assert ask(piped=b"/title Mine\n").code == 0
    assert said(tmp_path / "data" / "holdfast.db") == 2
    done = ask("-c", "-p", "/title Mine", piped=b"text")
    assert done.code == 2
    assert "standard input" in done.sentence
    assert ask("-c", "-p", "/title Mine", piped=b"").code == 0


# --- refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_what_goes_wrong_is_told_and_exit_1(ask: Ask, talk: Path, form: str) -> None:
    done = ask("-c", "-p", "/undo 99", "--output-format", form)
    assert done.code == 1
    if form == "json":
        assert done.data["failed"]
        assert "only 10 turns" in done.data["error"]
    if form != "stream-json":
        assert done.err == "There are only 10 turns to undo.\n"
    else:
        assert done.err == ""
        assert json.loads(done.out.splitlines()[-1])["result"]["exit_reason"] == "failed"
    assert ask("-p", "/compact").code == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("/compcat", "Did you mean /compact?"),
        ("/sess", "Did you mean /sessions?"),
        ("/xyzzy", "-p /help"),
        ("/", "/help"),
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_an_unknown_command_is_wrong_use_and_leaves_nothing(
    ask: Ask, tmp_path: Path, words: str, told: str, form: str
) -> None:
    done = ask("-p", words, "--output-format", form)
    assert done.code == 2
    assert told in done.err
    assert done.err.count("\n") == 1
    assert done.out == "" if form == "text" else told in done.data["error"]
    assert list(tmp_path.iterdir()) == []


def test_every_command_is_carried_out_or_refused_with_a_sentence_of_its_own(ask: Ask, talk: Path) -> None:
    given = {"search": "trip", "recall": "3", "unpin": "1", "steer": "faster", "compress": "--preview"}
    before = said(talk)
    for name in commands.COMMANDS:
        done = ask("-c", "-p", f"/{name} {given.get(name, '')}".strip())
        assert "Traceback" not in done.err, name
        if name in CHATS:
            assert done.code == 2
            assert commands.COMMANDS[name].instead
            assert commands.COMMANDS[name].instead in done.sentence
        else:
            assert done.code == 0 or done.sentence, name
            assert done.out or done.err, name
    assert said(talk) - before in (20, 22)  # a branch has all there was, and /retry was answered


def test_help_lists_what_one_message_can_do_and_tells_of_the_rest(ask: Ask) -> None:
    named = {line.split()[0].lstrip("/") for line in ask("-p", "/help").out.splitlines()}
    assert named == set(commands.COMMANDS) - CHATS
    assert ask("-p", "/help queue").out.startswith("/queue [drop N|all]\n")


def test_who_answers_is_said_where_words_are_answered_and_only_there(ask: Ask, talk: Path) -> None:
    assert ask("-c", "-p", "/retry", HOLDFAST_MODEL="").err == f"{models.ADVICE}\n"
    assert ask("-c", "-p", "/usage", HOLDFAST_MODEL="").err == ""


@pytest.mark.parametrize("words", ["/model offline", "/title Mine", "/title"])
def test_what_would_be_gone_with_the_program_is_refused(ask: Ask, tmp_path: Path, words: str) -> None:
    done = ask("-p", words)
    assert done.code == 2
    assert done.sentence.startswith("holdfast chat: /")
    assert "Use --model" in done.sentence or "Add -c" in done.sentence
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_stops_it_with_130_and_nothing_is_changed(talk: Path, tmp_path: Path) -> None:
    with provider_process.playing(provider_process.said_and_hung("Once")) as played:
        process = subprocess.Popen(
            [*cli_process.PROGRAM, "-c", "-p", "/compact here 1", "--output-format", "json"],
            cwd=tmp_path,
            env=cli_process.environment(tmp_path, played.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        polling.until(lambda: played.asked)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=cli_process.PATIENCE)
    assert process.returncode == 130
    assert err.endswith("Interrupted.\n")
    assert json.loads(out)["interrupted"]
    with SessionDB(talk) as db:
        assert db.compactions("talk") == []
        assert db.admin.fsck().ok
