"""The cut decides which messages a summary replaces; the context after it is valid."""

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
    """Parse `user 30`, `calls a,b` or `result a 500`; without a length, a message has ten tokens."""
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
    """Count a character as a token."""
    return len(content_parts.text(message.content))


def find(db: SessionDB, tail: int = 100, **how: Any) -> cut.Cut | None:
    return cut.find_cut(db.context(TALK), size, **{"tail_tokens": tail, "min_tokens": 1, **how})


def find_one(db: SessionDB, tail: int = 100, **how: Any) -> cut.Cut:
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
    found = find_one(db, 100)
    assert (found.cut_seq, found.pinned, found.carried) == (10, (1, 2), ())
    assert (seqs(found.going), found.tokens) == ([3, 4, 5, 6, 7, 8, 9, 10], 80)
    assert seqs(found.staying) == [1, 2, *range(11, 21)]
    # Less than a summary takes is not worth a cut.
    assert find(db, min_tokens=80) is not None
    assert find(db, min_tokens=81) is None
    assert seqs(commit(db, found)) == [1, 2, 10, *range(11, 21)]


@pytest.mark.parametrize(
    ("lines", "cut_seq"),
    [
        ([*talk(5), "user 500", "assistant 500"], 10),
        ([*talk(10), "user 500"], 20),
        (["assistant", "assistant 50", "assistant 500"], 2),
        ([*talk(5), "notice 500", "assistant 500"], 10),
    ],
    ids=["huge exchange", "no reply yet", "no request", "notice"],
)
def test_last_request_and_its_reply_stay_however_large(db: SessionDB, lines: list[str], cut_seq: int) -> None:
    say(db, *lines)
    assert find_one(db).cut_seq == cut_seq


@pytest.mark.parametrize(
    ("lines", "tail"),
    [([], 100), (["user"], 0), (talk(1), 0), (talk(4), 80), (["user 900", "assistant 900"], 100), (talk(2), 20)],
    ids=["nothing", "one request", "one exchange", "all in the tail", "one huge exchange", "only pinned messages"],
)
def test_nothing_to_cut(db: SessionDB, lines: list[str], tail: int) -> None:
    say(db, *lines) if lines else None
    assert find(db, tail, pinned_tokens=100) is None


# --- groups ----------------------------------------------------------------------------------------------


def test_call_is_carried_for_its_late_result_and_goes_with_the_next_cut(db: SessionDB) -> None:
    say(db, *talk(2), "calls a", *talk(3), "result a", *talk(2))
    found = find_one(db, 60)
    assert (found.cut_seq, found.pinned, found.carried) == (9, (1, 2, 5), (5,))
    after = commit(db, found)
    assert [(m.seq, m.role) for m in after][2:5] == [(5, "assistant"), (12, "tool"), (9, "user")]
    assert seqs(after)[5:] == [10, 11, 13, 14, 15, 16]
    say(db, *talk(5))
    found = find_one(db, 60)
    assert found.pinned == (1, 2)
    assert seqs(found.going)[:3] == [5, 12, 10]
    assert seqs(commit(db, found)) == [1, 2, 20, *range(21, 27)]


@pytest.mark.parametrize("running", [True, False], ids=["running", "interrupted"])
def test_call_without_a_result_does_not_prevent_a_cut(db: SessionDB, running: bool) -> None:
    say(db, *talk(2))
    if running:
        db.acquire_lease(TALK, "turn")
    say(db, "calls a,b", "result b", *talk(6))
    assert db.context(TALK).running == ({"a"} if running else set())
    found = find_one(db)
    assert (found.cut_seq, found.pinned) == (8, (1, 2))
    assert {5, 6} <= set(seqs(found.going))
    assert seqs(commit(db, found)) == [1, 2, 8, *range(9, 19)]
    say(db, "result a")
    assert tool_pairs.is_late(list(db.context(TALK))[-1])


# --- the last request ------------------------------------------------------------------------------------


def turn(*names: str) -> list[str]:
    return [line for name in names for line in (f"calls {name}", f"result {name} 40")]


def test_request_of_a_long_turn_is_carried_while_it_is_the_last(db: SessionDB) -> None:
    say(db, *talk(2), "user", *turn("a", "b", "c", "d"))
    found = find_one(db, 100)
    assert (found.cut_seq, found.pinned, found.carried) == (9, (1, 2, 5), (5,))
    assert seqs(commit(db, found)) == [1, 2, 5, 9, 10, 11, 12, 13]
    say(db, *turn("e", "f"))
    again = find_one(db, 100)
    assert (again.pinned, again.carried) == ((1, 2, 5), (5,))
    commit(db, again)
    say(db, "assistant", *talk(8))
    last = find_one(db, 100)
    assert (last.pinned, last.carried) == ((1, 2), ())
    assert seqs(last.going)[0] == 5


# --- exchanges -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("exchanges", "first"), [(0, 18), (1, 18), (2, 14), (3, 11), (4, 9), (5, 5), (6, 3)])
def test_last_exchanges_are_kept_exactly(db: SessionDB, exchanges: int, first: int) -> None:
    say(db, *talk(1), "user 900", "assistant 900", "user", *turn("a"), "assistant", *talk(1))
    say(db, "user", "user", "assistant 900", "user", "calls b", "result b 900", "assistant", "user 900")
    before = list(db.context(TALK))
    found = find_one(db, 1, keep_exchanges=exchanges, pinned_tokens=0)
    assert found.cut_seq == first - 1
    assert [m for m in commit(db, found) if m.seq >= first] == [m for m in before if m.seq >= first]
    assert find(db, 1, keep_exchanges=50) is None


