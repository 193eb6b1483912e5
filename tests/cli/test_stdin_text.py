"""Any bytes as message: the answer is a valid document or a sentence, and the exit code says which."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from holdfast.cli import stdin_text
from tests.support import cli_in_process, cli_process
from tests.support.cli_process import OFFLINE, Holdfast, Run

FORMS = ["json", "stream-json"]
FIELDS = {"final_response", "messages", "completed", "failed", "error", "exit_reason", "usage", "conversation_id"}


def check(done: Run, form: str) -> dict[str, Any]:
    """Return the result, after a check of the whole document."""
    assert done.code in (0, 1, 2), done.err
    assert "Traceback" not in done.err
    assert done.out.isascii()
    if form == "json":
        result: dict[str, Any] = done.data
    else:
        lines = [json.loads(line) for line in done.out.splitlines()]
        assert [line["type"] for line in lines].index("turn.complete") == len(lines) - 1
        result = lines[-1]["result"]
    assert set(result) >= FIELDS
    assert result["completed"] == (done.code == 0)
    assert (result["error"] is None) == result["completed"]
    return result


def ask(home: Path, form: str, words: bytes | None, piped: bytes | None) -> dict[str, Any]:
    arguments = ["--output-format", form, *([] if words is None else [b"--prompt=" + words])]
    return check(cli_in_process.run(home, *arguments, piped=piped, env=OFFLINE), form)


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
    form=strategies.sampled_from(FORMS),
)
@hypothesis.example(None, b"x" * stdin_text.BINARY_CHECK_BYTES + b"\0", "json")
@hypothesis.example(b"explain", b"\xff\xfe\x80", "stream-json")
@hypothesis.example(b"/compac", None, "stream-json")
@hypothesis.example(b"\xed\xa0\x80 lone", b"/quit", "json")
def test_any_input_is_answered_with_one_valid_document(
    tmp_path: Path, words: bytes | None, piped: bytes | None, form: str
) -> None:
    hypothesis.assume(words is not None or piped is not None)
    ask(tmp_path, form, words, piped)


def test_argument_that_is_not_unicode_is_replaced(tmp_path: Path) -> None:
    done = cli_process.run(
        tmp_path, "-p", os.fsdecode(b"caf\xe9 \xf0\x9d\x84\x9e"), "--output-format", "json", env=OFFLINE
    )
    assert check(done, "json")["messages"][0]["content"][-1]["text"] == "caf\ufffd 𝄞"


@pytest.mark.parametrize(("form", "words"), [("text", []), ("json", ["-p", "what is this?"])])
def test_binary_input_is_refused_and_creates_no_file(
    holdfast: Holdfast, tmp_path: Path, form: str, words: list[str]
) -> None:
    done = holdfast(*words, "--output-format", form, piped=b"\x7fELF\x02\x01\0\0", **OFFLINE)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "is not text" in done.err
    assert done.out == "" or check(done, form)["failed"]
    assert os.listdir(tmp_path) == []


def test_endless_pipe_is_refused(tmp_path: Path) -> None:
    script = ["bash", "-c", 'yes | "$@"', "-", *cli_process.PROGRAM]
    done = cli_process.run(tmp_path, "-p", "sum this up", env=OFFLINE, command=script)
    assert done.code == 2
    assert "larger than 16 MB" in done.sentence


def test_text_of_megabytes_is_accepted(tmp_path: Path) -> None:
    result = ask(tmp_path, "json", b"note", b"line of text\n" * 400_000)
    assert result["completed"]
    assert len(result["messages"][0]["content"][-1]["text"]) > 5_000_000


@pytest.mark.parametrize("form", ["text", *FORMS])
@pytest.mark.parametrize(
    ("arguments", "env", "sentence"),
    [
        (["--model", "bogus"], {}, "provider/model"),
        (["--model", "openai/x"], {}, "OPENAI_API_KEY"),
        (["--db", "notes.txt"], OFFLINE, "not a database"),
        (["--db", "notes.txt/x.db"], OFFLINE, "notes.txt"),
        (["--db", "."], OFFLINE, "is a directory"),
        ([], {**OFFLINE, "HOLDFAST_LOG": "none/log"}, "log"),
        ([], {**OFFLINE, "HOLDFAST_HOME": "/proc/none"}, "/proc/none"),
        (["-c"], OFFLINE, "There is no database"),
        (["-r"], OFFLINE, "Name the conversation"),
        (["-c", "-r", "x"], OFFLINE, "not both"),
        (["--profile", "unknown"], OFFLINE, "no profile 'unknown'"),
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
