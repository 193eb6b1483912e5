"""What is piped in may be anything: the answer is a valid document, or a sentence, and the exit code says which."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies

from holdfast.cli import stdin_text
from tests.support import cli_in_process, cli_process, cli_zygote, provider_process

OFFLINE = {"HOLDFAST_MODEL": "offline"}
FIELDS = {"final_response", "messages", "completed", "failed", "error", "exit_reason", "usage", "conversation_id"}
ODD = [
    b"",
    b" \n\n",
    b"\xff\xfe\x80",
    b"\0",
    b"text\0text",
    b"x" * stdin_text.BINARY_CHECK_BYTES + b"\0",
    b"\xed\xa0\x80",
    "\ufeff\u202e\u2028\x7f\x1b[2J".encode(),
    b"{}\n]]>\"'\\",
    "𝄞漢字".encode(),
    b"/quit",
    b"read /etc/shadow",
]


class Asked(NamedTuple):
    """The program, asked once; bytes in, bytes out."""

    code: int
    out: bytes
    err: bytes

    def check(self, form: str) -> dict[str, Any]:
        assert self.code in (0, 1, 2), self.err
        assert b"Traceback" not in self.err
        assert self.out.isascii()
        if form == "json":
            result = json.loads(self.out)
        else:
            assert self.out.endswith(b"\n")
            lines = [json.loads(line) for line in self.out.splitlines()]
            assert all(isinstance(line["type"], str) for line in lines)
            assert [line["type"] for line in lines].index("turn.complete") == len(lines) - 1
            result = lines[-1]["result"]
        assert set(result) >= FIELDS
        assert result["completed"] == (self.code == 0)
        assert (result["error"] is None) == result["completed"]
        found: dict[str, Any] = result
        return found


FORMS = ["json", "stream-json"]


def arguments_of(form: str, words: bytes | None) -> list[str | bytes]:
    return ["--output-format", form, *([] if words is None else [b"--prompt=" + words])]


def alone(home: Path, form: str, words: bytes | None, piped: bytes | None) -> Asked:
    """In a process of its own, from the very beginning."""
    done = subprocess.run(
        [*cli_process.PROGRAM, *arguments_of(form, words)],
        env=cli_process.environment(home, OFFLINE),
        cwd=home,
        capture_output=True,
        timeout=cli_process.PATIENCE,
        check=False,
        **({"stdin": subprocess.DEVNULL} if piped is None else {"input": piped}),  # type: ignore[call-overload]
    )
    return Asked(done.returncode, done.stdout, done.stderr)


Ask = Callable[[str, bytes | None, bytes | None], Asked]


@pytest.fixture
def ask(tmp_path: Path, waiting: cli_zygote.Server) -> Ask:
    def asked(form: str, words: bytes | None, piped: bytes | None) -> Asked:
        return Asked(*waiting.pipe(tmp_path, *arguments_of(form, words), piped=piped, env=OFFLINE))

    return asked


def within(home: Path, form: str, words: bytes | None, piped: bytes | None) -> Asked:
    """The same without a process: many can be tried."""
    done = cli_in_process.run(home, *arguments_of(form, words), piped=piped, env=OFFLINE)
    return Asked(done.code, done.out.encode(), done.err.encode())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("piped", ODD, ids=repr)
def test_odd_input_is_answered_with_a_whole_document(tmp_path: Path, form: str, piped: bytes) -> None:
    within(tmp_path, form, None, piped).check(form)
    within(tmp_path, form, b"explain", piped).check(form)


@pytest.mark.parametrize("words", [b"\xed\xa0\x80 lone", b"\x1b[2J\x9b", b"/help", b"/compac", b"//x", b"/"])
@pytest.mark.parametrize("form", FORMS)
def test_odd_words_are_answered_with_a_whole_document(form: str, words: bytes, ask: Ask) -> None:
    ask(form, words, None).check(form)


@pytest.mark.parametrize("form", FORMS)
def test_words_that_are_no_text_reach_a_process_that_answers_with_a_whole_document(tmp_path: Path, form: str) -> None:
    alone(tmp_path, form, b"\xff\xfe", b"\xff\0").check(form)


# Text as people write it, with what terminals, files and shells may put between; and bytes that are no text at all.
anything = (
    strategies.text(max_size=60).map(lambda words: words.encode("utf-8", "surrogatepass"))
    | strategies.text('\x00\x1b\x7f\x9b\r\n\t \u2028\ud800\udfff{}[]"\\/-', max_size=30).map(
        lambda words: words.encode("utf-8", "surrogatepass")
    )
    | strategies.binary(max_size=200)
)


@hypothesis.settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    # One store serves all: each message begins a conversation of its own.
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(
    # No system passes on a NUL in an argument.
    words=strategies.none() | anything.map(lambda words: words.replace(b"\0", b"")),
    piped=strategies.none() | anything | strategies.integers(1, 3).map(lambda times: b"line of text\n" * 10**times),
    form=strategies.sampled_from(FORMS),
)
def test_for_any_input_there_is_one_valid_document(
    tmp_path: Path, words: bytes | None, piped: bytes | None, form: str
) -> None:
    hypothesis.assume(words is not None or piped is not None)
    within(tmp_path, form, words, piped).check(form)


def test_what_the_shell_passes_on_that_is_no_text_is_spelled_out(tmp_path: Path) -> None:
    result = alone(tmp_path, "json", b"caf\xe9 \xf0\x9d\x84\x9e", None).check("json")
    assert result["messages"][0]["content"][-1]["text"] == "caf\ufffd 𝄞"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("words", [None, b"what is this?"])
def test_what_is_not_text_is_refused_and_leaves_nothing(
    tmp_path: Path, form: str, words: bytes | None, ask: Ask
) -> None:
    done = ask(form, words, b"\x7fELF\x02\x01\0\0")
    assert (done.code, done.err.count(b"\n")) == (2, 1)
    assert b"is not text" in done.err
    assert done.out == b"" or done.check("json")["failed"]
    assert os.listdir(tmp_path) == []


def test_a_pipe_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    script = 'yes | "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "-", *cli_process.PROGRAM, "-p", "sum this up"],
        env=cli_process.environment(tmp_path, OFFLINE),
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=cli_process.PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "larger than 16 MB" in cli_process.Run(2, done.stdout, done.stderr).sentence


def test_a_text_of_many_megabytes_is_a_message(ask: Ask) -> None:
    result = ask("json", b"note", b"line of text\n" * 400_000).check("json")
    assert result["completed"]
    assert len(result["messages"][0]["content"][-1]["text"]) > 5_000_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "nobody/x"], "is not a model name"),
        (["--db", "."], "is a directory"),
        (["-c"], "There is no database"),
        (["-r"], "Name the conversation"),
        (["-c", "-r", "x"], "not both"),
        (["--profile", "nobody"], "no profile 'nobody'"),
        (["--max-steps", "none"], "'none' is not a valid integer"),
    ],
)
@pytest.mark.parametrize("form", ["json", "stream-json"])
def test_what_could_not_begin_is_a_document_too(
    tmp_path: Path, form: str, arguments: list[str], told: str, waiting: cli_zygote.Server
) -> None:
    done = waiting.run(tmp_path, "-p", "hi", "--output-format", form, *arguments, env=OFFLINE)
    assert done.code in (1, 2)
    assert told in done.err
    assert done.err.count("\n") == 1
    result = done.data if form == "json" else done.data["result"]
    assert told in result["error"]
    assert (result["failed"], result["completed"], result["exit_reason"]) == (True, False, "failed")


@pytest.mark.parametrize("wrong", ["file", "profile"])
@pytest.mark.parametrize("form", ["json", "stream-json"])
def test_settings_that_are_wrong_are_a_document_too(tmp_path: Path, form: str, wrong: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text("colour = true\n" if wrong == "file" else "", "utf-8")
    env = {"HOLDFAST_HOME": str(home), **({"HOLDFAST_PROFILE": "nobody"} if wrong == "profile" else {})}
    done = cli_in_process.run(tmp_path, "-p", "hi", "--output-format", form, env=env)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "Run `holdfast config check` to list all mistakes." in done.err
    result = done.data if form == "json" else done.data["result"]
    assert ("`colour`" if wrong == "file" else "'nobody'") in result["error"]


# --- limits --------------------------------------------------------------------------------------------


def test_the_steps_of_one_turn_can_be_limited_for_this_time(tmp_path: Path, waiting: cli_zygote.Server) -> None:
    (tmp_path / "notes.txt").write_text("the note")
    done = waiting.run(tmp_path, "-p", "read notes.txt", "--max-steps", "1", "--output-format", "json", env=OFFLINE)
    assert (done.code, done.data["exit_reason"], done.data["api_calls"]) == (1, "steps", 1)
    assert waiting.run(tmp_path, "-p", "read notes.txt", "--max-steps", "2", env=OFFLINE).code == 0


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_turn_ends_when_it_has_cost_what_it_may(tmp_path: Path, form: str, waiting: cli_zygote.Server) -> None:
    (tmp_path / "notes.txt").write_text("the note")
    (tmp_path / "data").mkdir(mode=0o700)
    price = '[models."openai/played"]\nprice = { input = 1.0, output = 1.0 }\n'
    (tmp_path / "data" / "config.toml").write_text(price, "utf-8")
    # Each request takes 300,000 tokens, so 30 cents: after the second it is enough.
    call = provider_process.called("read_file", '{"path": "notes.txt"}', tokens=300_000)
    with provider_process.playing(call, call, call, provider_process.said("Done.")) as played:
        limited = ("-p", "go", "--max-cost", "0.5", "--output-format", form)
        done = waiting.run(tmp_path, *limited, env=played.env)
        assert len(played.asked) == 2
        assert done.code == 1
        told = "I stopped: this turn has cost about $0.60; its limit is $0.50."
        assert done.err.splitlines()[-1] == f"holdfast: {told}"
        if form == "json":
            assert (done.data["exit_reason"], done.data["api_calls"]) == ("cost", 2)
            assert done.data["usage"]["cost"] == pytest.approx(0.6)
        # What the file allows holds where nothing is said.
        assert waiting.run(tmp_path, "-p", "go", env=played.env).out.endswith("Done.\n")


@pytest.mark.parametrize("wrong", [["--max-steps", "0"], ["--max-steps", "x"], ["--max-cost", "-1"]])
def test_a_limit_that_cannot_be_is_wrong_use(tmp_path: Path, wrong: list[str], waiting: cli_zygote.Server) -> None:
    assert waiting.run(tmp_path, "-p", "x", *wrong, env=OFFLINE).code == 2