@pytest.mark.parametrize("between", ["steer", "notice", "result lost"])
def test_exchange_begins_with_its_turn(db: SessionDB, between: str) -> None:
    say(db, *["user", "calls a", "result a", between, "assistant"] * 6)
    assert [find_one(db, 1, keep_exchanges=exchanges).cut_seq for exchanges in (1, 2, 3)] == [25, 20, 15]


# --- pins ------------------------------------------------------------------------------------------------


def test_pinned_group_stays_at_every_cut_until_it_is_unpinned(db: SessionDB) -> None:
    say(db, *talk(2), "calls a,b", "result a", "result b", *talk(10))
    for _ in range(2):
        found = find_one(db, pinned=[6], pinned_tokens=60)
        assert found.pinned == (1, 2, 5, 6, 7)
        commit(db, found)
        say(db, *talk(10))
    last = find_one(db, pinned_tokens=60)
    assert (last.pinned, last.carried) == ((1, 2), ())
    assert seqs(last.going)[:3] == [5, 6, 7]


@pytest.mark.parametrize(("first", "pinned"), [(talk(1), (1, 2)), (["user 500", "assistant 500"], ())])
def test_first_exchange_is_pinned_for_good_unless_it_is_too_large(
    db: SessionDB, first: list[str], pinned: tuple[int, ...]
) -> None:
    say(db, *first, *talk(10))
    for _ in range(2):
        found = find_one(db)
        assert found.pinned == pinned
        commit(db, found)
        say(db, *talk(10))


@pytest.mark.parametrize(
    ("lines", "pins", "share", "pinned", "stays"),
    [
        (talk(30), [9, 11, 13], 45, (1, 2, 9, 11), []),
        (["user 900", "assistant", *talk(20)], [7], 100, (2, 7), []),
        ([*talk(3), "user 90", *["assistant"] * 20], [7], 20, (1, 2, 7), [7]),
    ],
    ids=["oldest first", "one too large", "carried anyway"],
)
def test_share_of_pinned_messages_is_filled_from_the_oldest(
    db: SessionDB, lines: list[str], pins: list[int], share: int, pinned: tuple[int, ...], stays: list[int]
) -> None:
    say(db, *lines)
    found = find_one(db, 30, pinned=pins, pinned_tokens=share)
    assert found.pinned == pinned
    assert all(seq in seqs(found.going) for seq in pins if seq not in pinned)
    assert all(seq in seqs(found.staying) for seq in (*pinned, *stays))


# --- any history -------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c"])
lengths = st.sampled_from([1, 30, 400, 400, 6_000, 6_000])
lines = st.one_of(
    st.sampled_from(["user", "user", "assistant", "system", "result", "notice", "steer"]),
    NAMES.map(lambda name: f"result {name}"),
    st.lists(NAMES, min_size=1, max_size=3, unique=True).map(lambda some: "calls " + ",".join(some)),
)
stretches = st.lists(st.builds(lambda line, length: f"{line} {length}", lines, lengths), min_size=4, max_size=24)


class Step(msgspec.Struct, frozen=True):
    """Messages, some of them hidden, a cut, and messages that are written during the summary."""

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
    """Check that every call is followed by its results or still runs, and that no result is alone."""
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


def last_request(messages: Any) -> str | None:
    return next((message.uid for message in reversed(list(messages)) if speaker.is_ask(message)), None)


def uids(messages: Any) -> list[str]:
    """Return the uids of stored messages, without synthetic results."""
    said = [m.uid for m in messages if not m.uid.startswith("summary:") and m.content != tool_pairs.NO_RESULT]
    return [uid.removeprefix("late:") for uid in said]


# Fewer tokens than a cut must save.
SUMMARY = "so it was " * 60


def cut_and_check(db: SessionDB, step: Step, meter: tokens.Meter) -> None:
    work = db.snapshot(TALK)
    before = db.context(TALK, upto=work.last_seq)
    how: dict[str, Any] = {"tail_tokens": step.tail, "keep_exchanges": step.keep, "pinned": step.pinned}
    found = cut.find_cut(before, meter.of, **how)
    if found is None:
        return
    going, head = {id(each) for each in found.going}, before[0]
    for each in before:  # No group is split.
        head = head if each.role == "tool" else each
        assert (id(each) in going) == (id(head) in going)
    written = [receipt.uid for line in step.meanwhile for receipt in db.append_messages(TALK, [message(line)])]
    ledger = {cut.CARRIED: list(found.carried)}
    db.commit_compaction(work, summary=SUMMARY, cut_seq=found.cut_seq, pinned=found.pinned, ledger=ledger)
    after, now = db.context(TALK, upto=work.last_seq), db.context(TALK)
    assert_valid(after)
    assert_valid(now)
    assert set(written) <= set(uids(now))
    assert last_request(after) == last_request(before)
    assert sorted(uids(after)) == sorted(uids(found.staying))
    assert sorted(uids(found.going) + uids(found.staying)) == sorted(uids(before))
    assert meter.count("", (), after) < meter.count("", (), before)
    again = cut.find_cut(after, meter.of, **how)
    assert again is None or again.cut_seq > found.cut_seq


@given(st.lists(steps, min_size=1, max_size=3))
def test_context_after_any_cuts_is_valid_and_smaller_and_has_the_last_request(script: list[Step]) -> None:
    with SessionDB(":memory:") as db:
        db.create_session(TALK, source="test")
        for step in script:
            prepare(db, step)
            cut_and_check(db, step, tokens.Meter())
