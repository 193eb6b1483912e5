"""Completion scripts in the real shells."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import SessionDB
from tests.acceptance.installation import Installed
from tests.acceptance.tmux import Terminal

TITLE = "Trip to Lisbon, Porto: \u6f22\u5b57"
OFFERS = [
    ("ses", "sessions "),
    ("sessions sh", "sessions show "),
    ("--output-f", "--output-format "),
    ("-c --output-format st", "-c --output-format stream-json "),
    ("completion z", "completion zsh "),
    ("-r lisb", "-r lisbon_1 "),
    ("sessions show lisb", "sessions show lisbon_1 "),
    ("sessions show Groc", "sessions show Groceries "),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with SessionDB(tmp_path / "data" / "holdfast.db") as db:
        db.create_session("lisbon_1", source="test", title=TITLE)
        db.create_session("food_1", source="test", title="Groceries")
        db.create_session("food_2", source="test", title="More food")
    return tmp_path


def complete(terminal: Terminal, begun: str) -> str:
    """Press Tab after this text and return the completed line."""
    terminal.tmux("send-keys", "-l", f"holdfast {begun}")
    # What is typed behind the cursor shows as a space only where something else follows.
    terminal.wait_for(f"% holdfast {begun}".rstrip())
    terminal.tmux("send-keys", "Tab")
    terminal.tmux("send-keys", "-l", "END")
    screen = terminal.wait_for("END")
    terminal.tmux("send-keys", "C-u")
    terminal.tmux("send-keys", "C-l")
    return next(line for line in screen.splitlines() if "END" in line).partition("% holdfast ")[2]


SHELLS = {
    "bash": (["--norc", "--noprofile"], "bind 'set enable-bracketed-paste off'; eval \"$(holdfast completion bash)\""),
    "zsh": (["-f"], 'autoload -Uz compinit && compinit -u && eval "$(holdfast completion zsh)"'),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_words_and_titles(terminal: Terminal, installed: Installed, home: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    options, setup = SHELLS[shell]
    env = installed.environment(home, TERM="screen", SHELL="/bin/sh", HOLDFAST_HOME=str(home / "data"))
    terminal.tmux("new-session", "-d", "-x", "110", "-y", "40", "-c", home, shell, *options, env=env)
    terminal.type(f"PS1='{'%%' if shell == 'zsh' else '%'} '; {setup} && clear && echo REA''DY")
    terminal.wait_for("READY")
    for begun, whole in OFFERS:
        assert complete(terminal, begun) == f"{whole}END", begun
    if shell == "zsh":
        terminal.type("holdfast sessions show ", "Tab")
        screen = terminal.wait_for(f"-- {TITLE}")
        listed = [line.split() for line in screen.splitlines() if " -- " in line]
        assert ["food_2", "--", "More", "food"] in listed
        assert ["lisbon_1", "--", *TITLE.split()] in listed


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes_commands_options_values_and_conversations(installed: Installed, home: Path) -> None:
    asked = "; echo =; ".join(f"complete -C 'holdfast {begun}'" for begun, _ in OFFERS)
    fish, script = shutil.which("fish"), f"holdfast completion fish | source; {asked}"
    assert fish is not None
    done = installed.run(home, fish, "--no-config", "-c", script, HOLDFAST_HOME=str(home / "data"))
    assert (done.returncode, done.stderr) == (0, "")
    offered = [answer.strip().splitlines() for answer in done.stdout.split("=\n")]
    assert len(offered) == len(OFFERS)
    for (begun, whole), answers in zip(OFFERS, offered, strict=True):
        assert [each.partition("\t")[0] for each in answers] == [whole.split()[-1]], begun
    assert offered[5] == [f"lisbon_1\t{TITLE}"]
