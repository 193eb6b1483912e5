"""One message from the command line: the answer on standard output, all else on standard error, in three forms."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import pytest

from holdfast import SessionDB, config, events
from holdfast.app import compose
from holdfast.cli import chat, console, one_shot, stdin_text
from holdfast.runtime import wording
from tests.support import cli_in_process, cli_process, cli_zygote, polling, provider_process, replay_server

OFFLINE = {"HOLDFAST_MODEL": "offline"}
RESULT = {
    "final_response",
    "messages",
    "api_calls",
    "completed",
    "failed",
    "partial",
    "interrupted",
    "error",
    "refused",
    "exit_reason",
    "usage",
    "session_id",
    "conversation_id",
    "truncated",
}

Ask = Callable[..., cli_process.Run]


@pytest.fixture
def ask(tmp_path: Path, asking: cli_zygote.Server) -> Ask:
    """Run the program; `piped` is its standard input."""

    def run(
        *arguments: str | Path, piped: str | bytes | None = None, env: dict[str, str] | None = None
    ) -> cli_process.Run:
        given = piped.encode() if isinstance(piped, str) else piped
        words = map(str, arguments)
        code, out, err = asking.pipe(tmp_path, *words, piped=given, env=OFFLINE if env is None else env)
        return cli_process.Run(code, out.decode(), err.decode())

    return run


def log(home: Path) -> list[tuple[str, str]]:
    """The roles and texts of the one conversation there is."""
    with SessionDB(home / "data" / "holdfast.db") as db:
        (head,) = db.list_sessions()
        assert db.admin.fsck().ok
        return [(message.role, _text(message.content)) for message in db.transcript(head.id)]


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


def narrow(home: Path, window: int) -> None:
    """Let the model that is played have so small a window."""
    (home / "data").mkdir(exist_ok=True)
    (home / "data" / "config.toml").write_text(f'[models."{provider_process.MODEL}"]\nwindow = {window}\n', "utf-8")


def compactions(home: Path) -> int:
    with SessionDB(home / "data" / "holdfast.db") as db:
        (head,) = db.list_sessions()
        assert db.admin.fsck().ok
        return len(db.sessions(head.id)) - 1


# --- the message ---------------------------------------------------------------------------------------


def test_the_offline_model_remembers_over_processes(tmp_path: Path) -> None:
    first = cli_process.run(tmp_path, "-p", "My train leaves at 9:40.", env=OFFLINE)
    assert (first.code, first.err) == (0, "")
    second = cli_process.run(tmp_path, "-c", "-p", "When does my train leave?", env=OFFLINE)
    assert second.code == 0
    assert "9:40" in second.out


@pytest.mark.parametrize(
    ("arguments", "piped", "message"),
    [
        (["-p", "hello"], None, "hello"),
        (["-p", "explain"], "some text\n", "explain\n\nsome text"),
        ([], "only this\n", "only this"),
        (["chat", "-p", "hello"], None, "hello"),
        (["-p", "-p is an option"], None, "-p is an option"),
        (["--prompt", "-"], None, "-"),
        (["-p", "x"], b"\xff", "x\n\n\ufffd"),
        (["-p"], "only this\n", "only this"),
        (["--prompt", "--output-format", "json"], "only this\n", "only this"),
        (["-p", "--max-steps=3"], "/help\n", "/help"),
    ],
)
def test_what_is_given_and_what_is_piped_is_one_message(
    ask: Ask, tmp_path: Path, arguments: list[str], piped: str | None, message: str
) -> None:
    assert ask(*arguments, piped=piped).code == 0
    assert log(tmp_path)[0] == ("user", message)


@pytest.mark.parametrize(
    ("arguments", "piped"),
    [
        (["-p", ""], None),
        (["-p", "  "], None),
        (["-p"], None),
        (["-p"], ""),
        ([], ""),
        ([], " \n"),
        (["-p", "x", "-c", "-r", "y"], None),
        (["-p", "x", "-r"], None),
        (["-p", "x", "--output-format", "xml"], None),
        (["--output-format", "json"], None),
        (["-c"], None),
        (["-r"], None),
        (["--model", "offline"], None),
        (["-p", "x", "extra"], None),
        (["-p", "x", "--db", ""], None),
    ],
)
def test_wrong_use_is_one_sentence_and_leaves_nothing(
    ask: Ask, tmp_path: Path, arguments: list[str], piped: str | None
) -> None:
    done = ask(*arguments, piped=piped)
    assert done.code == 2
    assert "--help" in done.sentence
    assert list(tmp_path.iterdir()) == []


# --- the conversation ----------------------------------------------------------------------------------


def test_a_pipe_that_stays_silent_does_not_hold_up_a_message(tmp_path: Path) -> None:
    process = piped(tmp_path, "-p", "hello")
    try:
        assert process.wait(cli_process.PATIENCE) == 0  # its standard input is open still
        assert process.stderr is not None
        assert process.stderr.read().decode() == f"{stdin_text.SILENT}\n"
    finally:
        process.communicate()
    assert log(tmp_path)[0] == ("user", "hello")


@pytest.mark.parametrize(("arguments", "message"), [(["-p", "hello"], "hello\n\nfirst last"), ([], "first last")])
def test_what_has_begun_to_come_is_waited_for(tmp_path: Path, arguments: list[str], message: str) -> None:
    process = piped(tmp_path, *arguments)
    assert process.stdin is not None
    process.stdin.write(b"first")
    process.stdin.flush()
    polling.until(lambda: waiting(process) == 0)
    process.communicate(b" last", cli_process.PATIENCE)
    assert process.returncode == 0
    assert log(tmp_path)[0] == ("user", message)


def piped(home: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The program with a standard input that stays open until somebody closes it."""
    return subprocess.Popen(
        [*cli_process.PROGRAM, *arguments],
        env=cli_process.environment(home, OFFLINE),
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def waiting(process: subprocess.Popen[bytes]) -> int:
    """How many bytes of its standard input the program has not read yet."""
    assert process.stdin is not None
    return int(struct.unpack("i", fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4)))[0])


