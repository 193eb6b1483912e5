"""One message from the command line: the answer on standard output, the rest on standard error, in three formats."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import termios
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import SessionDB
from holdfast.cli import stdin_text
from holdfast.runtime import wording
from tests.support import cli_in_process, cli_process, polling, replay_server
from tests.support.cli_process import OFFLINE, Configure, Holdfast, Run
from tests.support.provider_process import hanging_reply, refusal, reply, serve, tool_call

FORMATS = ["text", "json", "stream-json"]
RESULT = {
    *("final_response", "messages", "api_calls", "completed", "failed", "partial", "interrupted", "error", "refused"),
    *("exit_reason", "usage", "session_id", "conversation_id", "truncated"),
}


# --- the message ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "piped", "message"),
    [
        (["-p", "hello"], None, "hello"),
        (["chat", "-p", "explain"], b"some text\n", "explain\n\nsome text"),
        ([], b"only this\n", "only this"),
        (["-p", "-p is an option"], None, "-p is an option"),
        (["--prompt", "-"], None, "-"),
        (["-p", "x"], b"\xff", "x\n\n\ufffd"),
        (["--prompt", "--output-format", "json"], b"only this\n", "only this"),
        (["-p", "--max-steps=3"], b"/help\n", "/help"),
    ],
)
def test_prompt_and_standard_input_are_one_message(
    holdfast: Holdfast, tmp_path: Path, arguments: list[str], piped: bytes | None, message: str
) -> None:
    assert holdfast(*arguments, piped=piped, **OFFLINE).code == 0
    assert cli_process.read_log(tmp_path)[0] == ("user", message)


def test_silent_pipe_does_not_delay_a_message(tmp_path: Path) -> None:
    with cli_process.start(tmp_path, "-p", "hello", env=OFFLINE, stdin=subprocess.PIPE) as process:
        assert process.wait(cli_process.PATIENCE) == 0  # Its standard input is still open.
        assert process.stderr.read() == f"{stdin_text.SILENT}\n"
    assert cli_process.read_log(tmp_path)[0] == ("user", "hello")


def test_input_that_has_begun_is_read_to_its_end(tmp_path: Path) -> None:
    """The rest is larger than the buffer of a pipe."""
    with cli_process.start(tmp_path, "-p", "x", env=OFFLINE, stdin=subprocess.PIPE, encoding=None) as process:
        process.stdin.write(b"first")
        process.stdin.flush()
        polling.until(lambda: not any(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4))))
        process.communicate(b" line\n" * 50_000, cli_process.PATIENCE)
    assert process.returncode == 0
    assert cli_process.read_log(tmp_path)[0][1] == "x\n\nfirst" + (" line\n" * 50_000).rstrip()


# --- the conversation ----------------------------------------------------------------------------------


def test_message_starts_a_conversation_unless_one_is_named(holdfast: Holdfast, tmp_path: Path) -> None:
    ids = [
        holdfast("-p", words, "--output-format", "json", "--db", "own.db", **OFFLINE).data["conversation_id"]
        for words in ("first thing", "second thing")
    ]
    for name in (["-r", "first thing"], ["-c"], ["-r", ids[1][:-2]]):
        assert holdfast(*name, "-p", "more", "--db", "own.db", **OFFLINE).code == 0
    with SessionDB(tmp_path / "own.db") as db:
        assert {head.title: head.last_seq for head in db.list_sessions()} == {"first thing": 6, "second thing": 4}
    assert not (tmp_path / "data" / "holdfast.db").exists()


# --- the answer ----------------------------------------------------------------------------------------


def test_text_is_printed_unchanged(holdfast: Holdfast) -> None:
    with serve(reply("a\tb\r\n", "\x1b[31m", "漢字\n\n")) as provider:
        assert holdfast("-p", "x", **provider.env) == (0, "a\tb\r\n\x1b[31m漢字\n\n", "")


def test_tool_calls_are_reported_on_standard_error(holdfast: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the note")
    call = tool_call("read_file", '{"path": "notes.txt"}', "Let me look.")
    with serve(call, reply("Found", " it.")) as provider:
        done = holdfast("-p", "x", **provider.env)
    assert (done.code, done.out) == (0, "Let me look.\nFound it.\n")
    assert done.err == '-> read_file {"path": "notes.txt"}\nok: read_file  1 the note\n'


def test_queued_notice_is_answered_first_and_not_printed_as_the_answer(holdfast: Holdfast, tmp_path: Path) -> None:
    assert holdfast("-p", "Remember that the boat is called Ada.", **OFFLINE).code == 0
    store, notice = tmp_path / "data" / "holdfast.db", "process 1 ended\n> zebra"
    with SessionDB(store) as db:
        (head,) = db.list_sessions()
        db.mail.add_inbox_entry(head.id, "k", notice, kind="process")
    done = holdfast("-c", "-p", "What is the boat called?", **OFFLINE)
    assert (done.code, "Ada" in done.out, "process 1 ended" in done.err) == (0, True, True)
    log = cli_process.read_log(tmp_path)
    assert [text for role, text in log if role == "user"][1:] == [notice, "What is the boat called?"]
    assert [text for role, text in log if role == "assistant"][1].strip() not in done.out
    with SessionDB(store) as db:
        assert db.mail.inbox_entries() == []


def test_json_is_the_whole_result(holdfast: Holdfast) -> None:
    with serve(reply("Hello", " you.")) as provider:
        done = holdfast("-p", "hi", "--output-format", "json", **provider.env)
    assert (done.code, done.err) == (0, "")
    assert set(done.data) == RESULT
    assert done.data["final_response"] == "Hello you."
    assert (done.data["completed"], done.data["failed"], done.data["exit_reason"]) == (True, False, "completed")
    assert [(each["seq"], each["role"]) for each in done.data["messages"]] == [(1, "user"), (2, "assistant")]
    assert done.data["messages"][1]["content"] == "Hello you."


def test_stream_json_is_one_event_per_line_and_the_result_last(holdfast: Holdfast) -> None:
    with serve(reply("Hello", " \x9b you.")) as provider:
        done = holdfast("-p", "hi", "--output-format", "stream-json", **provider.env)
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()
    lines = [json.loads(line) for line in done.out.splitlines()]
    assert [line["text"] for line in lines if line["type"] == "text.delta"] == ["Hello", " \x9b you."]
    assert set(lines[-1]["result"]) == RESULT
    kinds = list(dict.fromkeys(line["type"] for line in lines))
    assert kinds == ["message.stored", "turn.start", "text.delta", "titled", "turn.complete"]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (refusal(401, "Incorrect API key"), 1, "holdfast: "),
        (reply("Once upon", finish="length"), 0, wording.CUT_OFF),
        (reply(finish="length"), 1, f"holdfast: {wording.CUT_OFF}"),
        (reply(" \n"), 1, f"holdfast: {wording.EMPTY_REPLY}"),
    ],
    ids=["refused", "cut", "cut before the first word", "blank"],
)
def test_failed_or_incomplete_answer_is_reported_in_one_sentence(
    holdfast: Holdfast, tmp_path: Path, form: str, answer: replay_server.Answer, code: int, sentence: str
) -> None:
    with serve(answer) as provider:
        done = holdfast("-p", "hi", "--output-format", form, **provider.env)
    assert (done.code, done.err.count("\n")) == (code, 1)
    assert done.err.startswith(sentence)
    if form == "text":
        assert done.out.strip() == ("" if code else "Once upon")
    elif answer.status == 401:
        result = check(done, form)
        assert (result["failed"], result["exit_reason"]) == (True, "model")
        assert cli_process.read_log(tmp_path) == [("user", "hi")]


def test_server_of_openai_base_url_needs_no_key(holdfast: Holdfast) -> None:
    listed = replay_server.refusal(200, {"object": "list", "data": [{"id": "played", "object": "model"}]})
    with serve(listed, reply("Hello.")) as provider:
        url = {"OPENAI_BASE_URL": f"{provider.url}/v1"}
        done = holdfast("-p", "hi", **url)
        assert (done.code, done.out) == (0, "Hello.\n"), done.err
        assert holdfast("-p", "hi", **url, HOLDFAST_MODEL="openai/other").out == "Hello.\n"
    assert [each.path for each in provider.asked[:2]] == ["/v1/models", "/v1/chat/completions"]
    assert {each.json["model"] for each in provider.asked[1:]} == {"played", "other"}
    assert not any("authorization" in each.headers for each in provider.asked)


def test_server_that_lists_no_model_is_reported(holdfast: Holdfast) -> None:
    with serve(refusal(401, "No key"), replay_server.refusal(200, b"<html>")) as provider:
        for reason in ("openai refused the key (401): No key. Set OPENAI", "the response is not a list of models."):
            sentence = holdfast("-p", "hi", OPENAI_BASE_URL=f"{provider.url}/v1").sentence
            assert reason in sentence
            assert sentence.endswith("HOLDFAST_MODEL=openai/NAME; set OPENAI_API_KEY if the server needs a key.")


def test_turn_ends_at_its_limit_of_steps_or_cost(holdfast: Holdfast, configure: Configure, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the note")
    configure('[models."openai/played"]\nprice = { input = 1.0, output = 1.0 }\n')
    # Each request takes 300,000 tokens, which cost 30 cents.
    call = tool_call("read_file", '{"path": "notes.txt"}', tokens=300_000)
    with serve(call, call, call, call, reply("Done.")) as provider:
        done = holdfast("-p", "go", "--max-steps", "1", "--output-format", "json", **provider.env)
        assert (done.code, done.data["exit_reason"], done.data["api_calls"]) == (1, "steps", 1)
        done = holdfast("-p", "go", "--max-cost", "0.5", "--output-format", "json", **provider.env)
        assert (done.code, len(provider.asked)) == (1, 3)
        sentence = "holdfast: I stopped: this turn has cost about $0.60; its limit is $0.50."
        assert done.err.splitlines()[-1] == sentence
        assert (done.data["exit_reason"], done.data["api_calls"]) == ("cost", 2)
        assert done.data["usage"]["cost"] == pytest.approx(0.6)
        assert holdfast("-p", "go", **provider.env).out.endswith("Done.\n")


# --- interruption --------------------------------------------------------------------------------------


def start_streaming(home: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    """Start the program, and wait for the first words of the answer."""
    process = cli_process.start(home, "-p", "hi", env=env)
    assert process.stdout.read(4) == "Once"
    return process


def test_ctrl_c_ends_the_turn_and_keeps_the_text(tmp_path: Path) -> None:
    with serve(hanging_reply("Once", " upon")) as provider, start_streaming(tmp_path, provider.env) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=cli_process.PATIENCE)
    assert (process.returncode, err) == (130, "Interrupted.\n")
    assert out.strip() in ("", "upon")
    user, answer = cli_process.read_log(tmp_path)
    assert user == ("user", "hi")
    assert answer[1].startswith("Once")


@pytest.mark.parametrize(("number", "form"), [(signal.SIGTERM, "json"), (signal.SIGHUP, "stream-json")])
def test_signal_leaves_a_complete_document(tmp_path: Path, number: int, form: str) -> None:
    with (
        serve(hanging_reply("Once")) as provider,
        cli_process.start(tmp_path, "-p", "hi", "--output-format", form, env=provider.env) as process,
    ):
        polling.until(lambda: provider.asked)
        process.send_signal(number)
        out, _ = process.communicate(timeout=cli_process.PATIENCE)
    assert process.returncode == 128 + number
    result = check(Run(1, out, ""), form)
    assert (result["interrupted"], result["completed"]) == (True, False)


def test_killed_conversation_continues_with_a_warning(holdfast: Holdfast, tmp_path: Path) -> None:
    with serve(hanging_reply("Once", " upon")) as provider, start_streaming(tmp_path, provider.env) as process:
        process.kill()
    done = holdfast("-c", "-p", "again", **OFFLINE)
    assert done.code == 0
    assert done.err == "The answer to the last message (1) was not finished. Send it again, or continue.\n"
    assert [role for role, _ in cli_process.read_log(tmp_path)] == ["user", "user", "assistant"]
    assert holdfast("-c", "-p", "and again", **OFFLINE).err == ""


def test_closed_standard_output_stops_the_turn(tmp_path: Path) -> None:
    long = hanging_reply("Once", *[" upon a time" * 100] * 200)
    with serve(long) as provider, start_streaming(tmp_path, provider.env) as process:
        process.stdout.close()
        assert process.wait(cli_process.PATIENCE) == 0
        assert process.stderr.read() == ""
    assert [role for role, _ in cli_process.read_log(tmp_path)] == ["user", "assistant"]


FULL = """
from tests.support import faulty_disk
faulty_disk.Disk().arm(0, {!r})
import holdfast.cli
holdfast.cli.main()
"""


@pytest.mark.parametrize("fault", ["full", "quota"])
def test_full_disk_is_reported_and_the_conversation_continues(holdfast: Holdfast, tmp_path: Path, fault: str) -> None:
    assert holdfast("-p", "The boat is called Ada.", **OFFLINE).code == 0
    for form in ("text", "json"):
        arguments = ["-c", "-p", "long words " * 11_000, "--output-format", form]
        env = {**OFFLINE, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = cli_process.run_code(tmp_path, FULL.format(fault), *arguments, env=env)
        assert done.code == 1
        assert "The disk is full (or a quota is reached)" in done.err.splitlines()[-1]
        assert "Free some space" in done.err.splitlines()[-1]
        assert "Traceback" not in done.err
        assert done.out == "" or done.data["failed"]
    done = holdfast("-c", "-p", "What is the boat called?", **OFFLINE)
    assert done.code == 0
    assert "Ada" in done.out
    assert cli_process.read_log(tmp_path)[0] == ("user", "The boat is called Ada.")


INTERRUPTED = """
import os, signal as _, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            sys.meta_path.remove(self)
            # A blocked signal is delivered at the moment it is unblocked.
            _.pthread_sigmask(_.SIG_BLOCK, [2])
            os.kill(os.getpid(), 2)
            _.pthread_sigmask(_.SIG_UNBLOCK, [2])
