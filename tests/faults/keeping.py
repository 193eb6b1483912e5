"""Backup, restore, prune, deletion, scrub and salvage as things a process can be killed in.

Each begins from the same furnished folder. `look` says what is there afterwards: the store, the copy and the
archive, each as what it holds, without what differs between two runs (counters that leap by chance).
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import types
from holdfast.store import salvage
from holdfast.store.db import SessionDB
from tests.faults import disk, zygote

NOW = 2_000_000_000.0
MARKER = "a text that must go"


def furnish(folder: Path) -> None:
    """A store, an earlier backup of it, and what came after that backup."""
    with SessionDB(folder / "store.db", clock=lambda: NOW) as db:
        for name in ("one", "two", "three"):
            db.create_session(name, source="fault", title=name)
            for number in range(5):
                db.append_message(name, role="user", content=f"{name} {number}", uid=f"{name}:{number}")
        db.append_message("two", role="user", content=MARKER * 400, uid="marker")
        for name in ("one", "two"):
            blob = db.put_blob(f"picture of {name}".encode())
            db.append_message(name, role="user", content=[{"type": "image", "blob": blob.digest}], uid=f"{name}:blob")
        lease = db.acquire_lease("two", "compact", "me")
        db.commit_compaction(lease, summary=MARKER, cut_seq=6, child_id="two on")
        db.branch("one", branch_id="branch")
        db.backup(folder / "copies" / "copy.db")
        db.append_message("one", role="user", content="after the backup", uid="after")
        db.create_session("later", source="fault")
        db.append_message("later", role="user", content="later", uid="later")
        db.put_blob(b"nobody names this")
        db.delete_conversation("three")


def _prune(db: SessionDB, folder: Path) -> None:
    db.prune(db.plan_prune(older_than_days=0), folder / "archive.jsonl")


def _delete(db: SessionDB, _: Path) -> None:
    if db.get_session("two"):
        db.delete_conversation("two")
    db.scrub()


def _redact(db: SessionDB, _: Path) -> None:
    if not db.transcript("two", after=5, upto=6)[0].redacted:
        db.redact("two", 6)
    db.scrub()


class Act(NamedTuple):
    """What is done, the operations whose points count, and whether the marker must be in no file in the end."""

    operations: tuple[str, ...]
    run: Callable[[SessionDB, Path], Any]
    removes: bool = False


ACTS = {
    "backup": Act(("backup", "blob"), lambda db, folder: db.backup(folder / "copies" / "copy.db")),
    "backup_if_due": Act(("backup", "blob", "claim"), lambda db, folder: db.backup_if_due(folder / "due", 24, 2)),
    "restore": Act(("restore", "blob"), lambda db, folder: db.restore(folder / "copies" / "copy.db")),
    "prune": Act(("prune", "blob"), _prune),
    "delete": Act(("delete", "collect", "scrub"), _delete, removes=True),
    "redact": Act(("redact", "collect", "scrub"), _redact, removes=True),
    "collect": Act(("collect",), lambda db, _: db.collect_blobs(0)),
    "put": Act(("blob",), lambda db, _: db.put_blob(b"another picture")),
}


def perform(stage: zygote.Stage) -> None:
    """A task: the act itself; where and how the child dies is not its business."""
    shim = disk.Disk() if "disk" in stage.args else None
    with SessionDB(stage.path, clock=lambda: NOW + 86_400) as db:
        if shim:
            shim.arm(**stage.args["disk"])
        ACTS[stage.args["act"]].run(db, Path(stage.path).parent)
    stage.tell({"touches": shim.count if shim else 0})


def perform_salvage(stage: zygote.Stage) -> None:
    folder = Path(stage.path).parent
    salvage.run(stage.path, str(folder / "new.db"))


# --- what is there -------------------------------------------------------------------------------------------


def exported(db: SessionDB) -> list[dict[str, Any]]:
    out = io.StringIO()
    db.export_to(out)
    told = [json.loads(line) for line in out.getvalue().splitlines()]
    for line in told:
        for changing in {"epoch", "fence", "version", "digest", "created_at"} & line.keys():
            if line["kind"] in ("conversation", "route", "sealed", "end") if "kind" in line else False:
                line[changing] = None
    return told


def look(folder: Path) -> dict[str, Any]:
    """All of it, each part sound; a part that is not there is None."""
    with SessionDB(folder / "store.db", clock=lambda: NOW) as db:
        assert db.fsck().ok, db.fsck()
        kept = {digest: db._shelf.state(digest) for digest, *_ in db.driver.read(lambda tx: tx.all("blobs_all"))}
        # The content of what nobody names goes before its row; what is named fsck has looked at.
        found = {"store": exported(db), "blobs": [digest for digest, state in kept.items() if state == "sound"]}
    due = sorted((folder / "due").glob("*.db")) if (folder / "due").exists() else []
    return {
        **found,
        "copy": _copy(folder / "copies" / "copy.db"),
        "due": [_copy(path) for path in due],
        "archive": _archive(folder / "archive.jsonl"),
    }


def _copy(path: Path) -> Any:
    beside = frozenset(each.name for each in Path(f"{path}.blobs").rglob("*"))
    return _held(path.read_bytes(), beside, path) if path.exists() else None


_known: dict[object, Any] = {}


def _held(data: bytes, beside: frozenset[str], path: Path) -> Any:
    """Looked at once: a copy of the same bytes holds the same."""
    if (data, beside) not in _known:
        _known[data, beside] = _restored(path)
    return _known[data, beside]


def _restored(path: Path) -> Any:
    with SessionDB(":memory:") as db:
        report = db.restore(path)
        assert report.lost_blobs == ()
        assert db.fsck().ok
        return exported(db)


def _archive(path: Path) -> Any:
    if not path.exists():
        return None
    with SessionDB(":memory:") as db, path.open() as file:
        assert db.import_from(file).ok
        return exported(db)


def next_message(folder: Path) -> types.Receipt:
    with SessionDB(folder / "store.db") as db:
        receipt = db.append_message("one", role="user", content="next", uid="next")
        assert db.fsck().ok
        return receipt


def drafts(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*.draft*")]


def holding(folder: Path, text: str) -> list[str]:
    files = [path for path in folder.glob("store.db*") if path.is_file()]
    return [path.name for path in files if text.encode() in path.read_bytes()]


class Template:
    """A furnished folder, copied for every kill. Nobody has it open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "template"
        self._folder.mkdir(mode=0o700)
        furnish(self._folder)
        self._home = folder
        self._count = 0

    def fresh(self) -> Path:
        self._count += 1
        made = self._home / f"{self._count}"
        shutil.copytree(self._folder, made)
        os.chmod(made, 0o700)
        return made
