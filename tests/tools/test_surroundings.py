"""The environment of commands: no keys but those that may pass."""

from __future__ import annotations

import pytest

from holdfast.tools import surroundings


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
    assert surroundings.of_commands({name: "x"}) == surroundings.QUIET
    assert surroundings.of_commands({name: "x"}, passed=[name])[name] == "x"


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "PWD", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "GIT_AUTHOR_NAME", "TOKENIZERS_PARALLELISM",
     "KEYBOARD", "GOOGLE_APPLICATION_CREDENTIALS", "LANG", "X_PASSTHROUGH", "COMPATIBLE", "MY_PATH"],
)  # fmt: skip
def test_what_programs_need_is_given_on(name: str) -> None:
    assert surroundings.of_commands({name: "x"})[name] == "x"


@pytest.mark.parametrize(
    ("value", "passes"),
    [
        ("redis://:hunter2@cache:6379/0", False),
        ("amqp://ann:p%2Fw@mail/x", False),
        ("https://api/x?password=hunter2", False),
        ("Server=db;User=ann;Pwd=hunter2", False),
        ("https://a.example/simple https://ann:hunter2@b.example/simple", False),
        ("https://api.example.com:8443/x", True),
        ("https://ann@example.com/x", True),
        ("https://example.com/a:b@c", True),
        ("", True),
    ],
)
@pytest.mark.parametrize("name", ["REDIS_URL", "broker_uri", "HTTPS_PROXY", "BACKEND"])
def test_an_address_with_a_password_in_it_is_not_given_on(name: str, value: str, passes: bool) -> None:
    assert (name in surroundings.of_commands({name: value})) is passes
    assert surroundings.of_commands({name: value}, passed=[name])[name] == value


def test_what_is_given_besides_wins() -> None:
    made = surroundings.of_commands({"PAGER": "less", "HOLDFAST_SESSION_ID": "old"}, HOLDFAST_SESSION_ID="new")
    assert (made["PAGER"], made["HOLDFAST_SESSION_ID"]) == ("cat", "new")


def test_what_settings_name_as_a_secret_is_not_given_on_whatever_it_is_called() -> None:
    environ = {"CAT": "token-of-cat", "HOLDFAST_DB": "postgresql://ann:password@db/x", "LANG": "C"}
    made = surroundings.of_commands(environ, withheld=["CAT"])
    assert made == {"LANG": "C", **surroundings.QUIET}
    assert surroundings.of_commands(environ, passed=["CAT"], withheld=["CAT"])["CAT"] == "token-of-cat"