sys.modules.pop(MODULE, None)
sys.meta_path.insert(0, Finder())
import holdfast.cli
holdfast.cli.main()
"""


@pytest.mark.parametrize(
    "module", ["signal", "holdfast.cli.program", "msgspec._core", "apsw", "holdfast.model.offline"]
)
def test_ctrl_c_while_loading_exits_with_130(tmp_path: Path, module: str) -> None:
    done = cli_process.run_code(tmp_path, f"MODULE = {module!r}{INTERRUPTED}", "-p", "hi", env=OFFLINE)
    assert (done.code, done.out) == (130, "")
    assert done.err in ("", "Interrupted.\n")


def test_ignored_ctrl_c_stays_ignored(tmp_path: Path) -> None:
    code = "import signal, holdfast.cli; signal.signal(signal.SIGINT, signal.SIG_IGN)\ntry: holdfast.cli.main()\n"
    code += "except SystemExit: print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    assert cli_process.run_code(tmp_path, code, "config", "path").out.endswith("True\n")


# --- any input ----------------------------------------------------------------------------------------


def check(done: Run, form: str) -> dict[str, Any]:
    """Return the result, after a check of the whole document."""
    assert done.code in (0, 1, 2), done.err
    assert "Traceback" not in done.err
    assert done.out.isascii()
    if form == "json":
        result = done.data
    else:
        lines = [json.loads(line) for line in done.out.splitlines()]
        assert [line["type"] for line in lines].index("turn.complete") == len(lines) - 1
        result = lines[-1]["result"]
    assert set(result) == RESULT
    assert result["completed"] == (done.code == 0)
    assert (result["error"] is None) == result["completed"]
    return result


# Text with the characters of terminals, files and shells; and bytes that are not text.
ANY = (
    strategies.text(max_size=60).map(lambda words: words.encode("utf-8", "surrogatepass"))
    | strategies.text('\x00\x1b\x7f\x9b\r\n\t \u2028\ufeff\ud800\udfff{}[]"\\/-', max_size=30).map(
        lambda words: words.encode("utf-8", "surrogatepass")
    )
    | strategies.binary(max_size=200)
)


# One store serves all examples: each message starts a conversation.
@hypothesis.settings(max_examples=60, derandomize=True)
@hypothesis.given(
    # No system passes on a NUL in an argument.
    words=strategies.none() | ANY.map(lambda words: words.replace(b"\0", b"")),
    piped=strategies.none() | ANY | strategies.integers(1, 3).map(lambda times: b"line of text\n" * 10**times),
    form=strategies.sampled_from(FORMATS[1:]),
)
@hypothesis.example(None, b"x" * stdin_text.BINARY_CHECK_BYTES + b"\0", "json")
@hypothesis.example(b"explain", b"\xff\xfe\x80", "stream-json")
@hypothesis.example(b"/compac", None, "stream-json")
@hypothesis.example(b"\xed\xa0\x80 lone", b"/quit", "json")
def test_any_input_gets_one_valid_document(tmp_path: Path, words: bytes | None, piped: bytes | None, form: str) -> None:
    hypothesis.assume(words is not None or piped is not None)
    arguments = ["--output-format", form, *([] if words is None else [b"--prompt=" + words])]
    check(cli_in_process.run(tmp_path, *arguments, piped=piped, env=OFFLINE), form)


@pytest.mark.parametrize(("form", "words"), [("text", []), ("json", ["-p", "what is this?"])])
def test_binary_input_is_refused(holdfast: Holdfast, tmp_path: Path, form: str, words: list[str]) -> None:
    done = holdfast(*words, "--output-format", form, piped=b"\x7fELF\x02\x01\0\0", **OFFLINE)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is not text" in done.err
    assert done.out == "" or check(done, form)["failed"]
    assert os.listdir(tmp_path) == []


def test_endless_pipe_is_refused(tmp_path: Path) -> None:
    script = ["bash", "-c", 'yes | "$@"', "-", *cli_process.PROGRAM]
    assert "larger than 16 MB" in cli_process.run(tmp_path, "-p", "sum this up", env=OFFLINE, command=script).failure(2)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    ("arguments", "env", "sentence"),
    [
        (["--model", "bogus"], {}, "provider/model"),
        (["--model", "openai/x"], {}, "OPENAI_API_KEY"),
        (["--db", "notes.txt"], OFFLINE, "not a database"),
        (["--db", "."], OFFLINE, "is a directory"),
        ([], {**OFFLINE, "HOLDFAST_LOG": "none/log"}, "log"),
        ([], {**OFFLINE, "HOLDFAST_HOME": "/proc/none"}, "/proc/none"),
        (["-c", "-r", "x"], OFFLINE, "not both"),
        ([], {"HOLDFAST_PROFILE": "unknown"}, "Run `holdfast config check` to list all mistakes."),
        (["--max-steps", "none"], OFFLINE, "'none' is not a valid integer"),
    ],
)
def test_failed_start_is_one_sentence_and_a_document(
    holdfast: Holdfast, tmp_path: Path, form: str, arguments: list[str], env: dict[str, str], sentence: str
) -> None:
    (tmp_path / "notes.txt").write_text("some notes\n" * 1000)
    done = holdfast("-p", "hi", "--output-format", form, *arguments, **env)
    assert done.code in (1, 2)
    assert sentence in done.err
    assert done.err.count("\n") == 1
    if form == "text":
        assert done.out == ""
    else:
        result = check(done, form)
        assert sentence.split("`", maxsplit=1)[0] in f"{result['error']}Run "
        assert (result["failed"], result["exit_reason"]) == (True, "failed")
