"""The first chat: nothing is asked, what matters is said in a line, and it is said once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import cli_zygote, provider_process, pty_terminal

HINT = "holdfast config edit"


def first_screen(home: Path, env: dict[str, str]) -> str:
    with pty_terminal.opened(home, columns=250, env=env) as screen:
        screen.wait_for("created with your first message")
        assert screen.leave() == 0
        return screen.shown


def test_without_a_key_it_is_offline_and_says_where_settings_would_be_once(tmp_path: Path) -> None:
    shown = first_screen(tmp_path, {})
    assert "this is the built-in offline model" in shown
    assert "There are no settings yet" in shown
    assert "no settings yet in ~/data/config.toml: run" in " ".join(shown.split())
    again = first_screen(tmp_path, {})
    assert "this is the built-in offline model" in again
    assert HINT not in again


def test_what_to_do_for_a_real_model_is_said_once_and_not_again_by_the_answer(
    tmp_path: Path, waiting: cli_zygote.Server
) -> None:
    done = waiting.run(tmp_path, "-p", "hello")
    assert "I am the offline model" in done.out
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY", "Ollama"):
        assert (done.err.count(key), done.out.count(key)) == (1, 0)


@pytest.mark.parametrize("variable", ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENROUTER_API_KEY"])
def test_with_a_key_it_says_which_model_that_means_and_never_the_key(tmp_path: Path, variable: str) -> None:
    shown = first_screen(tmp_path, {variable: "key-of-mine"})
    provider_name = variable.partition("_")[0].lower()
    assert f"Using {provider_name}/" in shown
    assert f"because {variable} is set." in shown
    assert "key-of-mine" not in shown
    assert "because" not in first_screen(tmp_path, {variable: "key-of-mine"})


def test_whoever_named_a_model_is_not_told_why(tmp_path: Path) -> None:
    shown = first_screen(tmp_path, {"HOLDFAST_MODEL": "offline", "OPENAI_API_KEY": "key"})
    assert "because" not in shown
    assert HINT in shown


def test_settings_that_are_there_are_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "config.toml").write_text("model = 'offline'", "utf-8")
    assert "Your settings are in" in first_screen(tmp_path, {})


def test_one_message_is_not_a_first_chat(tmp_path: Path, waiting: cli_zygote.Server) -> None:
    with provider_process.playing(provider_process.said("Hello.")) as played:
        assert waiting.run(tmp_path, "-p", "hi", env=played.env) == (0, "Hello.\n", "")