def test_each_message_begins_a_conversation_unless_one_is_named(ask: Ask, tmp_path: Path) -> None:
    for words in ("first thing", "second thing"):
        ask("-p", words)
    assert ask("-r", "first thing", "-p", "more of the first").code == 0
    assert ask("-c", "-p", "and more").code == 0
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        heads = {head.title: head.last_seq for head in db.list_sessions()}
    assert heads == {"first thing": 6, "second thing": 2}


def test_a_conversation_is_found_by_the_beginning_of_its_id(ask: Ask) -> None:
    begun = ask("-p", "hello", "--output-format", "json").data
    again = ask("-r", begun["conversation_id"][:-2], "-p", "hello", "--output-format", "json").data
    assert again["conversation_id"] == begun["conversation_id"]


def test_a_conversation_is_found_by_part_of_its_title_and_near_ones_are_offered(tmp_path: Path) -> None:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        for name, title in (("a", "Second one"), ("b", "Third one"), ("c", "Porto")):
            db.create_session(name, source="test", title=title)

    def told(*arguments: str) -> cli_process.Run:
        return cli_in_process.run(tmp_path, *arguments, env=OFFLINE)

    found = told("-r", "second", "-p", "more", "--output-format", "json")
    assert found.data["conversation_id"] == "a"
    several = told("-r", "one", "-p", "more")
    assert several.code == 1
    assert "a (Second one)" in several.sentence
    assert "b (Third one)" in several.sentence
    none = told("-r", "potro", "-p", "more").sentence
    assert "Did you mean 'Porto'?" in none
    assert "or `holdfast -r` to pick one." in none
    # A part of a title is not enough to remove something by.
    assert told("sessions", "delete", "second", "--yes").code == 1


@pytest.mark.parametrize("arguments", [["-c"], ["-r", "nobody"], ["-r", "last"]])
def test_nothing_to_go_on_with_is_said_and_no_store_is_made(ask: Ask, tmp_path: Path, arguments: list[str]) -> None:
    done = ask(*arguments, "-p", "x")
    assert done.code == 1
    assert "There is no database" in done.sentence
    assert list(tmp_path.iterdir()) == []
    SessionDB(tmp_path / "empty.db").close()
    done = ask(*arguments, "-p", "x", "--db", tmp_path / "empty.db")
    assert done.code == 1
    assert "holdfast sessions list" in done.sentence


