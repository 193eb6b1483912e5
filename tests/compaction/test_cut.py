"""The cut: what goes and what stays, over contexts of a real store; and what the context is afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import SessionDB, content_parts, types
from holdfast.compaction import cut, speaker
from holdfast.model import tokens
from holdfast.store import message_codec, tool_pairs

TALK = "talk"


@pytest.fixture
def db() -> Iterator[SessionDB]:
    with SessionDB(":memory:") as store:
        store.create_session(TALK, source="test")
        yield store


def message(line: str) -> types.NewMessage:
    """`user 30`, `calls a,b`, `result a 500`: a message in words, ten tokens long unless it says so."""
    kind, *rest = line.split()
    length = int(rest.pop()) if rest and rest[-1].isdigit() else 10
    names = rest[0].split(",") if rest else []
    if kind == "calls":
        calls = [types.ToolCall(name, "tool", "{}") for name in names]
        return types.NewMessage(role="assistant", content="c" * length, tool_calls=calls)
    if kind == "result":
        return types.NewMessage(role="tool", content="r" * length, tool_call_id=names[0] if names else None)
    if kind == "notice":
        return types.NewMessage(role="user", content=[content_parts.notice("n" * length, "process")])
    uid = f"{speaker.STEERED}{message_codec.generate_uid()}" if kind == "steer" else None
    return types.NewMessage(role="user" if uid else kind, content=kind[0] * length, uid=uid)  # type: ignore[arg-type]


def say(db: SessionDB, *lines: str) -> None:
    db.append_messages(TALK, [message(line) for line in lines])


def talk(exchanges: int) -> list[str]:
    return ["user", "assistant"] * exchanges


def size(message: types.Message) -> int:
    """A character is a token: what a test says is what is counted."""
    return len(content_parts.text(message.content))


def find(db: SessionDB, tail: int = 100, **how: Any) -> cut.Cut | None:
    return cut.find_cut(db.context(TALK), size, **{"tail_tokens": tail, "min_tokens": 1, **how})


def found(db: SessionDB, tail: int = 100, **how: Any) -> cut.Cut:
    found = find(db, tail, **how)
    assert found is not None
    return found


def commit(db: SessionDB, found: cut.Cut, summary: str = "sum") -> types.Context:
    ledger = {cut.CARRIED: list(found.carried)}
    work = db.snapshot(TALK)
    db.commit_compaction(work, summary=summary, cut_seq=found.cut_seq, pinned=found.pinned, ledger=ledger)
    return db.context(TALK)


def seqs(messages: Any) -> list[int]:
    return [message.seq for message in messages]


# --- the tail --------------------------------------------------------------------------------------------


def test_tail_is_kept_by_tokens_and_the_first_exchange_is_pinned(db: SessionDB) -> None:
    say(db, *talk(10))
    cut_ = found(db, 100)
    assert (cut_.cut_seq, cut_.pinned, cut_.carried) == (10, (1, 2), ())
    assert (seqs(cut_.going), cut_.tokens) == ([3, 4, 5, 6, 7, 8, 9, 10], 80)
    assert seqs(cut_.staying) == [1, 2, *range(11, 21)]
    assert seqs(commit(db, cut_)) == [1, 2, 10, *range(11, 21)]


@pytest.mark.parametrize(("ask", "reply"), [(500, 500), (10, 500), (500, 10)])
def test_last_ask_and_its_reply_stay_however_big_they_are(db: SessionDB, ask: int, reply: int) -> None:
    say(db, *talk(5), f"user {ask}", f"assistant {reply}")
    assert (found(db).cut_seq, seqs(found(db).staying)[-2:]) == (10, [11, 12])


def test_ask_without_a_reply_yet_stays(db: SessionDB) -> None:
    say(db, *talk(10), "user 500")
    assert found(db).cut_seq == 20


def test_newest_group_stays_even_where_nobody_asked(db: SessionDB) -> None:
    say(db, "assistant", "assistant 50", "assistant 500")
    assert (found(db).cut_seq, found(db).pinned) == (2, ())


@pytest.mark.parametrize(
    ("lines", "tail"),
    [([], 100), (["user"], 0), (talk(1), 0), (talk(4), 80), (["user 900", "assistant 900"], 100), (talk(2), 20)],
    ids=["nothing", "one ask", "one exchange", "all in the tail", "one huge exchange", "only pinned before the tail"],
)
def test_nothing_to_cut_is_said(db: SessionDB, lines: list[str], tail: int) -> None:
    say(db, *lines) if lines else None
    assert find(db, tail, pinned_tokens=100) is None


def test_less_than_a_summary_takes_is_not_worth_a_cut(db: SessionDB) -> None:
    say(db, *talk(10))
    assert sum(map(size, found(db).going)) == 80
    assert find(db, min_tokens=80) is not None
    assert find(db, min_tokens=81) is None


# --- groups ----------------------------------------------------------------------------------------------


def test_call_and_results_stay_or_go_together(db: SessionDB) -> None:
    say(db, *talk(3), "user", "calls a,b", "result b 40", "result a 40", "assistant", *talk(1))
    by_tail = {tail: found(db, tail).cut_seq for tail in (40, 90, 119, 120)}
    # A tail that has room for some of the group, but not for all, begins after it.
    assert by_tail == {40: 10, 90: 10, 119: 10, 120: 7}


def test_results_that_stand_later_than_other_messages_are_not_parted_from_their_call(db: SessionDB) -> None:
    say(db, *talk(2), "calls a", *talk(3), "result a", *talk(2))
    cut_ = found(db, 60)
    assert (cut_.cut_seq, cut_.pinned, cut_.carried) == (9, (1, 2, 5), (5,))
    after = commit(db, cut_)
    assert [(m.seq, m.role) for m in after][2:5] == [(5, "assistant"), (12, "tool"), (9, "user")]
    assert seqs(after)[5:] == [10, 11, 13, 14, 15, 16]


def test_call_carried_for_its_result_goes_with_the_next_cut(db: SessionDB) -> None:
    say(db, *talk(2), "calls a", *talk(3), "result a", *talk(2))
    commit(db, found(db, 60))
    say(db, *talk(5))
    cut_ = found(db, 60)
    assert cut_.pinned == (1, 2)
    assert seqs(cut_.going)[:3] == [5, 12, 10]
    assert seqs(commit(db, cut_)) == [1, 2, 20, *range(21, 27)]


def test_pinned_call_keeps_its_results_at_every_cut(db: SessionDB) -> None:
    say(db, "user", "calls a", "user", "assistant", "result a", *talk(10))
    for _ in range(2):
        after = commit(db, found(db, 40, pinned_tokens=60))
        assert [(m.seq, m.role) for m in after[:3]] == [(1, "user"), (2, "assistant"), (5, "tool")]
        say(db, *talk(4))


@pytest.mark.parametrize("running", [True, False], ids=["running", "dead"])
def test_call_without_a_result_blocks_nothing(db: SessionDB, running: bool) -> None:
    if running:
        db.acquire_lease(TALK, "turn")
    say(db, *talk(2), "calls a,b", "result a", *talk(10))
    cut_ = found(db)
    assert cut_.cut_seq == 16
    commit(db, cut_)
    say(db, "result b 7")
    late = db.context(TALK)[-1]
    assert (late.role, late.content) == ("user", tool_pairs.LATE_RESULT.format(id="b") + "r" * 7)


# --- the last ask ----------------------------------------------------------------------------------------


def turn(*names: str) -> list[str]:
    return [line for name in names for line in (f"calls {name}", f"result {name} 40")]


def test_turn_that_outgrows_the_tail_is_cut_and_its_ask_is_carried(db: SessionDB) -> None:
    say(db, *talk(2), "user", *turn("a", "b", "c", "d"))
    cut_ = found(db, 100)
    assert (cut_.cut_seq, cut_.pinned, cut_.carried) == (9, (1, 2, 5), (5,))
    assert seqs(commit(db, cut_)) == [1, 2, 5, 9, 10, 11, 12, 13]


def test_manual_cut_takes_steps_of_the_only_exchange_where_they_are_worth_a_summary(db: SessionDB) -> None:
    say(db, "user", *turn("a", "b", "c"), "assistant")
    assert find(db, manual=True, min_tokens=200) is None
    say(db, *turn("d", "e", "f"), "assistant")
    assert found(db, manual=True, min_tokens=200).cut_seq == 12


def test_carried_ask_is_carried_on_while_it_is_the_last_and_goes_after_that(db: SessionDB) -> None:
    say(db, *talk(2), "user", *turn("a", "b", "c", "d"))
    commit(db, found(db, 100))
    say(db, *turn("e", "f"))
    again = found(db, 100)
    assert (again.pinned, again.carried) == ((1, 2, 5), (5,))
    commit(db, again)
    say(db, "assistant", *talk(8))
    last = found(db, 100)
    assert (last.pinned, last.carried) == ((1, 2), ())
    assert seqs(last.going)[0] == 5


def test_late_result_is_not_taken_for_an_ask(db: SessionDB) -> None:
    say(db, *talk(2), "user", "assistant 60", "result lost 40", "assistant 40")
    cut_ = found(db, 120)
    assert 5 in cut_.pinned
    assert not speaker.is_ask(db.context(TALK)[6])


def test_summary_is_not_taken_for_an_ask(db: SessionDB) -> None:
    say(db, *talk(5), "assistant", "assistant", "assistant")
    after = commit(db, found(db, 20))
    assert [speaker.is_ask(message) for message in after if message.uid.startswith("summary:")] == [False]
    assert 9 in seqs(after)


def test_uid_that_looks_like_a_summary_hides_no_message(db: SessionDB) -> None:
    say(db, *talk(1))
    db.append_message(TALK, role="user", content="u" * 10, uid="summary:7")
    say(db, "assistant", *talk(8))
    assert 3 in seqs(found(db).going)


# --- exchanges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exchanges", "first"), [(0, 18), (1, 18), (2, 14), (3, 11), (4, 9), (5, 5), (6, 3)])
def test_last_exchanges_are_kept_exactly(db: SessionDB, exchanges: int, first: int) -> None:
    say(db, *talk(1), "user 900", "assistant 900", "user", *turn("a"), "assistant", *talk(1))
    say(db, "user", "user", "assistant 900", "user", "calls b", "result b 900", "assistant", "user 900")
    before = list(db.context(TALK))
    cut_ = found(db, 1, keep_exchanges=exchanges, pinned_tokens=0)
    assert cut_.cut_seq == first - 1
    after = commit(db, cut_)
    assert [m for m in after if m.seq >= first] == [m for m in before if m.seq >= first]


@pytest.mark.parametrize("between", ["steer", "notice", "result lost"])
@pytest.mark.parametrize(("exchanges", "first"), [(1, 26), (2, 21), (3, 16)])
def test_an_exchange_begins_where_a_turn_does(db: SessionDB, between: str, exchanges: int, first: int) -> None:
    say(db, *["user", "calls a", "result a", between, "assistant"] * 6)
    assert found(db, 1, keep_exchanges=exchanges).cut_seq == first - 1


def test_where_notices_came_since_the_last_ask_stays_with_its_answer_and_so_does_the_last_notice(db: SessionDB) -> None:
    say(
        db, *talk(5), "user", *turn("a", "b"), "assistant", *["notice", "assistant"] * 4, "notice", *turn("c", "d", "e")
    )
    cut_ = found(db, 30)
    assert cut_.carried == (11, 16, 25)
    commit(db, cut_)
    say(db, "assistant", *talk(8))
    assert found(db, 30).carried == ()


def test_notice_stays_with_the_reply_after_it(db: SessionDB) -> None:
    say(db, *talk(5), "notice 500", "assistant 500")
    assert found(db, 1).cut_seq == 10


def test_more_exchanges_than_there_are_leave_nothing_to_cut(db: SessionDB) -> None:
    say(db, *talk(5))
    assert find(db, 1, keep_exchanges=5) is None
    assert find(db, 1, keep_exchanges=50) is None
    assert found(db, 1, keep_exchanges=4, pinned_tokens=0).cut_seq == 2


# --- pinned ----------------------------------------------------------------------------------------------


def test_what_people_pin_stays_with_its_whole_group_at_every_cut_until_they_unpin_it(db: SessionDB) -> None:
    say(db, *talk(2), "calls a,b", "result a", "result b", *talk(10))
    cut_ = found(db, pinned=[6], pinned_tokens=60)
    assert cut_.pinned == (1, 2, 5, 6, 7)
    commit(db, cut_)
    say(db, *talk(10))
    again = found(db, pinned=[6], pinned_tokens=60)
    assert again.pinned == (1, 2, 5, 6, 7)
    commit(db, again)
    say(db, *talk(10))
    last = found(db, pinned_tokens=60)
    assert (last.pinned, last.carried) == ((1, 2), ())
    assert seqs(last.going)[:3] == [5, 6, 7]


@pytest.mark.parametrize("pinned", [5, 2], ids=["the last ask", "a call with a late result"])
def test_what_is_pinned_and_would_be_carried_anyway_stays_pinned(db: SessionDB, pinned: int) -> None:
    say(db, "user", "calls z", *talk(1), "user", *turn("a", "b", "c"), "result z", "assistant")
    cut_ = found(db, 30, pinned=[pinned], pinned_tokens=60)
    assert pinned in cut_.pinned
    commit(db, cut_)
    say(db, *talk(8))
    assert pinned in found(db, pinned=[pinned], pinned_tokens=60).pinned


def test_first_exchange_that_was_pinned_and_unpinned_stays_all_the_same(db: SessionDB) -> None:
    say(db, *talk(10))
    commit(db, found(db, pinned=[2]))
    say(db, *talk(10))
    assert found(db).pinned == (1, 2)


def test_pins_that_a_cut_would_have_no_room_for_are_told_before_there_is_one(db: SessionDB) -> None:
    say(db, *talk(3), "user 60", "calls a", "result a 15", "assistant")
    context = db.context(TALK)

    def left(*pinned: int, share: int = 60) -> tuple[int, ...]:
        return cut.find_excess_pins(context, size, share, pinned)

    assert (left(3), left(7), left(9), left(8, 9)) == ((), (7,), (), ())
    # The first exchange comes first, and an older pin before a newer one; a result counts with its call.
    assert (left(3, 4, 9, share=60), left(3, 4, 10, share=50)) == ((9,), ())
    assert left(1, 2, share=10) == (2,)
    # What is not in view is nobody's business here.
    assert left(99) == ()


def test_pinned_messages_have_a_share_filled_from_the_oldest_on(db: SessionDB) -> None:
    say(db, *talk(30))
    cut_ = found(db, pinned=[9, 11, 13], pinned_tokens=45)
    assert cut_.pinned == (1, 2, 9, 11)
    assert 13 in seqs(cut_.going)


def test_pinned_message_too_big_for_the_share_makes_way_for_the_others(db: SessionDB) -> None:
    say(db, "user 900", "assistant", *talk(20))
    cut_ = found(db, pinned=[7])
    assert cut_.pinned == (2, 7)


def test_pinned_message_that_is_carried_all_the_same_is_not_said_to_go(db: SessionDB) -> None:
    say(db, *talk(3), "user 90", *["assistant"] * 20)
    cut_ = found(db, 30, pinned=[7], pinned_tokens=20)
    assert 7 in cut_.carried
    assert 7 in seqs(cut_.staying)


def test_first_exchange_is_pinned_once_and_no_other_in_its_place(db: SessionDB) -> None:
    say(db, "user 900", "assistant 900", *talk(20))
    assert commit(db, found(db)).compaction is not None
    say(db, *talk(20))
    assert found(db).pinned == ()


def test_pin_in_the_tail_needs_no_pinning(db: SessionDB) -> None:
    say(db, *talk(10))
    assert found(db, pinned=[20]).pinned == (1, 2)


def test_ledger_that_makes_no_sense_lets_everything_stay_pinned(db: SessionDB) -> None:
    say(db, *talk(10))
    cut_ = found(db)
    for carried in ("all", 7, [None, "x"], {"a": 1}):
        work = db.snapshot(TALK)
        db.commit_compaction(work, summary="s", cut_seq=10, pinned=cut_.pinned, ledger={cut.CARRIED: carried})
        say(db, *talk(10))
        assert found(db).pinned == (1, 2)
        db.undo_compaction(TALK)


# --- cost ------------------------------------------------------------------------------------------------


def test_every_message_is_measured_once(db: SessionDB) -> None:
    say(db, *(line for name in range(2_000) for line in ("user", f"calls {name}", f"result {name}", "assistant")))
    measured: list[int] = []

    def counting(message: types.Message) -> int:
        measured.append(message.seq)
        return size(message)

    assert cut.find_cut(db.context(TALK), counting, tail_tokens=20_000) is not None
    assert sorted(measured) == list(range(1, 8_001))


# --- for any history -------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])
lengths = st.sampled_from([1, 30, 400, 400, 6_000, 6_000])
lines = st.one_of(
    st.sampled_from(["user", "user", "assistant", "system", "result", "notice", "steer"]),
    names.map(lambda name: f"result {name}"),
    st.lists(names, min_size=1, max_size=3, unique=True).map(lambda some: "calls " + ",".join(some)),
)
stretches = st.lists(st.builds(lambda line, length: f"{line} {length}", lines, lengths), min_size=4, max_size=24)


class Step(msgspec.Struct, frozen=True):
    """Some messages, perhaps some hidden, a cut, and what is written while the summary is made."""

    lines: list[str]
    meanwhile: list[str]
    hidden: tuple[int, int] | None
    tail: int
    keep: int | None
    pinned: list[int]
    turn: bool


steps = st.builds(
    Step,
    stretches,
    st.lists(lines, max_size=4),
    st.none() | st.tuples(st.integers(0, 40), st.integers(0, 3)),
    st.sampled_from([0, 20, 100, 400]),
    st.none() | st.none() | st.integers(1, 3),
    st.lists(st.integers(1, 40), max_size=2),
    st.booleans(),
)


def prepare(db: SessionDB, step: Step) -> None:
    if step.turn:
        db.acquire_lease(TALK, "turn", "me")
    say(db, *step.lines)
    last = db.conversation(TALK).last_seq
    if step.hidden and step.hidden[0] < last:
        low = 1 + step.hidden[0]
        db.hide(TALK, low, min(last, low + step.hidden[1]))


def assert_valid(context: types.Context) -> None:
    """Every call is followed at once by its results, or still runs; no result stands alone."""
    place, messages = 0, context.messages
    while place < len(messages):
        message = messages[place]
        assert message.role != "tool"
        place += 1
        for call in message.tool_calls if message.role == "assistant" else ():
            if place < len(messages) and messages[place].tool_call_id == call.id:
                place += 1
            else:
                assert call.id in context.running


def last_ask(messages: Any) -> str | None:
    return next((message.uid for message in reversed(list(messages)) if speaker.is_ask(message)), None)


def uids(messages: Any) -> list[str]:
    """Of what somebody wrote; what closes a dead call is nobody's, and comes and goes with the call."""
    said = [m.uid for m in messages if not m.uid.startswith("summary:") and m.content != tool_pairs.NO_RESULT]
    return [uid.removeprefix("late:") for uid in said]


