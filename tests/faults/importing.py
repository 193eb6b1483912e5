"""An export to be imported by a process that may not live to see its end."""

from __future__ import annotations

import io

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
    db.export_to(out, session_ids or None)
    return out.getvalue()


def take_in(stage: zygote.Stage) -> None:
    with stage.open() as db:
        report = db.import_from(io.StringIO(stage.args["text"]))
    stage.tell([outcome.outcome for outcome in report.outcomes])