def test_the_store_that_was_named_is_used(ask: Ask, tmp_path: Path) -> None:
    assert ask("-p", "hello", "--db", tmp_path / "own.db").code == 0
    with SessionDB(tmp_path / "own.db") as db:
        assert [head.last_seq for head in db.list_sessions()] == [2]
    assert not (tmp_path / "data" / "holdfast.db").exists()


# --- the answer ----------------------------------------------------------------------------------------


def test_text_is_what_was_said_to_the_letter(ask: Ask) -> None:
    with provider_process.playing(provider_process.said("a\tb\r\n", "\x1b[31m", "漢字\n\n")) as played:
        done = ask("-p", "x", env=played.env)
    assert done == (0, "a\tb\r\n\x1b[31m漢字\n\n", "")


def test_text_ends_with_a_line_and_work_is_told_beside_it(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the note")
    call = provider_process.called("read_file", '{"path": "notes.txt"}', "Let me look.")
    with provider_process.playing(call, provider_process.said("Found", " it.")) as played:
        done = ask("-p", "x", env=played.env)
    assert (done.code, done.out) == (0, "Let me look.\nFound it.\n")
    assert done.err == '-> read_file {"path": "notes.txt"}\nok: read_file  1 the note\n'


def test_what_waited_is_answered_first_and_is_not_the_answer(ask: Ask, tmp_path: Path) -> None:
    assert ask("-p", "Remember that the boat is called Ada.").code == 0
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        (head,) = db.list_sessions()
        db.mail.add_inbox_entry(head.id, "k", "process 1 ended\n> zebra", kind="process")
    told = ask("-c", "-p", "What is the boat called?")
    assert told.code == 0
    assert "Ada" in told.out
    assert "process 1 ended" in told.err
    assert [text for role, text in log(tmp_path) if role == "user"][1:] == [
        "process 1 ended\n> zebra",
        "What is the boat called?",
    ]
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        assert db.mail.inbox_entries() == []
        answers = [_text(each.content) for each in db.transcript(head.id) if each.role == "assistant"]
    assert answers[1].strip() not in told.out


def test_json_is_the_whole_result(ask: Ask) -> None:
    with provider_process.playing(provider_process.said("Hello", " you.")) as played:
        done = ask("-p", "hi", "--output-format", "json", env=played.env)
    assert (done.code, done.err) == (0, "")
    assert set(done.data) == RESULT
    assert done.data["final_response"] == "Hello you."
    assert (done.data["completed"], done.data["failed"], done.data["exit_reason"]) == (True, False, "completed")
    assert [(each["seq"], each["role"]) for each in done.data["messages"]] == [(1, "user"), (2, "assistant")]
    assert done.data["messages"][1]["content"] == "Hello you."


def test_stream_json_is_an_event_a_line_and_the_result_last(ask: Ask) -> None:
    with provider_process.playing(provider_process.said("Hello", " \x9b you.")) as played:
        done = ask("-p", "hi", "--output-format", "stream-json", env=played.env)
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["text"] for line in lines if line["type"] == "text.delta"] == ["Hello", " \x9b you."]
    assert lines[-1]["type"] == "turn.complete"
    assert set(lines[-1]["result"]) == RESULT
    kinds = list(dict.fromkeys(line["type"] for line in lines))
    assert kinds == ["message.stored", "turn.start", "text.delta", "titled", "turn.complete"]


@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_a_model_that_fails_is_exit_1_and_one_sentence(ask: Ask, tmp_path: Path, form: str) -> None:
    with provider_process.playing(provider_process.refused(401, "Incorrect API key")) as played:
        done = ask("-p", "hi", "--output-format", form, env=played.env)
    assert done.code == 1
    assert "Traceback" not in done.err
    assert done.err.startswith("holdfast: ")
    assert done.err.count("\n") == 1
    if form == "text":
        assert done.out == ""
    else:
        result = done.data if form == "json" else json.loads(done.out.splitlines()[-1])["result"]
        assert (result["failed"], result["exit_reason"]) == (True, "model")
    assert log(tmp_path) == [("user", "hi")]


