"""What is piped in may be anything: the answer is a valid document, or a sentence, and the exit code says which."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies

from holdfast.cli import stdin
from tests.cli import program

OFFLINE = {"HOLDFAST_MODEL": "offline"}
FIELDS = {"final_response", "messages", "completed", "failed", "error", "exit_reason", "usage", "conversation_id"}
ODD = [
    b"",
    b" \n\n",
    b"\xff\xfe\x80",
    b"\0",
    b"text\0text",
    b"x" * stdin.LOOKED_AT + b"\0",
    b"\xed\xa0\x80",
    "\ufeff\u202e\u2028\x7f\x1b[2J".encode(),
    b"{}\n]]>\"'\\",
    "𝄞漢字".encode(),
    b"/quit",
    b"read /etc/shadow",
]


class Asked:
    """The program, asked once; bytes in, bytes out."""

    def __init__(self, home: Path, form: str, words: bytes | None, piped: bytes | None) -> None:
        arguments: list[str | bytes] = [*program.PROGRAM, "--output-format", form]
        arguments += [] if words is None else [b"--prompt=" + words]
        done = subprocess.run(
            arguments,
            env=program.environment(home, OFFLINE),
            cwd=home,
            capture_output=True,
            timeout=program.PATIENCE,
            check=False,
            **({"stdin": subprocess.DEVNULL} if piped is None else {"input": piped}),  # type: ignore[call-overload]
        )
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

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


@pytest.mark.parametrize("form", ["json", "stream-json"])
@pytest.mark.parametrize("piped", ODD, ids=repr)
def test_odd_input_is_answered_with_a_whole_document(tmp_path: Path, form: str, piped: bytes) -> None:
    Asked(tmp_path, form, None, piped).check(form)
    Asked(tmp_path, form, b"explain", piped).check(form)


@hypothesis.settings(max_examples=15, deadline=None, derandomize=True, database=None)
@hypothesis.given(
    words=strategies.none() | strategies.binary(max_size=40).map(lambda words: words.replace(b"\0", b"")),
    piped=strategies.binary(max_size=200),
    form=strategies.sampled_from(["json", "stream-json"]),
)
def test_for_any_input_there_is_one_valid_document(words: bytes | None, piped: bytes, form: str) -> None:
    with tempfile.TemporaryDirectory() as home:
        Asked(Path(home), form, words, piped).check(form)


def test_what_the_shell_passes_on_that_is_no_text_is_spelled_out(tmp_path: Path) -> None:
    result = Asked(tmp_path, "json", b"caf\xe9 \xf0\x9d\x84\x9e", None).check("json")
    assert result["messages"][0]["content"][-1]["text"] == "caf\ufffd 𝄞"


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("words", [None, b"what is this?"])
def test_what_is_not_text_is_refused_and_leaves_nothing(tmp_path: Path, form: str, words: bytes | None) -> None:
    done = Asked(tmp_path, form, words, b"\x7fELF\x02\x01\0\0")
    assert (done.code, done.err.count(b"\n")) == (2, 1)
    assert b"is not text" in done.err
    assert done.out == b"" or done.check("json")["failed"]
    assert os.listdir(tmp_path) == []


def test_a_pipe_that_never_ends_is_not_waited_for(tmp_path: Path) -> None:
    script = 'yes | "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "-", *program.PROGRAM, "-p", "sum this up"],
        env=program.environment(tmp_path, OFFLINE),
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=program.PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "More than 16 MB" in program.Run(2, done.stdout, done.stderr).sentence


def test_a_text_of_many_megabytes_is_a_message(tmp_path: Path) -> None:
    result = Asked(tmp_path, "json", b"note", b"line of text\n" * 400_000).check("json")
    assert result["completed"]
    assert len(result["messages"][0]["content"][-1]["text"]) > 5_000_000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", "nobody/x"], "names no model"),
        (["--db", "."], "is a directory"),
        (["-c"], "There is no database"),
        (["-r"], "Say which conversation"),
    ],
)
@pytest.mark.parametrize("form", ["json", "stream-json"])
def test_what_could_not_begin_is_a_document_too(tmp_path: Path, form: str, arguments: list[str], told: str) -> None:
    done = program.run(tmp_path, "-p", "hi", "--output-format", form, *arguments, env=OFFLINE)
    assert done.code in (1, 2)
    assert told in done.err
    assert done.err.count("\n") == 1
    result = done.data if form == "json" else done.data["result"]
    assert told in result["error"]
    assert (result["failed"], result["completed"], result["exit_reason"]) == (True, False, "failed")


# --- limits --------------------------------------------------------------------------------------------


def test_the_steps_of_one_turn_can_be_limited_for_this_time(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the note")
    done = program.run(tmp_path, "-p", "read notes.txt", "--max-steps", "1", "--output-format", "json", env=OFFLINE)
    assert (done.code, done.data["exit_reason"], done.data["api_calls"]) == (1, "steps", 1)
    assert program.run(tmp_path, "-p", "read notes.txt", "--max-steps", "2", env=OFFLINE).code == 0


@pytest.mark.parametrize("wrong", [["--max-steps", "0"], ["--max-steps", "x"], ["--max-cost", "-1"]])
def test_a_limit_that_cannot_be_is_wrong_use(tmp_path: Path, wrong: list[str]) -> None:
    assert program.run(tmp_path, "-p", "x", *wrong, env=OFFLINE).code == 2
