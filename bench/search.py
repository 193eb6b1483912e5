"""Search: recall relative to plain bm25, and latency.

The corpus (bench/corpus) was written for this: questions that use other words than their answers, about chats that
resemble each other. Plain bm25 is that of the same SQLite: stemmed words joined by OR, in one column.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw

import holdfast
from bench import timing
from bench.figures import Figure, at_least, at_most
from bench.scale import Scale

CORPUS = Path(__file__).parent / "corpus"
Place = tuple[str, int]
Finder = Callable[[str], Sequence[Place]]


def read_chats() -> list[dict[str, Any]]:
    return [
        json.loads(line) for file in sorted(CORPUS.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()
    ]


def figures(scale: Scale, folder: Path) -> Iterator[Figure]:
    chats = read_chats()
    questions = [
        (each["q"], {(chat["id"], seq) for seq in each["answers"]}) for chat in chats for each in chat["questions"]
    ]
    with holdfast.SessionDB(folder / "search.db", durability="process-crash") as db:
        for chat in chats:
            db.create_session(chat["id"], source="bench")
            db.append_messages(chat["id"], chat["messages"])
        ours = _recall(lambda text: [(hit.conversation_id, hit.seq) for hit in db.search(text)], questions)
        plain = _recall(_plain(chats), questions)
        for most in (1, 5, 10):
            name = f"search: recall@{most} of {len(questions)} questions, %"
            yield Figure(f"search-recall-{most}", name, "", ours[most], ("bm25", plain[most]), at_least(1))
        asked = [text for text, _ in questions[: scale.search_questions]]
        for messages, bound in ((scale.search_some, 3), (scale.search_many, 20)):
            fill(db, chats, messages)
            yield latency_figure(f"search-p50-{bound}", f"search: p50 at {messages:,} messages", bound, db, asked)
    yield from _one_conversation(scale, folder, chats, asked)
    yield _append_figure(scale, folder)


def _one_conversation(
    scale: Scale, folder: Path, chats: Sequence[dict[str, Any]], asked: Sequence[str]
) -> Iterator[Figure]:
    """Search with all messages in one conversation, so that no other conversation can be skipped."""
    with holdfast.SessionDB(folder / "one.db", durability="process-crash") as db:
        one = db.create_session("one", source="bench").id
        fill(db, chats, scale.search_many, one)
        name = f"search: p50 at {scale.search_many:,} messages in one conversation"
        yield latency_figure("search-p50-one", name, 20, db, asked)
        yield latency_figure("search-p50-within", f"{name}, by its id", 20, db, asked, session_id=one)


def latency_figure(
    key: str, name: str, bound: float, db: holdfast.SessionDB, asked: Sequence[str], session_id: str | None = None
) -> Figure:
    waits = [timing.measure_seconds(partial(db.search, text, session_id=session_id)) for text in asked]
    return Figure(key, name, "ms", timing.median(waits) * 1e3, None, at_most(bound, of="value"))


def _append_figure(scale: Scale, folder: Path) -> Figure:
    """Compare appends to a store with a search index to appends to one without."""
    with (
        holdfast.SessionDB(folder / "with.db") as searched,
        holdfast.SessionDB(folder / "without.db") as never,
    ):
        stores = {"with": searched, "without": never}
        for db in stores.values():
            db.create_session("talk", source="bench")

        def append(name: str) -> timing.Operation:
            return lambda number: stores[name].append_message("talk", role="user", content=f"message {number} " * 30)

        operations = {name: append(name) for name in stores}
        timing.interleave(operations, scale.warm_up // 4)
        searched.search("message")
        taken = timing.medians(timing.interleave(operations, scale.appends // 2))
    baseline = ("no index", taken["without"] * 1e6)
    return Figure("search-append", "append with a search index, p50", "us", taken["with"] * 1e6, baseline, at_most(1.1))


def _recall(find: Finder, questions: Sequence[tuple[str, set[Place]]]) -> dict[int, float]:
    ranks = [next((n for n, place in enumerate(find(text)[:10]) if place in right), 99) for text, right in questions]
    return {most: 100 * sum(rank < most for rank in ranks) / len(ranks) for most in (1, 5, 10)}


def _plain(chats: Sequence[dict[str, Any]]) -> Finder:
    table = apsw.Connection(":memory:")
    table.execute("CREATE VIRTUAL TABLE plain USING fts5 (text, tokenize = 'porter unicode61')")
    places: list[Place] = []
    for chat in chats:
        for seq, message in enumerate(chat["messages"], start=1):
            places.append((chat["id"], seq))
            table.execute("INSERT INTO plain (rowid, text) VALUES (?, ?)", (len(places), message["content"]))

    def find(text: str) -> Sequence[Place]:
        match = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", text))
        rows = table.execute("SELECT rowid FROM plain WHERE plain MATCH ? ORDER BY rank LIMIT 10", (match,))
        return [places[row[0] - 1] for row in rows]

    return find


def fill(db: holdfast.SessionDB, chats: Sequence[dict[str, Any]], messages: int, into: str | None = None) -> None:
    """Add chats of random sentences of the corpus, or add them to one conversation, up to a number of messages."""
    chance = random.Random(messages)
    sentences = [
        piece for chat in chats for each in chat["messages"] for piece in re.split(r"(?<=[.?!])\s", each["content"])
    ]
    missing = messages - db.admin.fsck().messages
    for begun in range(0, missing, 500):
        made = [
            {"role": "user", "content": " ".join(chance.choices(sentences, k=3))}
            for _ in range(min(500, missing - begun))
        ]
        db.append_messages(into, made, create=None if into else holdfast.NewConversation(source="bench"))
    db.admin.update_search_index()
