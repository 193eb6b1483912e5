"""`holdfast gateway setup`: questions on a terminal, checks with the client libraries, and the files it writes."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import config, errors
from holdfast.cli import settings_edit
from holdfast.gateway.platforms import plugins
from tests.support import cli_in_process, cli_process, pty_terminal, telegram_server
from tests.support.chat_adapters import Service, open_service
from tests.support.cli_process import Configure, Holdfast

SETTINGS = """\
# mine\r
model = 'offline'  # no key

[gateway.{name}] # the bot
{address}

# last
[limits]
steps = 9
"""
WRONG = "123456:wrong"
ENTER, INTERRUPT = "\n", "\x03"
"""Steps that enter an empty line, and send SIGINT."""
INVALID_SENDER = {"telegram": "@ann", "discord": "ann", "slack": "@ann", "email": "ann"}
QUIET = {"PYTHONWARNINGS": "error,ignore::DeprecationWarning"}
"""discord.py imports a deprecated module."""


def settings_of(name: str, service: Service) -> str:
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in service.address.items())
    return SETTINGS.format(name=name, address=lines)


async def run_setup(
    home: Path, *words: str, steps: Iterable[tuple[str, str]], code: int = 0, **env: str
) -> pty_terminal.Terminal:
    """Answer the questions of the setup on a terminal, while the services of this event loop answer.

    A step is a text to wait for and the line to enter then, if any. The setup must end with an exit code.
    """
    options: dict[str, Any] = {"columns": 200, "env": {**QUIET, **env}}

    def run() -> pty_terminal.Terminal:
        with pty_terminal.open_terminal(home, "gateway", "setup", *words, **options) as terminal:
            for shown, line in steps:
                terminal.wait_for(shown)
                if line == INTERRUPT:
                    terminal.process.send_signal(signal.SIGINT)
                elif line:
                    terminal.type("\r" if line == ENTER else f"{line}\r")
            assert terminal.end() == code
            return terminal

    return await asyncio.to_thread(run)


def answer_fields(name: str, service: Service, secrets: Mapping[str, str], hint: str) -> Iterator[tuple[str, str]]:
    """Yield the steps for the fields of a platform: keep the address, and enter these secrets."""
    for field in plugins.load_guide(name).fields:
        if field.variable:
            removal = "" if field.required else ", - removes it" if hint else " (optional)"
            question = f"{field.label}{hint}{removal}{')' * bool(hint)}: "
        else:
            removal = "" if field.required else " (optional, - removes it)"
            question = f"{field.label}{removal} [{service.address[field.setting]}]: "
        yield question, secrets.get(field.setting, ENTER)


@pytest.mark.parametrize("name", ["telegram", "discord", "slack", "email"])
async def test_setup_writes_settings_and_sends_a_message(name: str, tmp_path: Path, configure: Configure) -> None:
    async with open_service(name) as service:
        file = configure(settings_of(name, service))
        variables, kept = file.with_name("gateway.env"), tmp_path / "kept.env"
        kept.touch(0o600)
        variables.symlink_to(kept)
        steps = [
            *answer_fields(name, service, dict.fromkeys(service.secrets, WRONG), ""),
            ("problem: ", ""),
            ("[retry]: ", ENTER),
            *answer_fields(name, service, service.secrets, " (Enter keeps the current value"),
            (f"{name}: connected as {service.account}", ""),
            ("pair later): ", INVALID_SENDER[name]),
            (f"This is not a sender id of {name}. ", ""),
            # The case of a mail address does not matter.
            ("pair later): ", service.sender.upper() if name == "email" else service.sender),
        ]
        terminal = await run_setup(tmp_path, name, steps=steps)
        assert f"A test message was sent to {service.sender}." in terminal.shown
        assert any("The setup works" in text for text in service.server.texts())
        assert not any(secret in terminal.raw for secret in (*service.secrets.values(), WRONG))

        text = file.read_bytes().decode()
        head, separator, rest = settings_of(name, service).partition(" # the bot\n")
        fields = plugins.load_guide(name).fields
        added = "".join(f'{each.setting} = "{each.variable}"\n' for each in fields if each.variable)
        assert text == f'{head}{separator}{added}{rest}\n[gateway.allow]\n{name} = ["{service.sender}"]\n'
        assert variables.is_symlink()
        assert {path.stat().st_mode & 0o777 for path in (file, kept)} == {0o600}
        settings = config.load(cli_process.environment(tmp_path))
        assert settings.gateway.allow == {name: [service.sender]}
        assert sorted(settings.secrets.values()) == sorted(service.secrets.values())

        run = partial(cli_process.run, tmp_path, "gateway", "setup", env=QUIET)
        done = await asyncio.to_thread(run, "--check", "--json")
        assert done.data == {"ok": True, "platforms": {name: {"account": service.account, "problems": []}}}
        variables.write_text(settings_edit.set_variables("", dict.fromkeys(settings.secrets, WRONG)))
        done = await asyncio.to_thread(run, name, "--check")
        assert (done.code, "problem: " in done.out, "next: " in done.out) == (1, True, True)


QUIT = [("optional): ", WRONG), ("[retry]: ", "quit\r"), ("Nothing was changed.", "")]


@pytest.mark.parametrize(("steps", "code"), [(QUIT, 1), ([("optional): ", INTERRUPT)], 130)])
async def test_cancelled_setup_writes_nothing(
    steps: list[Any], code: int, tmp_path: Path, configure: Configure
) -> None:
    """The line `quit` is followed by another one, which would answer a further question."""
    async with open_service("slack") as service:
        file = configure(settings_of("slack", service))
        before = file.read_bytes()
        token = service.secrets["bot_token_env"]
        await run_setup(tmp_path, "slack", steps=[("xoxb-...): ", token), *steps], code=code)
        assert file.read_bytes() == before
        assert [each.name for each in file.parent.iterdir()] == ["config.toml"]


async def test_sender_whose_test_message_is_refused_is_asked_for_again(tmp_path: Path, configure: Configure) -> None:
    async with open_service("telegram") as service:
        # A token in place of the name of its variable is replaced.
        file = configure(settings_of("telegram", service).replace("# the bot\n", "\ntoken_env = '1:AAF'\n"))
        service.server.failures["sendMessage"].append(telegram_server.BotError(400, "Bad Request: chat not found"))
        steps = [
            ("Token: ", service.secrets["token_env"]),
            ("pair later): ", "43"),
            ("The test message was not sent: ", ""),
            ("found. Correct the id, or write to the bot first and enter the id again.", ""),
            ("pair later): ", ENTER),
        ]
        terminal = await run_setup(tmp_path, "telegram", steps=steps)
        assert 'token_env = "TELEGRAM_TOKEN"' in file.read_text()
        assert "1:AAF" not in terminal.raw
        assert "[gateway.allow]" not in file.read_text()


async def test_hyphen_removes_an_optional_value_only(tmp_path: Path, configure: Configure) -> None:
    file = configure(
        "[gateway.matrix]\nhomeserver = 'http://127.0.0.1:9'\ninvites = ['@ann:a.test']\ntoken_env = 'TOKEN'\n"
    )
    steps = [
        ("Homeserver [http://127.0.0.1:9]: ", "-"),
        ("Access token: ", "syt_token"),
        ("`homeserver` must be a URL", ""),
        ("save to save the settings anyway", ""),
        ("[retry]: ", "retry"),
        ("Homeserver [-]: ", "http://127.0.0.1:9"),
        ("Access token (Enter keeps the current value): ", ENTER),
        ("next: Check the network and `homeserver`.", ""),
        ("[retry]: ", "save"),
        ("pair later): ", ENTER),
        ("invite the bot (optional, - removes it) [@ann:a.test]: ", "-"),
    ]
    await run_setup(tmp_path, "matrix", steps=steps)
    assert file.read_text() == "[gateway.matrix]\nhomeserver = 'http://127.0.0.1:9'\ntoken_env = 'TOKEN'\n"


async def test_settings_can_be_saved_although_the_service_is_unreachable(tmp_path: Path, configure: Configure) -> None:
    async with open_service("telegram") as service:
        file, token = configure(settings_of("telegram", service)), service.secrets["token_env"]
    steps = [
        ("Token (Enter keeps the current value): ", token),
        ("next: Check the network and `api_url`", ""),
        ("[retry]: ", "save"),
        ("pair later): ", "*"),
        ("must be the id that the platform assigns", ""),
        ("pair later): ", "42"),
    ]
    terminal = await run_setup(tmp_path, "telegram", steps=steps, TELEGRAM_TOKEN="1:other")
    assert "The test message was not sent: Telegram: " in terminal.shown
    assert "TELEGRAM_TOKEN has another value in your environment" in terminal.shown
    assert not any(secret in terminal.raw for secret in (token, "1:other"))
    assert 'telegram = ["42"]' in file.read_text()
    assert token in file.with_name("gateway.env").read_text()


async def test_platform_is_chosen_from_the_list_and_a_token_is_created(tmp_path: Path, home: Path) -> None:
    listed = [("http      not configured", ""), ("telegram  not configured", "")]
    steps = [*listed, ("Platform: ", "http"), ("Enter creates one): ", ENTER)]
    terminal = await run_setup(tmp_path, steps=steps)
    settings = config.load(cli_process.environment(tmp_path))
    assert settings.gateway.http.tokens == {"me": "HOLDFAST_HTTP_TOKEN"}
    (token,) = settings.secrets.values()
    assert len(token) >= 32
    assert token not in terminal.raw
    assert not [each for each in home.iterdir() if each.name not in ("config.toml", "gateway.env")]


async def test_http_token_that_is_too_short_is_reported_before_it_is_saved(tmp_path: Path, home: Path) -> None:
    steps = [
        ("Enter creates one): ", "short"),
        ("must have at least 16 printable ASCII characters", ""),
        ("[retry]: ", "quit"),
    ]
    await run_setup(tmp_path, "http", steps=steps, code=1)
    assert list(home.iterdir()) == []


def test_setup_without_terminal_prints_the_settings_to_add(holdfast: Holdfast, home: Path) -> None:
    done = holdfast("gateway", "setup", "telegram")
    assert done.code == 2
    assert '\n[gateway.telegram]\ntoken_env = "TELEGRAM_TOKEN"\n' in done.err
    assert f"TELEGRAM_TOKEN into the environment or {home}/gateway.env" in done.words
    assert list(home.iterdir()) == []
    assert "Name a platform." in holdfast("gateway", "setup").err
    assert "There is no platform 'pigeon'" in holdfast("gateway", "setup", "pigeon").sentence
    assert holdfast("gateway", "setup", "--json").code == 2
    assert "slack is not configured" in holdfast("gateway", "setup", "slack", "--check").sentence
    done = holdfast("gateway", "setup", "--check")
    assert (done.code, done.sentence) == (2, "holdfast: Nothing is configured. Run: holdfast gateway setup")


def test_check_reports_variables_and_modes(holdfast: Holdfast, configure: Configure, home: Path) -> None:
    configure(
        "[gateway.http.tokens]\nann = 'ANN'\nben = 'BEN'\n[gateway.slack]\nbot_token_env = 'BOT'\n"
        "app_token_env = 'APP'\n[gateway.matrix]\ntoken_env = 'syt_secret'\n[gateway.loopback]\n"
    )
    (home / "gateway.env").write_text("BOT=xoxb-secret\nBEN=short\n")
    (home / "gateway.env").chmod(0o640)
    done = holdfast("gateway", "setup", "--check")
    assert done.code == 1
    assert "http: 2 problems" in done.out
    assert "The token of ben must have at least 16 printable ASCII characters" in done.words
    assert "ANN is not set." in done.out
    assert "environment variable APP is not set. Add it to gateway.env" in done.words
    assert "environment variable that `token_env` names is not set" in done.words
    assert "loopback: the settings are valid" in done.out
    assert "gateway.env: 1 problem" in done.out
    assert "chmod 600" in done.out
    assert "secret" not in done.out + done.err
    assert done.err.splitlines() == [f"Checking {name} …" for name in ("http", "loopback", "slack", "matrix")]
    assert holdfast("gateway", "setup", "loopback", "--check", "--json").err == ""


def test_check_hides_secrets_of_plugins(tmp_path: Path, configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    (info := tmp_path / "chatty-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chatty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[holdfast.platforms]\nchatty = chatty_platform:make\n")
    make = "def make(context):\n    raise errors.SettingInvalid('Wrong ' + context.secrets['TOKEN'])\n"
    (tmp_path / "chatty_platform.py").write_text(f"from holdfast import errors\n\n\n{make}")
    monkeypatch.syspath_prepend(tmp_path)
    configure("[gateway.chatty]\ntoken_env = 'TOKEN'\n").with_name("gateway.env").write_text("TOKEN=chatty-secret\n")
    done = cli_in_process.run(tmp_path, "gateway", "setup", "chatty", "--check")
    assert ("Wrong ***" in done.out, "chatty-secret" in done.out + done.err) == (True, False)


EDITS: list[tuple[str, Mapping[tuple[str, ...], object], str]] = [
    ("", {("gateway", "loopback", "socket"): "s"}, '[gateway.loopback]\nsocket = "s"\n'),
    (
        "[gateway]\nbusy = 'steer'\n\n# about limits\n[limits]\nsteps = 5",
        {("gateway", "loopback", "socket"): "s"},
        "[gateway]\nbusy = 'steer'\n\n# about limits\n[limits]\nsteps = 5\n\n[gateway.loopback]\nsocket = \"s\"\n",
    ),
    (
        "[gateway.loopback] # a\nsocket = 's' # b\n[gateway.allow]\nx = [\n  1, # one\n]\n",
        {("gateway", "loopback", "socket"): "t", ("gateway", "allow", "x"): [1, "2"]},
        '[gateway.loopback] # a\nsocket = "t" # b\n[gateway.allow]\nx = [\n  1, # one\n  "2",\n]\n',
    ),
    (
        "[ gateway . allow ] # a\n\n# about limits\n[limits]\nsteps = 5\n",
        {("gateway", "allow", "x"): ["1"]},
        '[ gateway . allow ] # a\nx = ["1"]\n\n# about limits\n[limits]\nsteps = 5\n',
    ),
    (
        "[gateway.loopback]\r\nsocket = 's'\r\n",
        {("gateway", "loopback", "socket"): "s"},
        "[gateway.loopback]\r\nsocket = 's'\r\n",
    ),
]


@pytest.mark.parametrize(("text", "values", "expected"), EDITS)
def test_edit_keeps_the_rest_of_the_file(text: str, values: Mapping[tuple[str, ...], object], expected: str) -> None:
    assert settings_edit.set_values(text, values) == expected


def test_edit_refuses_a_file_that_it_would_break() -> None:
    with pytest.raises(errors.SettingInvalid, match="cannot be changed automatically"):
        settings_edit.set_values("gateway = { busy = 'steer' }\n", {("gateway", "loopback", "socket"): "s"})


def test_secrets_file_is_read_as_it_is_written(tmp_path: Path, configure: Configure) -> None:
    secrets = {"A": "plain:1-2", "B": 'it\'s # "$HOME" \\ ü'}
    text = settings_edit.set_variables("# mine\nexport A=old\n\nOTHER=x y\n", secrets)
    assert text.startswith("# mine\n\nOTHER=x y\nA=plain:1-2\n")
    assert dict(config.parse_variables(text)) == {"OTHER": "x y", **secrets}
    file = configure("[gateway.http.tokens]\na = 'A'\nb = 'B'\n").with_name("gateway.env")
    file.write_text(text)
    assert config.load(cli_process.environment(tmp_path)).secrets == secrets
    assert config.load(cli_process.environment(tmp_path, {"A": "set", "B": ""})).secrets == {**secrets, "A": "set"}
    file.write_text("A='hidden\n")
    with pytest.raises(errors.SettingInvalid, match="line 1 has a quotation mark") as raised:
        config.load(cli_process.environment(tmp_path))
    assert "hidden" not in str(raised.value)
    assert "line 1" in cli_in_process.run(tmp_path, "gateway", "setup", "http", "--check").sentence
