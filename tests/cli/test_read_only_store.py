"""A store that cannot be written can be read; errors name the path and the reason."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import SessionDB

READS = """
import json, sys
from pathlib import Path
from tests.support import cli_in_process
home, store = map(Path, sys.argv[1:])
words = [["list"], ["show", "talk"], ["search", "heron"], ["title", "talk", "Bird"]]
runs = [cli_in_process.run(home, "sessions", *each, "--db", store) for each in words]
runs.append(cli_in_process.run(home, "doctor", "--db", store))
print(json.dumps([[run.code, run.out, run.err] for run in runs]))
"""
READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


def require(*prefix: str) -> list[str]:
    """Return the prefix of a command, or skip the test where it is not permitted."""
    if (
        shutil.which(prefix[0]) is None
        or subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"{prefix[0]} is not permitted here")
    return [*prefix]


def without_override() -> list[str]:
    """Return the prefix that makes modes binding for root, too."""
    return require("setpriv", "--bounding-set", "-dac_override") if os.geteuid() == 0 else []


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    with SessionDB(tmp_path / "data" / "store.db") as db:
        db.create_session("talk", source="test")
    return tmp_path / "data" / "store.db"


@pytest.mark.parametrize("how", ["mount", "folder", "file"])
@pytest.mark.parametrize("used", [False, True], ids=["closed", "in use"])
def test_read_only_store_is_read_and_the_reason_is_reported(tmp_path: Path, store: Path, how: str, used: bool) -> None:
    def run() -> list[list[str]]:
        mounted = ("unshare", "--map-root-user", "--mount", "sh", "-c", READ_ONLY, str(store.parent))
        prefix = require(*mounted) if how == "mount" else without_override()
        place, mode = (store.parent, 0o500) if how == "folder" else (store, 0o400)
        before = place.stat().st_mode
        if how != "mount":
            place.chmod(mode)
        try:
            command = [*prefix, sys.executable, "-c", READS, str(tmp_path / "home"), str(store)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        finally:
            place.chmod(before)
        return json.loads(done.stdout)

    with SessionDB(store) as db:
        db.append_message("talk", role="user", content="the heron stands")
        db.search("heron")
        db.append_message("talk", role="assistant", content="a heron it is")
        runs = run() if used else []  # The log has messages that are not in the file yet.
    runs = runs or run()
    reason = "the file system is read-only" if how == "mount" else "no permission to write"
    assert [code for code, _, _ in runs] == [0, 0, 0, 1, 1], runs
    assert all("a heron it is" in out for _, out, _ in runs[1:3])
    for text in (runs[3][2], runs[4][1]):
        assert f"{store} can only be read: {reason}" in " ".join(text.split())


OPENED = """
import sys
from holdfast import SessionDB, errors
with SessionDB(sys.argv[1]) as db:
    for line in sys.stdin:
        try:
            if line == "write\\n":
                db.append_message("talk", role="user", content="x")
            print(len(db.transcript("talk")), flush=True)
        except errors.StoreUnusable:
            print("refused", flush=True)
"""


def test_store_opened_read_only_sees_later_writes_and_becomes_writable(store: Path) -> None:
    command = [*without_override(), sys.executable, "-c", OPENED, str(store)]
    store.parent.chmod(0o500)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as reader:

        def ask(line: str) -> str:
            print(line, file=reader.stdin)
            return reader.stdout.readline().strip()

        assert [ask("read"), ask("write")] == ["0", "refused"]
        with SessionDB(store) as db:
            for seen in ("1", "2"):
                db.append_message("talk", role="user", content="x" * 5000)
                assert ask("read") == seen
        store.parent.chmod(0o700)
        assert ask("write") == "3"
        reader.stdin.close()
