"""An export is all there is of a conversation, the same every time, and an import of it makes the same again."""

from __future__ import annotations

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given

from holdfast import SessionDB, errors
from tests.support import backends, conversations, random_histories
from tests.support.conversations import Clock
from tests.support.hostile_exports import fresh
from tests.support.random_histories import Step, exported, imported


def parse(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def conversation_ids(text: str) -> list[str]:
    return [line["id"] for line in parse(text)[1:-1] if line["kind"] == "conversation"]


# Steps at epochs that leave no room between them.
TIGHT = [
    [Step("compact", low=1, high=1), Step("undo"), Step("hide", low=1, high=1), Step("compact", low=1, high=1)],
    [Step("end"), Step("resume"), Step("hide", low=1, high=1), Step("compact", low=1, high=1)],
    [Step("hide", low=1, high=1), Step("end"), Step("hide", low=1, high=1), Step("show")],
    [Step("compact", high=1), Step("end"), Step("undo"), Step("hide", low=1, high=1)],
    [Step("two calls"), Step("say", low=1, content="x"), Step("two calls"), Step("undo")],
    [Step("end"), Step("resume"), Step("end"), Step("resume"), Step("compact", low=1, high=1)],
    [Step("end"), Step("resume"), Step("end"), Step("resume"), Step("end"), Step("hide", low=1, high=1)],
]


@example(TIGHT[0])
@example(TIGHT[1])
@example(TIGHT[2])
@example(TIGHT[3])
@example(TIGHT[4])
@example(TIGHT[5])
@example(TIGHT[6])
@given(random_histories.HISTORIES)
def test_any_store_is_imported_exactly_and_goes_on(history: list[Step]) -> None:
    clock = Clock()
    with fresh(clock) as db, fresh(clock) as other:
        random_histories.perform(db, history, clock)
        text = exported(db)
        report = imported(other, text)
        assert report.ok, report
        clock.advance(1000)
        assert exported(other) == text == exported(db)
        # Leases are not exported, and with them the calls that are running.
        for held in db.leases():
            backends.raw(db, "DELETE FROM leases WHERE token = ?", held.token)
        assert conversations.everything(other) == conversations.everything(db)
        assert other.leases() == []
        again = imported(other, text)
        assert {outcome.outcome for outcome in again.outcomes} <= {"already_there"}
        assert (again.messages, exported(other)) == (0, text)
        for session in other.list_sessions(limit=100):
            assert other.append_message(session.id, role="user", content="next").seq == session.last_seq + 1
            lease = other.acquire_lease(session.id, "compact")
            other.commit_compaction(lease, summary="all", cut_seq=lease.snapshot.last_seq)
            other.undo_compaction(session.id)
        assert other.admin.fsck().ok


def test_export_is_json_lines_with_sorted_keys(db: SessionDB, clock: Clock) -> None:
    steps = [Step(verb, 0, 1, 2, "é\0") for verb in random_histories.VERBS if verb != "delete"]
    random_histories.perform(db, steps, clock)
    text = exported(db)
    clock.advance(1000)
    assert exported(db) == text
    header, *_, end = parse(text)
    assert header == {"holdfast": "export", "version": 1}
    assert end["conversations"] == len(conversation_ids(text)) > 2
    assert all(list(line) == sorted(line) for line in parse(text))
    with fresh() as other:
        assert imported(other, text).ok
        assert exported(other) == text


def test_export_of_a_branch_contains_its_origins(db: SessionDB) -> None:
    conversations.begin(db, "other", "x")
    conversations.begin(db, "root", "one", "two")
    db.branch("root", 1, branch_id="twig")
    conversations.say(db, "twig", "mine")
    db.branch("twig", 2, branch_id="leaf")
    child = conversations.compact(db, "leaf", 1)
    out = io.StringIO()
    report = db.admin.export_to(out, [child.id, "leaf"])
    assert conversation_ids(out.getvalue()) == ["root", "twig", "leaf"]
    assert (report.conversations, report.messages, report.origins) == (3, 3, ("root", "twig"))
    assert db.admin.export_to(lambda _: None, ["other"]).origins == ()


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("a text was changed", "Message 2"),
        ("a message is missing", "Message 2"),
        ("the last message is missing", "Message 3"),
        ("a summary was changed", "Compaction 2"),
    ],
)
def test_damaged_conversation_is_not_exported(db: SessionDB, damage: str, what: str) -> None:
    conversations.begin(db, "c", "one", "two", "three")
    conversations.compact(db, "c", 1)
    if damage in backends.DAMAGES:
        backends.damage(db, damage)
    else:
        backends.drop_triggers(db)
        backends.raw(db, """UPDATE compactions SET body = '{"summary":"forged"}'""")
    with pytest.raises(errors.StoreCorrupt, match=f"{what} of conversation 'c' is missing or damaged"):
        exported(db)


def test_conversation_deleted_during_the_export_is_left_out(db: SessionDB) -> None:
    conversations.begin(db, "first", "one")
    conversations.begin(db, "second", "two")
    written: list[str] = []

    def write(text: str) -> None:
        if "sealed" in text:
            db.delete_conversation("second")
        written.append(text)

    assert db.admin.export_to(write).conversations == 1
    assert conversation_ids("".join(written)) == ["first"]
    written.clear()
    with pytest.raises(errors.NoSuchSession):
        db.admin.export_to(written.append, ["first", "nobody"])
    assert written == []


def test_long_conversation_is_exported_in_parts_with_progress(db: SessionDB) -> None:
    db.create_session("long", source="test")
    db.append_messages("long", [{"role": "user", "content": "x" * 4_000} for _ in range(2500)])
    exports: list[tuple[int, int]] = []
    tracemalloc.start()
    db.admin.export_to(lambda _: None, progress=lambda *at: exports.append(at))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert exports == [(1000, 2500), (2000, 2500)]
    assert peak < 6_000_000
    imports: list[tuple[int, int]] = []
    with fresh() as other:
        imported(other, exported(db), progress=lambda *at: imports.append(at))
    assert imports == [(0, 1000), (0, 2000)]
