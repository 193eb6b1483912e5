"""Copies of stores made by a process that may not live to see their end."""

from __future__ import annotations

from holdfast.store.db import SessionDB
from holdfast.store.transfer import copy as store_copy
from tests.faults import zygote


def move(stage: zygote.Stage) -> str:
    """A task: everything of one store into another."""
    with SessionDB(stage.args["source"]) as source, SessionDB(stage.args["target"]) as target:
        return store_copy.copy(source, target).digest