# Some hundred tokens: less than what makes a cut worth it.
SUMMARY = "so it was " * 60


def cut_and_look(db: SessionDB, step: Step, meter: tokens.Meter) -> None:
    work = db.snapshot(TALK)
    before = db.context(TALK, upto=work.last_seq)
    how: dict[str, Any] = {"tail_tokens": step.tail, "keep_exchanges": step.keep, "pinned": step.pinned}
    found = cut.find_cut(before, meter.of, **how)
    if found is None:
        return
    written = [receipt.uid for line in step.meanwhile for receipt in db.append_messages(TALK, [message(line)])]
    ledger = {cut.CARRIED: list(found.carried)}
    db.commit_compaction(work, summary=SUMMARY, cut_seq=found.cut_seq, pinned=found.pinned, ledger=ledger)
    after, now = db.context(TALK, upto=work.last_seq), db.context(TALK)
    assert_valid(after)
    assert_valid(now)
    assert set(written) <= set(uids(now))
    assert last_ask(after) == last_ask(before)
    assert sorted(uids(after)) == sorted(uids(found.staying))
    assert sorted(uids(found.going) + uids(found.staying)) == sorted(uids(before))
    assert spoken(after, found.cut_seq) == spoken(before, found.cut_seq)
    assert meter.count("", (), after) < meter.count("", (), before)
    again = cut.find_cut(after, meter.of, **how)
    assert again is None or again.cut_seq > found.cut_seq


def spoken(context: types.Context, after: int) -> list[int]:
    """The tail without results: a late one may find another call of the same id, which had none."""
    said = [message for message in context if message.seq > after and message.role != "tool"]
    return [message.seq for message in said if message.role != "user" or speaker.is_ask(message)]


@given(st.lists(steps, min_size=1, max_size=3))
def test_for_any_history_the_context_after_the_cut_is_valid_smaller_and_has_the_last_ask(script: list[Step]) -> None:
    with SessionDB(":memory:") as db:
        db.create_session(TALK, source="test")
        for step in script:
            prepare(db, step)
            cut_and_look(db, step, tokens.Meter())


@given(stretches, st.sampled_from([0, 20, 100, 400]))
def test_for_any_history_no_group_is_parted(script: list[str], tail: int) -> None:
    with SessionDB(":memory:") as db:
        db.create_session(TALK, source="test")
        say(db, *script)
        context = db.context(TALK)
        found = cut.find_cut(context, size, tail_tokens=tail, min_tokens=1)
        if found is None:
            return
        going, head = {id(message) for message in found.going}, context[0]
        for message in context:
            head = head if message.role == "tool" else message
            assert (id(message) in going) == (id(head) in going)