@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_an_answer_that_is_not_whole_is_said_to_be_so(ask: Ask, form: str) -> None:
    with provider_process.playing(provider_process.said_and_cut("Once upon")) as played:
        done = ask("-p", "hi", "--output-format", form, env=played.env)
    assert (done.code, done.err) == (0, f"{wording.CUT_OFF}\n")
    assert done.out == "Once upon\n" or form != "text"


def test_an_answer_cut_before_its_first_word_is_none(ask: Ask) -> None:
    with provider_process.playing(provider_process.said_and_cut()) as played:
        assert ask("-p", "hi", env=played.env) == (1, "", f"holdfast: {wording.CUT_OFF}\n")


@pytest.mark.parametrize("words", [[], [" \n"]])
@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_a_blank_answer_is_said_to_be_one_and_is_exit_1(ask: Ask, form: str, words: list[str]) -> None:
    with provider_process.playing(provider_process.said(*words)) as played:
        done = ask("-p", "hi", "--output-format", form, env=played.env)
    assert (done.code, done.err) == (1, f"holdfast: {wording.EMPTY_REPLY}\n")
    assert done.out.strip() == "" or form != "text"


@pytest.mark.parametrize(
    ("arguments", "env", "sentence"),
    [
        (["--model", "bogus"], {}, "provider/model"),
        (["--model", "openai/x"], {}, "OPENAI_API_KEY"),
        (["--db", "notes.txt"], OFFLINE, "not a database"),
        (["--db", "notes.txt/x.db"], OFFLINE, "notes.txt"),
        ([], {**OFFLINE, "HOLDFAST_LOG": "none/log"}, "log"),
        ([], {**OFFLINE, "HOLDFAST_HOME": "/proc/none"}, "/proc/none"),
    ],
    ids=["no such model", "no key", "broken store", "no place", "no log", "no home"],
)
def test_what_cannot_begin_is_one_sentence(
    ask: Ask, tmp_path: Path, arguments: Sequence[str], env: dict[str, str], sentence: str
) -> None:
    (tmp_path / "notes.txt").write_text("some notes\n" * 1000)
    done = ask("-p", "hi", *arguments, env=env)
    assert done.code == 1
    assert sentence in done.sentence


def test_openai_base_url_is_used_without_a_key(ask: Ask) -> None:
    listed = replay_server.refusal(200, {"object": "list", "data": [{"id": "played", "object": "model"}]})
    with provider_process.playing(listed, provider_process.said("Hello.")) as played:
        url = {"OPENAI_BASE_URL": f"{played.url}/v1"}
        done = ask("-p", "hi", env=url)
        assert (done.code, done.out) == (0, "Hello.\n"), done.err
        assert ask("-p", "hi", env={**url, "HOLDFAST_MODEL": "openai/other"}).out == "Hello.\n"
    assert [each.path for each in played.asked[:2]] == ["/v1/models", "/v1/chat/completions"]
    assert {each.json["model"] for each in played.asked[1:]} == {"played", "other"}
    assert not any("authorization" in each.headers for each in played.asked)


def test_max_cost_without_a_known_price_is_refused_before_anything_is_asked(ask: Ask, tmp_path: Path) -> None:
    with provider_process.playing(provider_process.said("Hello.")) as played:
        sentence = ask("-p", "hi", "--max-cost", "1", env=played.env).sentence
        assert sentence == (
            "holdfast: The price of openai/played is not known, so the cost limit (`--max-cost`, `limits.cost`) cannot "
            'be enforced. Set it with `holdfast config edit`: `[models."openai/played"]` with `price = { input = 1.0, '
            "output = 4.0 }`, in US dollars per million tokens, 0 if it is free. Or leave the limit out."
        )
        assert played.asked == []
        (tmp_path / "data").mkdir(exist_ok=True)
        priced = '[models."openai/played"]\nprice = { input = 1.0, output = 4.0 }\n'
        (tmp_path / "data" / "config.toml").write_text(priced, "utf-8")
        assert ask("-p", "hi", "--max-cost", "1", env=played.env).out == "Hello.\n"
    (tmp_path / "notes.txt").write_text("The offline model is free, also when it calls a tool.\n", "utf-8")
    done = ask("-p", "read the file notes.txt", "--max-cost", "1", env=OFFLINE)
    assert (done.code, "read_file" in done.err) == (0, True), done.err


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (
            provider_process.refused(401, "No key"),
            "openai refused the key (401): No key. Set OPENAI_API_KEY to a valid key.",
        ),
        (replay_server.refusal(200, {"object": "list", "data": []}), "the list is empty."),
        (replay_server.refusal(200, b"<html>"), "the response is not a list of models."),
        (replay_server.Answer(cut=True), "closed the connection without an answer"),
    ],
)
def test_openai_base_url_that_lists_no_model_says_what_is_missing(
    ask: Ask, answer: replay_server.Answer, why: str
) -> None:
    with provider_process.playing(answer) as played:
        sentence = ask("-p", "hi", env={"OPENAI_BASE_URL": f"{played.url}/v1"}).sentence
    assert why in sentence
    assert sentence.endswith(
        "Name a model with HOLDFAST_MODEL=openai/NAME; set OPENAI_API_KEY if the server needs a key."
    )


