"""Copies of stores made by a process that may not live to see their end."""

from __future__ import annotations

from holdfast.store.db import SessionDB
from tests.faults import zygote


def move(stage: zygote.Stage) -> str:
    """A task: everything of one store into another."""
    with SessionDB(stage.args["source"]) as source, SessionDB(stage.args["target"]) as target:
        return source.admin.copy_to(target.admin).digest
