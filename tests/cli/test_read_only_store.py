"""A store that cannot be written can be read; what fails names the path and the reason, and doctor says it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import SessionDB

CHILD = """
import json, sys
from pathlib import Path
from tests.support import cli_in_process as inside
home, store = map(Path, sys.argv[1:])
words = [["list"], ["show", "talk"], ["search", "heron"], ["title", "talk", "Bird"]]
runs = [inside.run(home, "sessions", *each, "--db", str(store)) for each in words]
runs.append(inside.run(home, "doctor", "--db", str(store)))
print(json.dumps([[run.code, run.out, run.err] for run in runs]))
"""
MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


@pytest.mark.parametrize("how", ["mount", "folder", "file"])
@pytest.mark.parametrize("used", [False, True])
def test_read_only_store_is_read_and_says_why_it_is_not_written(tmp_path: Path, how: str, used: bool) -> None:
    store, home = tmp_path / "data" / "store.db", tmp_path / "home"
    home.mkdir()
    with SessionDB(store) as db:
        db.create_session("talk", source="test")
        db.append_message("talk", role="user", content="the heron stands")
        db.search("heron")
        db.append_message("talk", role="assistant", content="a heron it is")
        if used:  # its log has messages that are not in the file yet
            runs = _run(how, store, home)
    if not used:
        runs = _run(how, store, home)
    reason = "the file system is read-only" if how == "mount" else "no permission to write"
    assert [run[0] for run in runs] == [0, 0, 0, 1, 1], runs
    for _, out, _ in runs[1:3]:
        assert "a heron it is" in out
    for said in (runs[3][2], runs[4][1]):
        assert f"{store} can only be read: {reason}" in " ".join(said.split())


def _run(how: str, store: Path, home: Path) -> list[tuple[int, str, str]]:
    command = [sys.executable, "-c", CHILD, str(home), str(store)]
    if how == "mount":
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", MOUNT, str(store.parent), *command]
    elif os.geteuid() == 0:  # whom no mode binds, unless this right is given up
        command = ["setpriv", "--bounding-set", "-dac_override", *command]
    if command[0] != sys.executable and (shutil.which(command[0]) is None or not _permitted(command)):
        pytest.skip(f"{command[0]} is not permitted here")
    place, mode = (store.parent, 0o500) if how == "folder" else (store, 0o400)
    before = place.stat().st_mode
    if how != "mount":
        place.chmod(mode)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        place.chmod(before)
    return [tuple(run) for run in json.loads(done.stdout)]


def _permitted(command: list[str]) -> bool:
    tried = [*command[: command.index(sys.executable)], "true"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


FULL = """
import contextlib, json, os, sys
from pathlib import Path
from holdfast import SessionDB
from tests.support import cli_in_process as inside
home, store = map(Path, sys.argv[1:])
db = SessionDB(store)
db.create_session("talk", source="test")
with contextlib.suppress(OSError), open(store.with_name("filler"), "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
runs = [inside.run(home, "doctor", "--db", str(store))]
db.close()
runs.append(inside.run(home, "doctor", "--db", str(store)))
print(json.dumps([[run.code, run.out] for run in runs]))
"""


def test_doctor_reports_a_full_disk(tmp_path: Path) -> None:
    """Whether or not a process that has the store open has made the files beside it."""
    store, home = tmp_path / "data" / "store.db", tmp_path / "home"
    home.mkdir()
    store.parent.mkdir()
    mount = 'mount -t tmpfs -o size=2m,mode=700 tmpfs "$0" && exec "$@"'
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(store.parent), sys.executable]
    if shutil.which("unshare") is None or not _permitted(command):
        pytest.skip("unshare is not permitted here")
    done = subprocess.run([*command, "-c", FULL, str(home), str(store)], capture_output=True, text=True, check=True)
    for code, out in json.loads(done.stdout):
        assert (code, "disk" in out, "full" in out, str(store) in " ".join(out.split())) == (1, True, True, True), out


LATER = """
import sys
from holdfast import SessionDB
with SessionDB(sys.argv[1]) as db:
    while True:
        print(len(db.transcript("talk")), flush=True)
        if not sys.stdin.readline():
            break
"""


def test_reader_of_a_read_only_store_sees_what_another_user_writes_later(tmp_path: Path) -> None:
    store = tmp_path / "data" / "store.db"
    with SessionDB(store) as db:
        db.create_session("talk", source="test")
    prefix = _without_rights_of_root()
    store.parent.chmod(0o500)
    with subprocess.Popen(
        [*prefix, sys.executable, "-c", LATER, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        seen = [reader.stdout.readline()]
        with SessionDB(store) as db:
            for _ in range(2):
                db.append_message("talk", role="user", content="x" * 5000)
                reader.stdin.write("\n")
                reader.stdin.flush()
                seen.append(reader.stdout.readline())
        reader.stdin.close()
    assert seen == ["0\n", "1\n", "2\n"]


MENDED = """
import os, sys
from holdfast import SessionDB, errors
with SessionDB(sys.argv[1]) as db:
    for mode in (0o500, 0o700):
        os.chmod(os.path.dirname(sys.argv[1]), mode)
        try:
            print(db.append_message("talk", role="user", content="x").seq, len(db.transcript("talk")))
        except errors.StoreUnusable:
            print("refused")
"""


def test_store_that_was_opened_read_only_is_written_once_it_can_be(tmp_path: Path) -> None:
    store = tmp_path / "data" / "store.db"
    with SessionDB(store) as db:
        db.create_session("talk", source="test")
    store.parent.chmod(0o500)
    command = [*_without_rights_of_root(), sys.executable, "-c", MENDED, str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["refused", "1 1"]


def _without_rights_of_root() -> list[str]:
    prefix = ["setpriv", "--bounding-set", "-dac_override"] if os.geteuid() == 0 else []
    if not prefix or shutil.which(prefix[0]) is None or not _permitted([*prefix, sys.executable]):
        pytest.skip("needs root, which may write, and setpriv for a reader that may not")
    return prefix