@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_turns_of_one_message_each_compact_like_any_other(ask: Ask, tmp_path: Path, form: str) -> None:
    narrow(tmp_path, 12_000)
    long = "The boats stay in the harbour at pier seven. " * 180
    with provider_process.playing(provider_process.said(long)) as played:
        for number in range(9):
            goes_on = ["-c"] if number else []
            done = ask(*goes_on, "-p", f"What about pier {number}?", "--output-format", form, env=played.env)
            assert done.code == 0
            if compactions(tmp_path):
                break
    assert compactions(tmp_path) == 1
    assert "Compacted up to message" in done.err
    assert "The summary is an extract" in done.err
    if form == "text":
        assert done.out.strip() == long.strip()
    else:
        result = json.loads(done.out if form == "json" else done.out.splitlines()[-1])
        assert (result if form == "json" else result["result"])["final_response"] == long


@pytest.mark.parametrize("form", ["text", "json", "stream-json"])
def test_a_message_that_does_not_fit_is_reported_with_what_was_sent(ask: Ask, tmp_path: Path, form: str) -> None:
    narrow(tmp_path, 12_000)
    pasted = "The boats stay in the harbour at pier seven. " * 5_267
    with provider_process.playing(provider_process.said("Noted.")) as played:
        done = ask("-p", "--output-format", form, piped=pasted, env=played.env)
    assert done.code == 0
    if form == "text":
        assert "characters of your message" in done.err
        return
    result = json.loads(done.out if form == "json" else done.out.splitlines()[-1])
    truncated = (result if form == "json" else result["result"])["truncated"]
    assert truncated["characters"] >= len(pasted.strip()) > 10 * truncated["sent"] > 0
    assert "characters of your message" in (done.err if form == "json" else done.out)


def test_a_log_is_kept_only_where_that_was_asked_for(ask: Ask, tmp_path: Path) -> None:
    before = set(os.listdir(tmp_path))
    assert ask("-p", "hi").err == ""
    assert set(os.listdir(tmp_path)) - before == {"data"}
    assert ask("-p", "hi", env={**OFFLINE, "HOLDFAST_LOG": str(tmp_path / "log")}).err == ""
    assert set(os.listdir(tmp_path)) - before == {"data", "log"}


# --- ended before its time -----------------------------------------------------------------------------


