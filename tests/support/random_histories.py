"""Random sequences of public calls; refused calls are skipped."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

from hypothesis import strategies as st

from holdfast import SessionDB, errors
from tests.support import conversations

_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
CONTENTS = _TEXT | st.lists(st.dictionaries(_TEXT, _JSON, max_size=3), max_size=2)


class Step(NamedTuple):
    """A call, the number of its conversation, and its arguments."""

    verb: str
    whom: int = 0
    low: int = 0
    high: int = 0
    content: Any = ""


class Place(NamedTuple):
    """A step and its conversation; `new` is an unused id or uid."""

    db: SessionDB
    whom: str
    new: str
    low: int
    high: int
    content: Any
    last: int


def _begin(at: Place) -> None:
    owner, model = "someone" if at.low % 2 else "", "m" if at.low % 3 else None
    at.db.create_session(at.new, source="test", owner=owner, model=model)


def _say(at: Place) -> None:
    role, metadata = "user" if at.low % 2 else "assistant", {"of": at.content} if at.high % 2 else None
    at.db.append_message(at.whom, role=role, content=at.content, uid=at.new, metadata=metadata)


def _call(at: Place) -> None:
    arguments = {"of": at.content} if at.low % 2 else str(at.content)
    calls = [{"id": f"call{at.low}", "name": "tool", "arguments": arguments}]
    at.db.append_message(at.whom, role="assistant", content=at.content, tool_calls=calls, uid=at.new)


def _answer(at: Place) -> None:
    at.db.append_message(at.whom, role="tool", content=at.content, tool_call_id=f"call{at.low}", uid=at.new)


def _compact(at: Place, work: Any, **how: Any) -> None:
    before, last = at.db.context(at.whom, upto=0).cut_seq, at.db.conversation(at.whom).last_seq
    cut, seen = sorted((before + at.low % (last - before + 1), before + at.high % (last - before + 1)))
    summary = f"summary {at.content}"[:20]
    at.db.commit_compaction(work, summary=summary, cut_seq=cut, seen_seq=seen, child_id=at.new, **how)


def _first(at: Place) -> list[int]:
    return [1] if at.db.context(at.whom, upto=0).cut_seq else []


def _compact_leased(at: Place) -> None:
    ledger = {"kept": at.content} if at.content else None
    _compact(at, at.db.acquire_lease(at.whom, "compact", "me"), ledger=ledger, pinned=_first(at))


def _two_calls(at: Place) -> None:
    at.db.end_session(at.db.head(at.whom).id, "compression")
    at.db.create_session(at.new, source="other", parent_session_id=at.db.head(at.whom).id)


def _branch(at: Place) -> None:
    at.db.branch(at.whom, min(at.high, at.last) if at.low else None, branch_id=at.new)


def _route(at: Place) -> None:
    key = f"chat:{at.low}"
    at.db.bind_route(key, at.whom if at.high else None, version=at.db.route(key).version)


VERBS: dict[str, Callable[[Place], object]] = {
    "begin": _begin,
    "say": _say,
    "call": _call,
    "answer": _answer,
    "compact": _compact_leased,
    "compact unleased": lambda at: _compact(at, at.db.snapshot(at.whom), model="other"),
    "two calls": _two_calls,
    "undo": lambda at: at.db.undo_compaction(at.whom),
    "redo": lambda at: at.db.redo_compaction(at.whom),
    "hide": lambda at: at.db.hide(at.whom, *sorted((1 + at.low % at.last, 1 + at.high % at.last))),
    "show": lambda at: at.db.show(at.whom),
    "end": lambda at: at.db.end_conversation(at.whom, "done"),
    "resume": lambda at: at.db.resume(at.whom),
    "branch": _branch,
    "child": lambda at: at.db.create_session(at.new, source="test", parent_session_id=at.db.head(at.whom).id),
    "redact": lambda at: at.db.redact(at.whom, 1 + at.high % at.last),
    "title": lambda at: at.db.set_session_title(at.whom, f"Title {at.low}" if at.low else None),
    "folder": lambda at: at.db.set_session_folder(at.whom, f"/work/{at.low}" if at.low else None),
    "metadata": lambda at: at.db.set_session_metadata(at.whom, {"low": at.low or None, "of": at.content}),
    "route": _route,
    "lease": lambda at: at.db.acquire_lease(at.whom, "turn" if at.low % 2 else "compact", "me"),
    "delete": lambda at: at.db.delete_conversation(at.whom),
}
# Calls that extend a conversation are more frequent.
_OFTEN = (*VERBS, "say", "say", "say", "call", "answer", "compact", "compact", "undo", "redo", "hide", "show", "branch")

HISTORIES = st.lists(
    st.builds(
        Step, st.sampled_from(_OFTEN), st.integers(0, 3), st.integers(0, 9), st.integers(0, 9), CONTENTS
    ),
    min_size=8,
    max_size=40,
)  # fmt: skip


def perform(db: SessionDB, history: list[Step], clock: conversations.Clock) -> None:
    ids = [conversations.begin(db, "first", "hello", title="Title")]
    for number, step in enumerate(history):
        clock.advance(step.low + 0.25)
        whom, new = ids[step.whom % len(ids)], f"made{number}"
        try:
            last = max(1, db.conversation(whom).last_seq)
            VERBS[step.verb](Place(db, whom, new, step.low, step.high, step.content, last))
        except errors.HoldfastError:
            continue
        if step.verb in ("begin", "branch", "child"):
            ids.append(new)


def exported(db: SessionDB, *session_ids: str) -> str:
    out = io.StringIO()
    db.admin.export_to(out, session_ids or None)
    return out.getvalue()


def imported(db: SessionDB, text: str | list[str], **how: Any) -> Any:
    return db.admin.import_from(io.StringIO("".join(text)), **how)
