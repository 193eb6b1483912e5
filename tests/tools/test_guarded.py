"""Names that need care, and names that only look like them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.tools.permissions import sensitive_paths
from tests.support import file_tools


@pytest.mark.parametrize(
    "path",
    [".env", "app/.env.local", "prod.env", "server.PEM", "tls.key", "id_rsa", "id_ed25519", ".ssh/config", ".npmrc",
     ".bash_history", "shadow", ".aws/credentials", "secrets.yaml", "terraform.tfstate", ".netrc", "ID_RSA",
     ".git-credentials", ".git/config", "sub/.git/modules/x/config", "site.git/config", ".config/gh/hosts.yml",
     "client_secret_123.json", "app-serviceAccount-key.json", "myServiceAccount", "prod.tfvars", ".git/config.lock",
     "application_default_credentials.json", "x.tfvars.json",
     ".vault-token", ".env-production", "id_rsa.bak", "id_work.bak"],
)  # fmt: skip
def test_files_that_hold_secrets_are_known(path: str) -> None:
    assert sensitive_paths.secret(path.split("/"))


@pytest.mark.parametrize(
    "path",
    [".env.example", "id_rsa.pub", "id_map.py", "environment.py", "keys.py", "secrets.py", "env", "README.md", "monkey",
     "config.toml", ".env.template", ".env-example", ".git/refs/heads/config-x",
     "git/config", "hosts.yml", "ServiceAccountPage.tsx", "x.tfvars.example",
     ".git/HEAD", "client_secret.py"],
)  # fmt: skip
def test_files_that_hold_none_are_not_asked_for(path: str) -> None:
    assert not sensitive_paths.secret(path.split("/"))


@pytest.mark.parametrize(
    "path",
    [".git/hooks/pre-commit", ".git/config", ".git/config.worktree", ".GIT/Hooks/x", "sub/.git/hooks/a/b", ".git",
     ".git/modules/x/config", "vendor/.git"],
)  # fmt: skip
def test_what_makes_git_run_programs_is_never_written(tmp_path: Path, path: str) -> None:
    do = file_tools.Doing(tmp_path)
    result = do("write_file", path=path, content="#!/bin/sh\n")
    assert not result.ok
    assert not do.acts
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "path",
    [".git/HEAD", ".holdfast.toml", "AGENTS.md", "sub/agents.md", ".bashrc", ".zshrc", ".profile", ".envrc", ".env",
     ".github/workflows/ci.yml", ".vscode/tasks.json", ".gitattributes", "x.pth", "CLAUDE.md", ".cursor/rules/x.md"],
)  # fmt: skip
def test_what_steers_programs_and_agents_is_written_with_a_warning(tmp_path: Path, path: str) -> None:
    do = file_tools.Doing(tmp_path)
    assert do("write_file", path=path, content="x").ok
    assert do.acts[0].danger


@pytest.mark.parametrize(
    "path",
    [".env", "prod.env", "secrets.yaml", "id_rsa", ".ssh/config", ".bash_history", "~/.config/gh/hosts.yml",
     "/proc/1/environ", "/etc/shadow", ".ssh", "a/.aws", ".e*", "~/.s*/id*", ".??v"],
)  # fmt: skip
def test_a_command_line_is_told_by_the_same_names_what_holds_secrets(path: str) -> None:
    assert sensitive_paths.shows_secrets(sensitive_paths.path("", path))
    assert sensitive_paths.shows_secrets(sensitive_paths.path("sub", path))


@pytest.mark.parametrize(
    "path", ["a.py", ".env.example", "*.py", "src", "keys.py", ".gitignore", ".github", "x" * 5_000]
)
def test_a_command_line_may_name_what_holds_none(path: str) -> None:
    assert not sensitive_paths.shows_secrets(path)
    assert not sensitive_paths.steers(path)


@pytest.mark.parametrize(
    "path",
    [".git/hooks/x", ".cursorrules", "sitecustomize.py", ".gitattributes", "AGENTS.md", "~/.bashrc", "/etc/hosts",
     ".git", "~/.config/systemd/user/x", "~/.local/bin/x", "~/.config/holdfast/config.toml", ".vscode"],
)  # fmt: skip
def test_a_command_line_is_told_by_the_same_names_what_steers(path: str) -> None:
    assert sensitive_paths.steers(sensitive_paths.path("", path))


def test_an_ordinary_file_is_written_without_one(tmp_path: Path) -> None:
    do = file_tools.Doing(tmp_path)
    for path in (
        "a.py",
        ".gitignore",
        "docs/config",
        "hooks/x",
        "refs/x",
        "HEAD.md",
        "github/workflows/a",
        "agents.py",
    ):
        assert do("write_file", path=path, content="x").ok
    assert not any(act.danger for act in do.acts)


@pytest.mark.parametrize(
    ("there", "path"),
    [
        ((), "HEAD"),
        ((), "sub/head"),
        (("HEAD",), "config"),
        (("HEAD",), "refs/heads/main"),
        (("objects/x", "refs/x"), "config"),
        (("objects/x", "refs/x"), "hooks/pre-commit"),
        (("sub/objects/x",), "sub/refs/x"),
    ],
)
def test_file_that_makes_a_bare_repository_is_written_with_a_warning(
    tmp_path: Path, there: tuple[str, ...], path: str
) -> None:
    for each in there:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).touch()
    do = file_tools.Doing(tmp_path)
    assert do("write_file", path=path, content="x").ok
    assert "repository" in do.acts[0].danger


def test_a_secret_is_read_only_when_somebody_allows_it(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=abc", encoding="utf-8")
    (tmp_path / "harmless.txt").symlink_to(".env")
    for path in (".env", "harmless.txt"):
        denied = file_tools.Doing(tmp_path, allow=False)
        result = denied("read_file", path=path)
        assert not result.ok
        assert "abc" not in str(result.content)
        assert denied.acts[0].kind == "look"
        assert denied.acts[0].danger
        assert denied.acts[0].paths == (str(tmp_path / ".env"),)
        assert file_tools.Doing(tmp_path).text("read_file", path=path) == "1\tKEY=abc"


def test_secrets_are_not_searched(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("KEY=abc", encoding="utf-8")
    (tmp_path / "a.py").write_text("KEY=os", encoding="utf-8")
    told = file_tools.Doing(tmp_path).text("search_files", text="KEY=")
    assert told == "a.py:1: KEY=os\n[1 files that may hold secrets were not searched.]"