def begun(home: Path, env: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """The program, once the first words of the answer are there."""
    process = subprocess.Popen(
        [*cli_process.PROGRAM, "-p", "hi", *arguments],
        cwd=home,
        env=cli_process.environment(home, env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    assert process.stdout.read(4) == "Once"
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_and_what_was_said_stays(tmp_path: Path, number: int, code: int) -> None:
    with provider_process.playing(provider_process.said_and_hung("Once", " upon")) as played:
        process = begun(tmp_path, played.env)
        process.send_signal(number)
        out, said = process.communicate(timeout=cli_process.PATIENCE)
    assert (process.returncode, said) == (code, "Interrupted.\n")
    assert out.strip() in ("", "upon")
    (user, reply) = log(tmp_path)
    assert user == ("user", "hi")
    assert reply[1].startswith("Once")


@pytest.mark.parametrize(("number", "form"), [(signal.SIGTERM, "json"), (signal.SIGHUP, "stream-json")])
def test_a_signal_of_the_system_leaves_a_whole_document(tmp_path: Path, number: int, form: str) -> None:
    with provider_process.playing(provider_process.said_and_hung("Once")) as played:
        process = subprocess.Popen(
            [*cli_process.PROGRAM, "-p", "hi", "--output-format", form],
            cwd=tmp_path,
            env=cli_process.environment(tmp_path, played.env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        polling.until(lambda: len(played.asked) > 0)
        process.send_signal(number)
        out, _ = process.communicate(timeout=cli_process.PATIENCE)
    assert process.returncode == 128 + number
    last = json.loads(out if form == "json" else out.splitlines()[-1])
    result = last if form == "json" else last["result"]
    assert (result["interrupted"], result["completed"]) == (True, False)


@pytest.mark.parametrize("form", ["json", "stream-json"])
def test_a_signal_before_the_turn_leaves_a_whole_document(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @asynccontextmanager
    async def slow(*_: object, **__: object) -> AsyncIterator[None]:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
        yield

    monkeypatch.setattr(compose, "start", slow)
    settings = config.load({"HOLDFAST_HOME": str(tmp_path)}, files=False)
    start = chat.Start(str(tmp_path / "x.db"), None, "c", settings)
    assert one_shot.run(console.Console(settings), start, "hi", form) == 128 + signal.SIGTERM
    last = json.loads(capsys.readouterr().out)
    assert (last if form == "json" else last["result"])["exit_reason"] == "interrupted"


def test_after_a_kill_the_conversation_goes_on(ask: Ask, tmp_path: Path) -> None:
    with provider_process.playing(provider_process.said_and_hung("Once", " upon")) as played:
        process = begun(tmp_path, played.env)
        process.kill()
        process.communicate(timeout=cli_process.PATIENCE)
    assert process.returncode == -signal.SIGKILL
    assert ask("-c", "-p", "still there?").code == 0
    roles = [role for role, _ in log(tmp_path)]
    assert (roles[:2], roles[-1]) == (["user", "user"], "assistant")


def test_a_reader_that_leaves_stops_the_turn(tmp_path: Path) -> None:
    with provider_process.playing(provider_process.said_and_hung("Once", *[" upon a time" * 100] * 200)) as played:
        process = begun(tmp_path, played.env)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(cli_process.PATIENCE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stderr.close()
    assert [role for role, _ in log(tmp_path)] == ["user", "assistant"]


# --- what is loaded ------------------------------------------------------------------------------------


def test_one_message_loads_no_part_of_the_chat(tmp_path: Path) -> None:
    code = "import sys; sys.argv[1:] = ['-p', 'hi']\nimport holdfast.cli\n"
    code += "try: holdfast.cli.main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    env = cli_process.environment(tmp_path, OFFLINE)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    loaded = set(done.stderr.split())
    assert "holdfast.cli.one_shot" in loaded
    assert not loaded & {"prompt_toolkit", "rich", "httpx2", "holdfast.chat.chat"}


def test_a_message_may_be_larger_than_a_pipe(tmp_path: Path) -> None:
    process = piped(tmp_path, "-p", "x")
    process.communicate(b"line\n" * 50_000, cli_process.PATIENCE)
    assert process.returncode == 0
    assert len(log(tmp_path)[0][1]) == len("x\n\n") + 250_000 - 1


def test_nobody_there_gets_the_help(ask: Ask, tmp_path: Path) -> None:
    done = ask(env={})
    assert (done.code, done.err) == (0, "")
    assert "holdfast -p TEXT" in done.out
    assert list(tmp_path.iterdir()) == []


def test_the_page_names_every_option_field_exit_and_event() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "chat.md").read_text("utf-8")
    named = set(re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", page, flags=re.DOTALL)))
    options = {option for parameter in chat.command.params for option in parameter.opts}
    assert {option.split()[0] for option in named} >= options
    assert named >= RESULT | set(get_args(events.Exit)) | set(chat.FORMATS)
    # Only a chat can be left.
    kinds = {kind.__struct_config__.tag for kind in get_args(events.AnyEvent) if kind is not events.Quit}
    assert named >= kinds
