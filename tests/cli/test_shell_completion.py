"""The scripts for shells: they are read without a fault, and complete what the program knows, loading little."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.cli import program, shell_completion
from tests.cli.conftest import BRANCH, TRIP
from tests.support import cli_process as running

Holdfast = Callable[..., running.Run]


@pytest.mark.parametrize("shell", shell_completion.SHELLS)
def test_every_script_is_data_and_names_the_program(holdfast: Holdfast, shell: str) -> None:
    done = holdfast("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in done.out
    if shutil.which(shell):
        read = subprocess.run([shell, "-n"], input=done.out, capture_output=True, encoding="utf-8", check=False)
        assert (read.returncode, read.stderr) == (0, "")


def test_an_unknown_shell_is_wrong_use(holdfast: Holdfast) -> None:
    assert holdfast("completion", "tcsh").code == 2
    assert "bash" in holdfast("completion", "tcsh").sentence


def completed(home: Path, *words: str) -> list[str]:
    """What bash would offer behind these words, by the script itself."""
    bin_ = home / "bin"
    bin_.mkdir(exist_ok=True)
    (bin_ / "holdfast").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m holdfast "$@"\n')
    (bin_ / "holdfast").chmod(0o755)
    quoted = " ".join(f"'{word}'" for word in ("holdfast", *words))
    script = f"""
        export PATH="{bin_}:$PATH"
        eval "$(holdfast completion bash)"
        COMP_WORDS=({quoted}) COMP_CWORD={len(words)}
        _holdfast_completion holdfast
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        env=running.environment(home),
        cwd=home,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ses"], ["sessions"]),
        ([""], list(program.COMMANDS)),
        (["sessions", "sh"], ["show"]),
        (["config", ""], ["show", "path", "check", "edit"]),
        (["completion", "z"], ["zsh"]),
        (["--out"], ["--output-format"]),
        (["-c", "--out"], ["--output-format"]),
        (["--vers"], ["--version"]),
        (["-p", "x", "--output-format", "st"], ["stream-json"]),
        (["nonsense"], []),
    ],
    ids=" ".join,
)
def test_bash_is_offered_commands_options_and_values(tmp_path: Path, words: list[str], offered: list[str]) -> None:
    assert completed(tmp_path, *words) == offered


def test_conversations_are_offered_where_one_is_named(tmp_path: Path, trip: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    trip.rename(tmp_path / "data" / "holdfast.db")
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        db.set_session_title("other", "Groceries")
    # A title of several words is written differently in each shell, so its id stands for it.
    assert completed(tmp_path, "-r", "") == ["other", "Groceries", BRANCH, TRIP]
    assert completed(tmp_path, "sessions", "show", "Gro") == ["Groceries"]
    assert completed(tmp_path, "sessions", "delete", TRIP, "oth") == ["other"]
    assert completed(tmp_path, "sessions", "show", "--db", "none.db", "") == []
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        *(["sessions", name] for name in ("show", "title", "delete", "redact", "export", "tree")),
        ["-r"],
        ["--resume"],
        ["chat", "-r"],
    ],
    ids=" ".join,
)
def test_every_place_for_a_conversation_is_completed(
    tmp_path: Path, trip: Path, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"COMP_WORDS": " ".join(["holdfast", *command, ""]), "COMP_CWORD": str(len(command) + 1)}
    for name, value in {**asked, "HOLDFAST_DB": str(trip)}.items():
        monkeypatch.setenv(name, value)
    assert shell_completion.answer(program.program, {"_HOLDFAST_COMPLETE": "bash_complete"}) == 0
    assert f"plain,{TRIP}\n" in capsys.readouterr().out


def test_a_wrong_file_of_settings_does_not_disturb_whoever_completes(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.toml").write_text("wrong = ", "utf-8")
    assert completed(tmp_path, "ses") == ["sessions"]
    assert completed(tmp_path, "sessions", "show", "") == []


def test_naming_a_command_loads_none(tmp_path: Path) -> None:
    code = "import sys\nimport holdfast.cli\n"
    code += "try: holdfast.cli.main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    asked = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast ", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=running.environment(tmp_path, asked),
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    assert "plain,sessions" in done.stdout
    commands = {module.partition(":")[0] for module, _ in program.COMMANDS.values()} - {"holdfast.cli.shell_completion"}
    assert not set(done.stderr.split()) & {*commands, "apsw", "asyncio", "prompt_toolkit", "httpx2"}
