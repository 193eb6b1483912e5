"""Retention: how many of 200 facts stay in the context after ten compactions without a model, or are found by search.

The history (bench/retention_data) is fixed. Every 200 messages it is compacted by the extractive summary alone, as if
no model were available. A fact is in the context if its key occurs there verbatim. It is found if its message is among
the first ten hits of its question, which uses other words, or of its key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import holdfast
from bench.figures import Figure, at_least
from bench.scale import Scale
from holdfast import content_parts
from holdfast.compaction import base, cut, extract, ledger, must_keep, summary
from holdfast.model import tokens

DATA = Path(__file__).parent / "retention_data"
SESSION = "retention"
ROUNDS = 10
TAIL = 1_500
MUST_KEEP = 4
KINDS = ("name", "number", "path", "decision", "ask")


def figures(_: Scale, folder: Path) -> Iterator[Figure]:
    history, facts = read("history.jsonl"), read("facts.jsonl")
    for budget in (2_000, 8_000):
        with holdfast.SessionDB(folder / f"retention-{budget}.db", durability="process-crash") as db:
            compact_history(db, history, budget)
            yield from _kept_figures(db, facts, budget)
            if budget == 2_000:
                yield from _search_figures(db, facts)


def read(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


def compact_history(db: holdfast.SessionDB, history: Sequence[dict[str, Any]], budget: int) -> None:
    """Store the history, and compact it after each tenth."""
    db.create_session(SESSION, source="bench")
    step = len(history) // ROUNDS
    for begin in range(0, len(history), step):
        db.append_messages(SESSION, history[begin : begin + step])
        _compact(db, budget)


def _compact(db: holdfast.SessionDB, budget: int) -> None:
    work = db.begin_compaction(SESSION)
    context = db.context(SESSION)
    found = cut.find_cut(context, tokens.size, tail_tokens=TAIL)
    assert found is not None, "two hundred messages are always worth a cut"
    previous = summary.remove_mark(context.summary) if context.summary else None
    kept = must_keep.select(found.going, previous, budget // MUST_KEEP)
    request = base.SummaryRequest(messages=found.going, previous=previous, budget=budget, must_keep=kept)
    text = summary.add_mark(extract.extract(request, tokens.estimate))
    db.commit_compaction(
        work, summary=text, cut_seq=found.cut_seq, pinned=found.pinned, ledger=ledger.build(found.going)
    )


def _kept_figures(db: holdfast.SessionDB, facts: Sequence[dict[str, Any]], budget: int) -> Iterator[Figure]:
    context = "\n".join(content_parts.text(message.content) for message in db.context(SESSION))
    kept = [fact for fact in facts if fact["key"] in context]
    by_kind = {f"{kind}s": float(sum(fact["kind"] == kind for fact in kept)) for kind in KINDS}
    name = f"facts in a context with {budget:,} tokens of summary"
    yield Figure(f"retention.context.{budget}", name, "", len(kept), ("said", len(facts)), None, by_kind)


def _search_figures(db: holdfast.SessionDB, facts: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    asked = sum(_is_found(db, fact["q"], fact["seq"]) for fact in facts)
    named = sum(_is_found(db, fact["q"], fact["seq"]) or _is_found(db, fact["key"], fact["seq"]) for fact in facts)
    baseline = ("said", len(facts))
    yield Figure("retention.asked", "facts found by their question", "", asked, baseline)
    yield Figure("retention.recall", "facts found by question or key", "", named, baseline, at_least(1))


def _is_found(db: holdfast.SessionDB, text: str, seq: int) -> bool:
    return any(hit.seq == seq for hit in db.search(text, session_id=SESSION, limit=10))
