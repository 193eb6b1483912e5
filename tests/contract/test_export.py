"""An export is all there is of a conversation, the same every time, and makes the same conversation again."""

from __future__ import annotations

import asyncio
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given

from holdfast import AsyncSessionDB, SessionDB, errors
from tests.contract.conftest import MakeDb
from tests.support import backends, conversations, random_histories
from tests.support.random_histories import Step, exported, imported

MEMORY = backends.MEMORY


def fresh(clock: conversations.Clock) -> SessionDB:
    return backends.open_db(MEMORY, Path("."), "", clock)


def parsed(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def told(text: str) -> list[str]:
    return [line["id"] for line in parsed(text)[1:-1] if line["kind"] == "conversation"]


# Each needs its steps at epochs that leave no room between them.
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
def test_any_store_comes_back_from_its_export_to_the_byte(history: list[Step]) -> None:
    clock = conversations.Clock()
    with fresh(clock) as db, fresh(clock) as other:
        random_histories.perform(db, history, clock)
        text = exported(db)
        report = imported(other, text)
        assert report.ok, report
        assert exported(other) == text
        # Leases stay behind, and with them what is still running.
        for held in db.leases():
            backends.raw(db, "DELETE FROM leases WHERE token = ?", held.token)
        assert conversations.everything(other) == conversations.everything(db)
        assert other.admin.fsck().ok
        again = imported(other, text)
        assert {outcome.outcome for outcome in again.outcomes} <= {"already_there"}
        assert (again.messages, exported(other)) == (0, text)


@given(random_histories.HISTORIES)
def test_what_came_back_goes_on_as_the_first_one_would(history: list[Step]) -> None:
    clock = conversations.Clock()
    with fresh(clock) as db, fresh(clock) as other:
        random_histories.perform(db, history, clock)
        imported(other, exported(db))
        for session in other.list_sessions(limit=100):
            assert other.append_message(session.id, role="user", content="next").seq == session.last_seq + 1
            lease = other.acquire_lease(session.id, "compact")
            other.commit_compaction(lease, summary="all", cut_seq=lease.snapshot.last_seq)
            other.undo_compaction(session.id)
        assert other.admin.fsck().ok


def test_the_same_store_gives_the_same_bytes(db: SessionDB, clock: conversations.Clock) -> None:
    random_histories.perform(
        db, [Step(verb, 0, 1, 2, "x") for verb in random_histories.VERBS if verb != "delete"], clock
    )
    before = exported(db)
    clock.advance(1000)
    assert exported(db) == before


def test_lines_are_json_with_sorted_keys_between_a_header_and_an_end(db: SessionDB) -> None:
    conversations.begin(db, "talk", "é", "\0")
    text = exported(db)
    header, *_, end = parsed(text)
    assert header == {"holdfast": "export", "version": 1}
    assert end["conversations"] == 1
    assert all(list(line) == sorted(line) for line in parsed(text))
    bodies = [line["body"] for line in parsed(text)[1:] if line["kind"] == "message"]
    assert bodies == [{"content": "é"}, {"content": "\0"}]


def test_a_branch_brings_all_it_reads_from_in_front_of_it(db: SessionDB) -> None:
    conversations.begin(db, "other", "x")
    conversations.begin(db, "root", "one", "two")
    db.branch("root", 1, branch_id="twig")
    conversations.say(db, "twig", "mine")
    db.branch("twig", 2, branch_id="leaf")
    out = io.StringIO()
    report = db.admin.export_to(out, ["leaf"])
    assert told(out.getvalue()) == ["root", "twig", "leaf"]
    assert (report.conversations, report.messages, report.origins) == (3, 3, ("root", "twig"))


def test_any_session_names_its_conversation_and_none_is_told_twice(db: SessionDB) -> None:
    conversations.begin(db, "talk", "one")
    child = conversations.compact(db, "talk", 1)
    assert told(exported(db, child.id, "talk")) == ["talk"]
    assert db.admin.export_to(lambda _: None, [child.id]).origins == ()


def test_an_empty_store_is_an_export_too(make_db: MakeDb) -> None:
    text = exported(make_db())
    assert len(text.splitlines()) == 2
    assert imported(make_db("other"), text).outcomes == ()


def test_leases_are_not_exported(make_db: MakeDb) -> None:
    db, other = make_db(), make_db("other")
    conversations.begin(db, "talk", "one")
    db.acquire_lease("talk", "turn", "somebody")
    assert "somebody" not in exported(db)
    imported(other, exported(db))
    assert other.leases() == []
    assert other.acquire_lease("talk", "turn").token == 2


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        ("a text was changed", "Message 2"),
        ("a message went", "Message 2"),
        ("the last message went", "Message 3"),
        ("a summary was changed", "Compaction 2"),
    ],
)
def test_what_is_not_what_was_written_is_not_passed_on(db: SessionDB, damage: str, what: str) -> None:
    conversations.begin(db, "c", "one", "two", "three")
    conversations.compact(db, "c", 1)
    if damage in backends.DAMAGES:
        backends.damage(db, damage)
    else:
        backends.drop_triggers(db)
        backends.raw(db, """UPDATE compactions SET body = '{"summary":"forged"}'""")
    with pytest.raises(errors.StoreCorrupt, match=f"{what} of conversation 'c' is missing or damaged"):
        exported(db)


