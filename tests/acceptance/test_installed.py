"""`pip install` gives the program, the library and their declared dependencies, nothing else."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from pathlib import Path

import holdfast
from tests.acceptance.installation import ROOT, Installed

SCRIPT = """
from holdfast import SessionDB

with SessionDB("chat.db") as db:
    chat = db.create_session(source="script", title="Groceries").id
    for text in ("milk", "bread", "tea"):
        db.append_message(chat, role="user", content=text)
    lease = db.acquire_lease(chat, "compact")
    db.append_message(chat, role="user", content="and honey")
    db.commit_compaction(lease, summary="Milk, bread, tea.", cut_seq=lease.snapshot.last_seq)
    db.append_message(chat, role="user", content="that is all")
    print([message.content for message in db.context(chat)])
"""


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return {re.split(r"[<>=!~ ;\[]", each)[0].replace("_", "-") for each in project["dependencies"]}


def test_version_is_that_of_the_source(installed: Installed, tmp_path: Path) -> None:
    done = installed.run(tmp_path, "holdfast", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {holdfast.__version__}\n", "")


def test_only_declared_dependencies_are_installed(installed: Installed, tmp_path: Path) -> None:
    """Only the declared dependencies and their own dependencies are installed."""

    def listed(*options: str) -> set[str]:
        pip = ("python", "-m", "pip", "--disable-pip-version-check", "list", "--format", "json")
        found = json.loads(installed.run(tmp_path, *pip, *options).stdout)
        return {package["name"].lower().replace("_", "-") for package in found} - {"pip", "setuptools"}

    assert listed("--not-required") == {"holdfast"}
    assert declared() < listed()


def test_wheel_has_every_file_of_the_package_and_no_other(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as wheel:
        packed = {name.removeprefix("holdfast/") for name in wheel.namelist() if name.startswith("holdfast/")}
        others = {name.split("/")[0] for name in wheel.namelist() if not name.startswith("holdfast/")}
    source = ROOT / "src" / "holdfast"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    assert packed == {name for name in files if "__pycache__" not in name}
    assert {"py.typed", "store/sql/sqlite/schema.sql"} <= packed
    assert others == {f"holdfast-{holdfast.__version__}.dist-info"}


def test_building_leaves_nothing_in_the_source_tree(installed: Installed) -> None:
    left = [path.name for path in (ROOT, ROOT / "src") for path in path.iterdir()]
    assert installed.wheel.exists()
    assert not [name for name in left if name in ("build", "dist") or name.endswith((".egg-info", ".whl"))]


def test_script_and_program_share_a_store(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = installed.run(tmp_path, "python", "-W", "error", "script.py")
    assert done.stderr == ""
    assert done.stdout == "['Milk, bread, tea.', 'and honey', 'that is all']\n"
    shown = installed.run(tmp_path, "holdfast", "sessions", "show", "Groceries", HOLDFAST_DB="chat.db")
    assert "    and honey\n" in shown.stdout
    drawn = installed.run(tmp_path, "holdfast", "sessions", "tree", "Groceries", "--db", "chat.db")
    assert "◆ cut after 3, 4 stay" in drawn.stdout
    checked = installed.run(tmp_path, "holdfast", "doctor", "--db", "chat.db")
    assert checked.returncode == 0
    assert "1 conversation, 2 sessions, 5 messages" in checked.stdout
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"script.py", "chat.db", "chat.db-wal", "chat.db-shm", "chat.db.queue"}


def test_default_store_is_in_the_home_directory(installed: Installed, tmp_path: Path) -> None:
    done = installed.run(tmp_path, "holdfast", "sessions", "list")
    assert done.returncode == 1
    assert f"There is no database at {tmp_path}" in done.stderr
    assert list(tmp_path.iterdir()) == []
