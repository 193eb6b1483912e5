"""The first chat names the model and the settings in one line each, once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import pty_terminal
from tests.support.cli_process import Holdfast
from tests.support.provider_process import reply, serve

HINT = "holdfast config edit"


def first_screen(home: Path, env: dict[str, str]) -> str:
    with pty_terminal.open_terminal(home, columns=250, env=env) as screen:
        screen.wait_for("created with your first message")
        assert screen.leave() == 0
        return " ".join(screen.shown.split())


def test_chat_without_a_key_is_offline_and_names_the_settings_once(tmp_path: Path) -> None:
    shown = first_screen(tmp_path, {})
    assert "holdfast/offline" in shown
    assert "this is the built-in offline model" in shown
    assert "There are no settings yet in ~/data/config.toml: run" in shown
    again = first_screen(tmp_path, {})
    assert "this is the built-in offline model" in again
    assert HINT not in again


def test_one_message_names_each_provider_once(tmp_path: Path, holdfast: Holdfast) -> None:
    done = holdfast("-p", "hello")
    assert "I am the offline model" in done.out
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "Ollama"):
        assert (done.err.count(key), done.out.count(key)) == (1, 0)
    with serve(reply("Hello.")) as provider:
        assert holdfast("-p", "hi", **provider.env) == (0, "Hello.\n", "")


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "OPENROUTER_API_KEY"])
def test_chat_names_the_model_of_a_key_and_never_the_key(tmp_path: Path, variable: str) -> None:
    shown = first_screen(tmp_path, {variable: "key-of-mine"})
    assert f"Using {variable.partition('_')[0].lower()}/" in shown
    assert f"because {variable} is set." in shown
    assert "key-of-mine" not in shown
    assert "because" not in first_screen(tmp_path, {variable: "key-of-mine"})


def test_chat_with_a_named_model_gives_no_reason(tmp_path: Path) -> None:
    shown = first_screen(tmp_path, {"HOLDFAST_MODEL": "offline", "OPENAI_API_KEY": "key"})
    assert "because" not in shown
    assert HINT in shown


def test_chat_names_existing_settings(tmp_path: Path, configure: Callable[[str], Path]) -> None:
    configure("model = 'offline'")
    assert "Your settings are in" in first_screen(tmp_path, {})
