"""What the model sees, and what people see: computed from the log, whichever id is asked by."""

from __future__ import annotations

import pytest

from holdfast import SessionDB, errors, types
from holdfast.store import tool_pairs
from tests.support import conversations


def ask(db: SessionDB, *ids: str, content: str = "", lease: types.Lease | None = None) -> types.Receipt:
    calls = [types.ToolCall(name, "tool", "{}") for name in ids]
    return db.append_message("talk", role="assistant", content=content, tool_calls=calls, lease=lease)


def answer(db: SessionDB, id: str, content: str = "result") -> types.Receipt:
    return db.append_message("talk", role="tool", content=content, tool_call_id=id)


def shape(db: SessionDB, session_id: str = "talk") -> list[tuple[str, str | None, types.Content]]:
    """Role, the call it answers, and text of all the model sees."""
    return [(message.role, message.tool_call_id, message.content) for message in db.context(session_id)]


# --- context and transcript ----------------------------------------------------------------------------


def test_context_without_a_compaction_is_the_log(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    context = db.context("talk")
    assert conversations.contents(context) == ["a", "b"]
    assert (context.epoch, context.last_seq, context.cut_seq, context.summary) == (1, 2, 0, None)
    assert (context.conversation_id, context.session_id) == ("talk", "talk")


def test_context_of_an_empty_conversation_is_empty(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    assert (len(db.context("talk")), db.context("talk").last_seq) == (0, 0)


def test_context_is_pinned_then_summary_then_what_came_after_the_cut(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcde")
    conversations.compact(db, "talk", 4, "the gist", pinned=[3, 1])
    conversations.say(db, "talk", "f")
    assert conversations.seen(db, "talk") == ["a", "c", "the gist", "e", "f"]
    context = db.context("talk")
    assert (context.cut_seq, context.summary, context[2].role) == (4, "the gist", "user")


def test_context_is_a_sequence(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    context = db.context("talk")
    assert (len(context), context[0].content, context[-1].content) == (3, "a", "c")
    assert conversations.contents(context[1:]) == ["b", "c"]
    assert context.index(context[1]) == 1


def test_any_session_id_reads_the_same(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    child = conversations.compact(db, "talk", 1)
    conversations.say(db, "talk", "c")
    grandchild = conversations.compact(db, "talk", 2)
    for name in (child.id, grandchild.id):
        assert conversations.seen(db, name) == conversations.seen(db, "talk")
        assert db.transcript(name) == db.transcript("talk")


def test_transcript_is_the_whole_log_hidden_turns_too(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    conversations.compact(db, "talk", 2)
    db.hide("talk", 4)
    assert conversations.contents(db.transcript("talk")) == ["a", "b", "c", "d"]


def test_transcript_in_stretches_is_the_whole_transcript(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcde")
    assert conversations.contents(db.transcript("talk", after=2)) == ["c", "d", "e"]
    assert conversations.contents(db.transcript("talk", after=1, upto=3)) == ["b", "c"]
    assert db.transcript("talk", upto=99) == db.transcript("talk")
    assert db.transcript("talk", after=5) == []


def test_messages_name_the_session_they_were_written_in(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    child = conversations.compact(db, "talk", 0)
    conversations.say(db, "talk", "b")
    assert [message.session_id for message in db.context("talk") if message.seq] == ["talk", child.id]


def test_upto_leaves_out_what_came_later(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    context = db.context("talk", upto=2)
    assert (conversations.contents(context), context.last_seq) == (["a", "b"], 2)
    assert db.context("talk", upto=99).last_seq == 3


def test_epoch_and_last_seq_tell_whether_to_read_again(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    before = db.context("talk")
    conversations.say(db, "talk", "b")
    assert (db.context("talk").epoch, db.context("talk").last_seq) == (before.epoch, before.last_seq + 1)
    db.hide("talk", 1, 1)
    assert db.context("talk").epoch == before.epoch + 1


def test_empty_summary_shows_no_message(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    conversations.compact(db, "talk", 1, "")
    assert conversations.seen(db, "talk") == ["b"]


def test_pinned_message_that_is_hidden_is_not_shown(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abc")
    conversations.compact(db, "talk", 2, "sum", pinned=[1, 2])
    db.hide("talk", 1, 1)
    assert conversations.seen(db, "talk") == ["b", "sum", "c"]


# --- calls and results ---------------------------------------------------------------------------------


def test_result_stands_next_to_its_call_though_another_message_came_between(db: SessionDB) -> None:
    conversations.begin(db, "talk", "do it")
    ask(db, "c1", "c2")
    conversations.say(db, "talk", "are you there?")
    answer(db, "c2", "two")
    answer(db, "c1", "one")
    assert shape(db) == [
        ("user", None, "do it"),
        ("assistant", None, ""),
        ("tool", "c1", "one"),
        ("tool", "c2", "two"),
        ("user", None, "are you there?"),
    ]


def test_transcript_keeps_the_order_things_were_written_in(db: SessionDB) -> None:
    conversations.begin(db, "talk", "do it")
    ask(db, "c1")
    conversations.say(db, "talk", "between")
    answer(db, "c1", "one")
    assert [message.seq for message in db.transcript("talk")] == [1, 2, 3, 4]


def test_dead_call_is_closed_and_nothing_is_stored_for_it(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    ask(db, "c1")
    conversations.say(db, "talk", "next")
    assert shape(db)[1] == ("tool", "c1", tool_pairs.NO_RESULT)
    assert len(db.transcript("talk")) == 2
    assert db.context("talk").running == frozenset()


def test_running_call_stays_open_while_its_turn_holds_the_lease(db: SessionDB, clock: conversations.Clock) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn", ttl=30)
    ask(db, "c1", lease=lease)
    assert (shape(db), db.context("talk").running) == ([("assistant", None, "")], frozenset({"c1"}))
    clock.advance(30)
    assert shape(db)[1:] == [("tool", "c1", tool_pairs.NO_RESULT)]


def test_call_of_an_earlier_turn_is_dead_though_a_turn_runs(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    ask(db, "old")
    db.acquire_lease("talk", "turn")
    ask(db, "new")
    context = db.context("talk")
    assert [message.tool_call_id for message in context if message.role == "tool"] == ["old"]
    assert context.running == frozenset({"new"})


def test_call_is_dead_as_soon_as_its_turn_is_released(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    lease = db.acquire_lease("talk", "turn")
    ask(db, "c1")
    db.release_lease(lease)
    assert shape(db)[1:] == [("tool", "c1", tool_pairs.NO_RESULT)]


def test_one_call_may_run_while_its_sister_is_answered(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.acquire_lease("talk", "turn")
    ask(db, "c1", "c2")
    answer(db, "c2", "two")
    assert shape(db) == [("assistant", None, ""), ("tool", "c2", "two")]
    assert db.context("talk").running == frozenset({"c1"})


def test_compaction_lease_keeps_no_call_open(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    db.acquire_lease("talk", "compact")
    ask(db, "c1")
    assert db.context("talk").running == frozenset()


def test_late_result_after_a_cut_becomes_a_note(db: SessionDB) -> None:
    conversations.begin(db, "talk", "do it")
    ask(db, "c1")
    conversations.compact(db, "talk", 2, "asked for c1")
    answer(db, "c1", "the answer")
    role, call, text = shape(db)[-1]
    assert (role, call) == ("user", None)
    assert "c1" in text
    assert text.endswith("the answer")


def test_late_result_made_of_parts_becomes_a_note_with_its_parts(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    part = {"type": "image", "url": "x"}
    db.append_message("talk", role="tool", content=[part], tool_call_id="gone")
    (note,) = db.context("talk")
    assert (note.role, note.content[-1], note.content[0]["type"]) == ("user", part, "text")


def test_reused_call_id_pairs_each_call_with_its_own_result(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    for number in ("one", "two"):
        ask(db, "c", content=number)
        answer(db, "c", f"result {number}")
    assert [text for _, _, text in shape(db)] == ["one", "result one", "two", "result two"]


def test_reused_call_id_closes_the_call_that_was_never_answered(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    ask(db, "c", content="one")
    ask(db, "c", content="two")
    answer(db, "c", "result two")
    assert [text for _, _, text in shape(db)] == ["one", tool_pairs.NO_RESULT, "two", "result two"]


def test_second_result_of_one_call_is_a_note(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    ask(db, "c")
    answer(db, "c", "first")
    answer(db, "c", "second")
    assert [role for role, _, _ in shape(db)] == ["assistant", "tool", "user"]


def test_hidden_call_leaves_its_result_as_a_note_and_hidden_result_closes_its_call(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    ask(db, "c1")
    answer(db, "c1")
    ask(db, "c2")
    answer(db, "c2")
    db.hide("talk", 1, 1)
    db.hide("talk", 4, 4)
    assert [(role, call) for role, call, _ in shape(db)] == [("user", None), ("assistant", None), ("tool", "c2")]
    assert shape(db)[-1][2] == tool_pairs.NO_RESULT


def test_pinned_call_stands_with_its_pinned_result(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a")
    ask(db, "c1")
    conversations.say(db, "talk", "b")
    answer(db, "c1", "r")
    conversations.compact(db, "talk", 4, "sum", pinned=[2, 4])
    assert shape(db) == [("assistant", None, ""), ("tool", "c1", "r"), ("user", None, "sum")]


def test_redacted_result_leaves_a_context_a_provider_accepts(db: SessionDB) -> None:
    conversations.begin(db, "talk")
    ask(db, "c1")
    answer(db, "c1", "secret")
    db.redact("talk", 2)
    assert shape(db)[1] == ("tool", "c1", tool_pairs.NO_RESULT)
    assert "secret" not in str(shape(db))


# --- nothing leaves the context unseen -------------------------------------------------------------------


def test_messages_between_snapshot_and_commit_are_in_the_context_in_order(db: SessionDB) -> None:
    conversations.begin(db, "talk", "a", "b")
    lease = db.acquire_lease("talk", "compact")
    conversations.say(db, "talk", "c", "d")
    db.commit_compaction(lease, summary="gist", cut_seq=2)
    conversations.say(db, "talk", "e")
    assert conversations.seen(db, "talk") == ["gist", "c", "d", "e"]


@pytest.mark.parametrize("beyond", [{"cut_seq": 3}, {"cut_seq": 2, "seen_seq": 3}])
def test_compaction_cannot_claim_what_it_did_not_see(db: SessionDB, beyond: dict[str, int]) -> None:
    conversations.begin(db, "talk", "a", "b")
    lease = db.acquire_lease("talk", "compact")
    conversations.say(db, "talk", "c")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.commit_compaction(lease, summary="gist", **beyond)


def test_cut_beyond_what_the_summarizer_was_given_is_refused(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcd")
    lease = db.acquire_lease("talk", "compact")
    with conversations.nothing_changes(db), pytest.raises(errors.InvalidArgument):
        db.commit_compaction(lease, summary="gist", cut_seq=3, seen_seq=2)


def test_reader_sees_one_snapshot(db: SessionDB) -> None:
    conversations.begin(db, "talk", *"abcdef")
    done: list[bool] = []

    def rotate() -> None:
        try:
            for number in range(1, 20):
                conversations.compact(db, "talk", 5, f"gist {number}")
        finally:
            done.append(True)

    def read() -> None:
        while not done:
            context = db.context("talk")
            assert conversations.contents(context)[-1] == "f"
            assert len(context) == (2 if context.compaction else 6)
            if context.compaction:
                assert context.epoch == context.compaction.epoch

    assert conversations.at_once(rotate, read, read) == [None, None, None]


def test_a_pinned_call_keeps_its_result_from_after_the_cut(db: SessionDB) -> None:
    db.create_session("pins", source="test")
    db.append_message("pins", role="user", content="go")
    db.append_message("pins", role="assistant", tool_calls=[{"id": "k", "name": "f", "arguments": "{}"}])
    db.append_message("pins", role="tool", content="42", tool_call_id="k")
    db.commit_compaction(db.snapshot("pins"), summary="S", cut_seq=2, pinned=[2])
    assert [(message.role, message.content) for message in db.context("pins")] == [
        ("assistant", ""),
        ("tool", "42"),
        ("user", "S"),
    ]


def test_a_pinned_call_that_still_runs_is_not_called_dead(db: SessionDB) -> None:
    db.create_session("pins", source="test")
    turn = db.acquire_lease("pins", "turn")
    calls = [{"id": "k", "name": "f", "arguments": "{}"}]
    db.append_message("pins", role="assistant", tool_calls=calls, lease=turn)
    db.commit_compaction(db.snapshot("pins"), summary="S", cut_seq=1, pinned=[1])
    context = db.context("pins")
    assert ([message.role for message in context], context.running) == (["assistant", "user"], {"k"})