def test_a_conversation_deleted_meanwhile_is_left_out(db: SessionDB) -> None:
    conversations.begin(db, "first", "one")
    conversations.begin(db, "second", "two")
    written: list[str] = []

    def write(text: str) -> None:
        if "sealed" in text:
            db.delete_conversation("second")
        written.append(text)

    assert db.admin.export_to(write).conversations == 1
    assert told("".join(written)) == ["first"]


def test_progress_counts_up_to_all_messages(db: SessionDB) -> None:
    db.create_session("long", source="test")
    db.append_messages("long", [{"role": "user", "content": str(number)} for number in range(2500)])
    seen: list[tuple[int, int]] = []
    db.admin.export_to(lambda _: None, progress=lambda *at: seen.append(at))
    assert seen == [(1000, 2500), (2000, 2500)]


def test_a_long_conversation_is_never_held_whole(db: SessionDB) -> None:
    db.create_session("long", source="test")
    for _ in range(24):
        db.append_message("long", role="user", content="x" * 2_000_000)
    tracemalloc.start()
    db.admin.export_to(lambda _: None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24_000_000


@pytest.mark.parametrize("ids", ["talk", 7, [None], [""], [b"talk"], ["a\0b"]], ids=conversations.short)
def test_what_are_no_ids_is_refused(db: SessionDB, ids: Any) -> None:
    conversations.begin(db, "talk", "one")
    with pytest.raises(errors.InvalidArgument):
        db.admin.export_to(lambda _: None, ids)


def test_an_unknown_id_is_refused_before_anything_is_written(db: SessionDB) -> None:
    conversations.begin(db, "talk", "one")
    written: list[str] = []
    with pytest.raises(errors.NoSuchSession):
        db.admin.export_to(written.append, ["talk", "nobody"])
    assert written == []


@pytest.mark.parametrize("target", [None, 1, "file.jsonl"], ids=conversations.short)
def test_what_cannot_be_written_to_is_refused(db: SessionDB, target: Any) -> None:
    with pytest.raises(errors.InvalidArgument):
        db.admin.export_to(target)


async def _both_ways(db: AsyncSessionDB, other: AsyncSessionDB) -> Any:
    out = io.StringIO()
    await db.admin.export_to(out)
    return await other.admin.import_from(io.StringIO(out.getvalue()))


def test_both_are_awaited_on_the_async_face(make_db: MakeDb) -> None:
    db, other = make_db(), make_db("other")
    conversations.begin(db, "talk", "one")
    assert asyncio.run(_both_ways(AsyncSessionDB(db), AsyncSessionDB(other))).ids("imported") == ["talk"]
