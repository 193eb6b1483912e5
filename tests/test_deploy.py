"""The page on where a store lives, played: what stands behind a `$` is run in order, and prints what stands below it.

The server is a real one that keeps every promise, behind TLS and under the name the page gives it; its clients are
those that came with it. The program runs within this process.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests import test_guide
from tests.support import cli_in_process, postgres, tls

PAGE = test_guide.ROOT / "docs" / "deploy.md"
HOST = "db.example"
# What is somebody else's to run.
LEFT = ("pip ",)


class Ran(NamedTuple):
    code: int
    out: str


class Desk:
    """One shell, in a home of its own."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        binaries = next(postgres._places())
        self._env = {
            "PATH": f"{binaries}{os.pathsep}{os.environ.get('PATH', '')}",
            "HOME": str(home),
            "HOLDFAST_MODEL": "offline",
            "PGHOSTADDR": "127.0.0.1",  # where the name leads to here
            "PGPORT": str(port),
        }

    def run(self, command: str) -> Ran:
        words = [re.sub(r"^~/", f"{self.home}/", word) for word in shlex.split(command)]
        if words[0] == "export":
            self._env |= dict(word.split("=", 1) for word in words[1:])
            return Ran(0, "")
        if words[0] == "holdfast":
            ran = cli_in_process.run(self.home, *words[1:], env=self._env)
            return Ran(ran.code, ran.out + ran.err)
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=self.home,
            env={**self._env, "PGOPTIONS": "-csynchronous_commit=off"},  # nobody waits for the disk but the store
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    signed = tls.Authority(tmp_path / ".postgresql")
    signed.root.rename(signed.root.with_name("root.crt"))
    (tmp_path / ".local" / "share").mkdir(parents=True)
    (tmp_path / ".local" / "share" / "holdfast").symlink_to(tmp_path / "data")
    with postgres.Server(fsync=True) as server, tls.Front(server.address.port, signed.context(HOST)) as front:
        with psycopg.connect(server._first_dsn(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {postgres.DATABASE}")
            admin.execute(f"CREATE ROLE postgres SUPERUSER LOGIN PASSWORD '{server.address.password}'")
        (tmp_path / ".pgpass").write_text(f"{HOST}:*:*:postgres:{server.address.password}\n")
        (tmp_path / ".pgpass").chmod(0o600)
        yield Desk(tmp_path, front.port)
        assert front.encrypted


def test_what_stands_behind_a_dollar_prints_what_stands_below_it(desk: Desk) -> None:
    for command, shown in test_guide.session(PAGE):
        if command.startswith(LEFT):
            continue
        ran = desk.run(command)
        told = f"$ {command}\n{ran.out}[exit {ran.code}]"
        assert ran.code == 0, told
        assert test_guide.pattern(shown).fullmatch(ran.out), told
        assert "secret" not in ran.out, told


def test_every_command_of_the_program_that_is_shown_exists_with_its_options() -> None:
    test_guide.test_every_command_of_the_program_that_is_shown_exists_with_its_options(PAGE)
