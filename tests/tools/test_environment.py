"""Commands inherit the environment without secrets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.tools.shell import environment

GIT = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.bareRepository", "GIT_CONFIG_VALUE_0": "explicit"}
SECRETS = [
    "OPENAI_API_KEY", "TOKEN", "npm_config__authToken", "AWS_ACCESS_KEY_ID", "DJANGO_SECRET", "PGPASSWORD", "MYSQL_PWD",
    "SMTP_PASS", "REGISTRY_AUTH", "passphrase", "GITHUB_PAT", "ConnectionStrings__Main", "SLACK_WEBHOOK_URL",
    "GCP_CREDENTIALS_JSON", "session_jwt", "LOGIN_COOKIES", "DATABASE_URL", "SENTRY_DSN", "dsn", "NOTIFY_SOCKET",
]  # fmt: skip
ORDINARY = [
    "PATH", "HOME", "OLDPWD", "SSH_AUTH_SOCK", "XAUTHORITY", "GIT_AUTHOR_NAME", "TOKENIZERS_PARALLELISM", "KEYBOARD",
    "GOOGLE_APPLICATION_CREDENTIALS", "LANG", "X_PASSTHROUGH", "COMPATIBLE", "MY_PATH",
]  # fmt: skip


@pytest.mark.parametrize("name", [*SECRETS, *ORDINARY])
def test_variable_named_like_a_secret_is_withheld_unless_passed(name: str) -> None:
    inherited = {} if name in SECRETS else {name: "x"}
    assert environment.of_commands({name: "x"}) == {**environment.QUIET, **GIT, **inherited}
    assert environment.of_commands({name: "x"}, passed=[name])[name] == "x"


@pytest.mark.parametrize(
    ("value", "is_inherited"),
    [
        ("redis://:hunter2@cache:6379/0", False),
        ("https://api/x?password=hunter2", False),
        ("Server=db;User=ann;Pwd=hunter2", False),
        ("https://a.example/simple https://ann:hunter2@b.example/simple", False),
        ("https://ghp_0123456789abcdef@example.com/x", False),
        ("Endpoint=sb://x;SharedAccessKey=hunter2", False),
        ("", True),
    ],
)
@pytest.mark.parametrize("name", ["REDIS_URL", "HTTPS_PROXY", "BACKEND"])
def test_address_with_a_password_is_withheld_unless_passed(name: str, value: str, is_inherited: bool) -> None:
    assert (name in environment.of_commands({name: value})) is is_inherited
    assert environment.of_commands({name: value}, passed=[name])[name] == value


def test_given_and_quiet_variables_win_and_secrets_of_the_settings_are_withheld() -> None:
    environ = {"CAT": "token-of-cat", "HOLDFAST_DB": "postgresql://ann:password@db/x", "LANG": "C", "PAGER": "less"}
    made = environment.of_commands({**environ, "HOLDFAST_SESSION_ID": "old"}, withheld=["CAT"], HOLDFAST_SESSION_ID="s")
    assert made == {"LANG": "C", "HOLDFAST_SESSION_ID": "s", **environment.QUIET, **GIT}
    assert made["PAGER"] == "cat"
    assert environment.of_commands(environ, passed=["CAT"], withheld=["CAT"])["CAT"] == "token-of-cat"


def test_git_settings_are_added_to_the_settings_of_the_user() -> None:
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
    for count in ("-1", "x", "0"):
        assert GIT.items() <= environment.of_commands({"GIT_CONFIG_COUNT": count}).items()


def test_files_of_a_bare_repository_run_nothing(tmp_path: Path) -> None:
    for folder in ("objects", "refs", "sub"):
        (tmp_path / folder).mkdir()
    (tmp_path / "HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    core = f'repositoryformatversion = 0\nworktree = "{tmp_path}"\nfsmonitor = "touch {tmp_path}/ran; false"\n'
    (tmp_path / "config").write_text(f"[core]\n{core}", encoding="utf-8")
    bare = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "sub")}

    def run_git(where: Path, environ: dict[str, str]) -> bool:
        subprocess.run(["git", "status"], cwd=where, env=environ, check=False, capture_output=True)
        return (tmp_path / "ran").exists()

    assert not run_git(tmp_path, environment.of_commands(bare))
    assert not run_git(tmp_path / "sub", environment.of_commands(bare))
    # Without the setting, git runs the program that the file names.
    assert run_git(tmp_path, bare)
