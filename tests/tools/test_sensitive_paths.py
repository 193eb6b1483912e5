"""Paths of secrets and of files that steer programs need approval, and similar names do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.tools.permissions import sensitive_paths
from tests.support.file_tools import FileTools

SECRETS = [
    ".env", "app/.env.local", "prod.env", "server.PEM", "tls.key", "id_rsa", "id_ed25519", ".ssh/config", ".npmrc",
    ".bash_history", "shadow", ".aws/credentials", "secrets.yaml", "terraform.tfstate", ".netrc", "ID_RSA",
    ".git-credentials", ".git/config", "sub/.git/modules/x/config", "site.git/config", ".config/gh/hosts.yml",
    "client_secret_123.json", "app-serviceAccount-key.json", "myServiceAccount", "prod.tfvars", ".git/config.lock",
    "application_default_credentials.json", "x.tfvars.json", ".vault-token", ".env-production", "id_rsa.bak",
]  # fmt: skip
NO_SECRETS = [
    ".env.example", "id_rsa.pub", "id_map.py", "environment.py", "keys.py", "secrets.py", "env", "README.md", "monkey",
    "config.toml", ".env.template", ".env-example", ".git/refs/heads/config-x", "git/config", "hosts.yml",
    "ServiceAccountPage.tsx", "x.tfvars.example", ".git/HEAD", "client_secret.py",
]  # fmt: skip


@pytest.mark.parametrize(("path", "is_secret"), [*((p, True) for p in SECRETS), *((p, False) for p in NO_SECRETS)])
def test_secrets_are_known_by_their_path(path: str, is_secret: bool) -> None:
    assert bool(sensitive_paths.secret(path.split("/"))) is is_secret


SHOWS = ["prod.env", "~/.config/gh/hosts.yml", "/proc/1/environ", "/etc/shadow", ".ssh", ".e*", "~/.s*/id*", ".??v"]
STEERS = [
    ".git/hooks/x", ".cursorrules", "sitecustomize.py", "AGENTS.md", "~/.bashrc", ".git", "/etc/hosts", ".vscode",
    "~/.config/systemd/user/x", "~/.local/bin/x", "~/.config/holdfast/config.toml",
]  # fmt: skip
HARMLESS = ["a.py", ".env.example", "*.py", "src", ".gitignore", ".github", "x" * 5_000]


@pytest.mark.parametrize("path", [*SHOWS, *STEERS, *HARMLESS])
def test_word_of_a_command_line_may_show_secrets_or_steer_programs(path: str) -> None:
    for folder in ("", "sub"):
        word = sensitive_paths.path(folder, path)
        assert bool(sensitive_paths.shows_secrets(word)) is (path in SHOWS)
    assert bool(sensitive_paths.steers(sensitive_paths.path("", path))) is (path not in HARMLESS)


NEVER = [".git/hooks/pre-commit", ".git/config.worktree", ".GIT/Hooks/x", "sub/.git/hooks/a/b", ".git"]
WARNED = [
    ".git/HEAD", ".holdfast.toml", "sub/agents.md", ".bashrc", ".envrc", ".env", ".github/workflows/ci.yml",
    ".vscode/tasks.json", ".gitattributes", "x.pth", "CLAUDE.md", ".cursor/rules/x.md",
]  # fmt: skip
ORDINARY = ["a.py", ".gitignore", "docs/config", "hooks/x", "refs/x", "HEAD.md", "github/workflows/a", "agents.py"]


@pytest.mark.parametrize("path", [*NEVER, *WARNED, *ORDINARY])
def test_startup_file_is_written_with_a_warning_and_a_git_file_never(tmp_path: Path, path: str) -> None:
    tools = FileTools(tmp_path)
    assert tools("write_file", path=path, content="#!/bin/sh\n").ok is (path not in NEVER)
    assert [bool(act.danger) for act in tools.acts] == ([] if path in NEVER else [path in WARNED])
    assert bool(list(tmp_path.iterdir())) is (path not in NEVER)


@pytest.mark.parametrize(
    ("existing", "path"),
    [
        ((), "sub/head"),
        (("HEAD",), "refs/heads/main"),
        (("objects/x", "refs/x"), "hooks/pre-commit"),
        (("sub/objects/x",), "sub/refs/x"),
    ],
)
def test_bare_repository_file_is_written_with_a_warning(tmp_path: Path, existing: tuple[str, ...], path: str) -> None:
    for each in existing:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).touch()
    tools = FileTools(tmp_path)
    assert tools("write_file", path=path, content="x").ok
    assert "repository" in tools.acts[0].danger


@pytest.mark.parametrize("path", [".env", "harmless.txt"])
def test_secret_is_read_only_with_approval_and_never_searched(tmp_path: Path, path: str) -> None:
    (tmp_path / ".env").write_text("KEY=abc", encoding="utf-8")
    (tmp_path / "harmless.txt").symlink_to(".env")
    denied = FileTools(tmp_path, allow=False)
    assert "abc" not in denied.refusal("read_file", path=path)
    (act,) = denied.acts
    assert (act.kind, bool(act.danger), act.paths) == ("look", True, (str(tmp_path / ".env"),))
    assert FileTools(tmp_path).text("read_file", path=path) == "1\tKEY=abc"
    (tmp_path / "a.py").write_text("KEY=os", encoding="utf-8")
    found = FileTools(tmp_path).text("search_files", text="KEY=")
    assert found == "a.py:1: KEY=os\n[1 files that may hold secrets were not searched.]"
