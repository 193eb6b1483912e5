"""Exports to be made or imported by a process that may not live to see its end."""

from __future__ import annotations

import io
from pathlib import Path

from holdfast.store.blobs import files as blob_files
from holdfast.store.db import SessionDB
from tests.faults import zygote


def fill(db: SessionDB) -> None:
    """Two conversations that know everything an import has to write, and a branch between them."""
    db.create_session("talk", source="fault", title="Title")
    for number in range(1, 7):
        db.append_message("talk", role="user", content=f"message {number}", uid=f"talk:{number}")
    db.commit_compaction(db.acquire_lease("talk", "compact", "me"), summary="four", cut_seq=4, child_id="talk-1")
    db.undo_compaction("talk")
    db.hide("talk", 5, 6)
    db.show("talk")
    db.bind_route("chat", "talk", version=0)
    db.branch("talk", 3, branch_id="twig")
    db.append_message("twig", role="user", content="mine", uid="twig:1")
    db.end_conversation("twig", "done")
    db.create_session("alone", source="fault")
    db.append_message("alone", role="user", content="other", uid="alone:1")


def exported(db: SessionDB, *session_ids: str) -> str:
    out = io.StringIO()
    db.admin.export_to(out, session_ids or None)
    return out.getvalue()


def take_in(stage: zygote.Stage) -> None:
    with stage.open() as db:
        report = db.admin.import_from(io.StringIO(stage.args["text"]))
    stage.tell([outcome.outcome for outcome in report.outcomes])


class Export:
    """What an export left on the disk: its lines, and the attachments beside it."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_bytes()
        self.blobs = {digest for digest, _ in blob_files.BlobFiles(f"{path}.blobs").files()}
        self._names = sorted(entry.name for entry in Path(f"{path}.blobs").rglob("*"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Export) and vars(self) == vars(other)

    __hash__ = object.__hash__


def attach(db: SessionDB, name: str, *contents: bytes) -> None:
    """A message that names these attachments."""
    digests = [db.blobs.put(content, "image/png").digest for content in contents]
    parts = [{"type": "image", "blob": digest} for digest in digests]
    db.append_message(name, role="user", content=parts, uid=f"{name}:blobs")


def take_in_file(stage: zygote.Stage) -> None:
    with stage.open() as db:
        report = db.admin.import_from(Path(stage.args["file"]))
    stage.tell([outcome.outcome for outcome in report.outcomes])


def write_file(stage: zygote.Stage) -> None:
    with stage.open() as db:
        stage.tell(list(db.admin.export_to(Path(stage.args["file"])).blobs))
