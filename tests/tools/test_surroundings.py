"""The environment of commands: no keys but those that may pass."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.tools.shell import environment


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GITHUB_TOKEN",
        "TOKEN",
        "npm_config__authToken",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "DJANGO_SECRET",
        "PGPASSWORD",
        "MYSQL_PWD",
        "SMTP_PASS",
        "DEPLOY_KEY",
        "REGISTRY_AUTH",
        "passphrase",
        "GITHUB_PAT",
        "ConnectionStrings__Main",
        "SLACK_WEBHOOK_URL",
        "GCP_CREDENTIALS_JSON",
        "session_jwt",
        "AZURE_STORAGE_CONNECTION_STRING",
        "LOGIN_COOKIES",
        "DOCKER_AUTH_CONFIG",
        "DATABASE_URL",
        "TEST_DATABASE_URI",
        "SENTRY_DSN",
        "dsn",
        "NOTIFY_SOCKET",
        "WATCHDOG_PID",
        "WATCHDOG_USEC",
    ],
)
def test_what_is_named_like_a_secret_is_not_given_on(name: str) -> None:
    assert environment.of_commands({name: "x"}) == {**environment.QUIET, **GIT}
    assert environment.of_commands({name: "x"}, passed=[name])[name] == "x"


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "GIT_AUTHOR_NAME", "TOKENIZERS_PARALLELISM",
     "KEYBOARD", "GOOGLE_APPLICATION_CREDENTIALS", "LANG", "X_PASSTHROUGH", "COMPATIBLE", "MY_PATH"],
)  # fmt: skip
def test_what_programs_need_is_given_on(name: str) -> None:
    assert environment.of_commands({name: "x"})[name] == "x"


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        ("redis://:hunter2@cache:6379/0", False),
        ("amqp://ann:p%2Fw@mail/x", False),
        ("https://api/x?password=hunter2", False),
        ("Server=db;User=ann;Pwd=hunter2", False),
        ("https://a.example/simple https://ann:hunter2@b.example/simple", False),
        ("https://api.example.com:8443/x", True),
        ("https://ghp_0123456789abcdef@example.com/x", False),
        ("https://example.com/x?key=AIza0", False),
        ("host=db password=hunter2", False),
        ("Endpoint=sb://x;SharedAccessKey=hunter2", False),
        ("https://ann@example.com/x", True),
        ("https://example.com/a:b@c", True),
        ("", True),
    ],
)
@pytest.mark.parametrize("name", ["REDIS_URL", "broker_uri", "HTTPS_PROXY", "BACKEND"])
def test_an_address_with_a_password_in_it_is_not_given_on(name: str, value: str, passes: bool) -> None:
    assert (name in environment.of_commands({name: value})) is passes
    assert environment.of_commands({name: value}, passed=[name])[name] == value


def test_what_is_given_besides_wins() -> None:
    made = environment.of_commands({"PAGER": "less", "HOLDFAST_SESSION_ID": "old"}, HOLDFAST_SESSION_ID="new")
    assert (made["PAGER"], made["HOLDFAST_SESSION_ID"]) == ("cat", "new")


def test_what_settings_name_as_a_secret_is_not_given_on_whatever_it_is_called() -> None:
    environ = {"CAT": "token-of-cat", "HOLDFAST_DB": "postgresql://ann:password@db/x", "LANG": "C"}
    made = environment.of_commands(environ, withheld=["CAT"])
    assert made == {"LANG": "C", **environment.QUIET, **GIT}
    assert environment.of_commands(environ, passed=["CAT"], withheld=["CAT"])["CAT"] == "token-of-cat"


GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.bareRepository", "GIT_CONFIG_VALUE_0": "explicit"}


def test_git_settings_come_behind_those_of_the_user() -> None:
    mine = {"GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "a.b", "GIT_CONFIG_VALUE_0": "1",
            "GIT_CONFIG_KEY_1": "http.proxy", "GIT_CONFIG_VALUE_1": "http://ann:hunter2@proxy"}  # fmt: skip
    made = environment.of_commands(mine)
    assert {name: value for name, value in made.items() if "CONFIG" in name} == {
        "GIT_CONFIG_COUNT": "2",
        "GIT_CONFIG_KEY_0": "a.b",
        "GIT_CONFIG_VALUE_0": "1",
        "GIT_CONFIG_KEY_1": "safe.bareRepository",
        "GIT_CONFIG_VALUE_1": "explicit",
    }
    for count in ("", "-1", "x", "0"):
        assert GIT.items() <= environment.of_commands({"GIT_CONFIG_COUNT": count}).items()


def test_files_that_look_like_a_bare_repository_run_nothing(tmp_path: Path) -> None:
    for folder in ("objects", "refs", "sub"):
        (tmp_path / folder).mkdir()
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    settings = (
        f'[core]\nrepositoryformatversion = 0\nworktree = "{tmp_path}"\nfsmonitor = "touch {tmp_path}/ran; false"\n'
    )
    (tmp_path / "config").write_text(settings, encoding="utf-8")
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "sub")}
    for where in (tmp_path, tmp_path / "sub"):
        subprocess.run(
            ["git", "status"], cwd=where, env=environment.of_commands(bare), check=False, capture_output=True
        )
        assert not (tmp_path / "ran").exists()
    # The attack is real: without the setting git runs what the file says.
    subprocess.run(["git", "status"], cwd=tmp_path, env=bare, check=False, capture_output=True)
    assert (tmp_path / "ran").exists()
