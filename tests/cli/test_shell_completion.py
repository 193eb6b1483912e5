"""Shell completion: scripts that the shells accept, and offers of commands, options and conversations."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import SessionDB
from holdfast.cli import program, shell_completion
from tests.cli.conftest import BRANCH, TRIP
from tests.support.cli_process import Configure, Holdfast


@pytest.mark.parametrize("shell", shell_completion.SHELLS)
def test_script_is_accepted_by_its_shell(holdfast: Holdfast, shell: str) -> None:
    done = holdfast("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in done.out
    if shutil.which(shell):
        read = subprocess.run([shell, "-n"], input=done.out, capture_output=True, encoding="utf-8", check=False)
        assert (read.returncode, read.stderr) == (0, "")


Complete = Callable[..., list[str]]


@pytest.fixture
def complete(holdfast: Holdfast) -> Complete:
    """Return the offers of the program for the last of these words."""

    def run(*words: str, **env: str) -> list[str]:
        given = {"COMP_WORDS": " ".join(["holdfast", *words]), "COMP_CWORD": str(len(words)), **env}
        done = holdfast(_HOLDFAST_COMPLETE="bash_complete", **given)
        assert (done.code, done.err) == (0, "")
        return [line.partition(",")[2] for line in done.out.splitlines() if line]

    return run


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("ses", ["sessions"]),
        ("", list(program.COMMANDS)),
        ("config ", ["show", "path", "check", "edit"]),
        ("completion z", ["zsh"]),
        ("-c --out", ["--output-format"]),
        ("--vers", ["--version"]),
        ("-p x --output-format st", ["stream-json"]),
        ("nonsense", []),
    ],
)
def test_commands_options_and_values_are_offered(complete: Complete, words: str, offered: list[str]) -> None:
    assert complete(*words.split(" ")) == offered


@pytest.mark.parametrize(
    "words", [*(f"sessions {name} " for name in ("show", "title", "redact", "export", "tree")), "-r ", "chat -r "]
)
def test_conversations_are_offered_by_id_or_title(complete: Complete, trip: Path, words: str) -> None:
    with SessionDB(trip) as db:
        db.set_session_title("other", "Groceries")
    # Shells quote titles of several words differently: their ids are offered.
    assert complete(*words.split(" "), HOLDFAST_DB=str(trip)) == ["other", "Groceries", BRANCH, TRIP]
    assert complete("sessions", "delete", TRIP, "oth", HOLDFAST_DB=str(trip)) == ["other"]


def test_no_store_and_invalid_settings_offer_nothing(complete: Complete, tmp_path: Path, configure: Configure) -> None:
    assert complete("sessions", "show", "--db", "none.db", "") == []
    assert not (tmp_path / "none.db").exists()
    configure("wrong = ")
    assert complete("ses") == ["sessions"]
    assert complete("sessions", "show", "") == []
