"""The page about deployment: its commands run in order on a server with TLS and fsync, and print the output shown."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support import cli_in_process, cli_process, documents, postgres, tls

PAGE = documents.ROOT / "docs" / "guides" / "postgresql.md"
HOST = "db.example"
SKIPPED = ("pip ",)


class Shell:
    """A shell with its own home."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        binaries = postgres.binary_folder()
        self._env = {
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(home),
            "HOLDFAST_MODEL": "offline",
            "PGHOSTADDR": "127.0.0.1",  # the address of the name
            "PGPORT": str(port),
        }

    def run(self, command: str) -> cli_process.Run:
        words = [re.sub(r"^~/", f"{self.home}/", word) for word in shlex.split(command)]
        if words[0] == "export":
            self._env |= dict(word.split("=", 1) for word in words[1:])
            return cli_process.Run(0, "", "")
        if words[0] == "holdfast":
            return cli_in_process.run(self.home, *words[1:], env=self._env)
        env = {**self._env, "PGOPTIONS": "-csynchronous_commit=off"}
        return cli_process.run(self.home, env=env, command=["sh", "-c", f"({command}) 2>&1"])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    signed = tls.Authority(tmp_path / ".postgresql")
    signed.root.rename(signed.root.with_name("root.crt"))
    (tmp_path / ".local" / "share").mkdir(parents=True)
    (tmp_path / ".local" / "share" / "holdfast").symlink_to(tmp_path / "data")
    with postgres.Server(fsync=True) as server, tls.Front(server.address.port, signed.context(HOST)) as front:
        with psycopg.connect(server.first_dsn(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {postgres.DATABASE}")
            admin.execute(f"CREATE ROLE postgres SUPERUSER LOGIN PASSWORD '{server.address.password}'")
        (tmp_path / ".pgpass").write_text(f"{HOST}:*:*:postgres:{server.address.password}\n")
        (tmp_path / ".pgpass").chmod(0o600)
        yield Shell(tmp_path, front.port)
        assert front.encrypted


def test_command_prints_the_documented_output(shell: Shell) -> None:
    for command, shown in documents.session(PAGE):
        if command.startswith(SKIPPED):
            continue
        ran = shell.run(command)
        printed = ran.out + ran.err
        session = f"$ {command}\n{printed}[exit {ran.code}]"
        assert ran.code == 0, session
        assert documents.output_pattern(shown).fullmatch(printed), session
        assert "secret" not in printed, session


def test_commands_of_the_page_exist() -> None:
    documents.check_commands(PAGE)
