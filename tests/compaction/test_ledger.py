"""The ledger says what left the context, within bounds; what must be kept is ranked, verbatim and fits."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import types
from holdfast.compaction import ledger, must_keep, sentences
from holdfast.model import tokens
from tests.support import messages as spoken


def open_after(messages: list[types.Message], before: tuple[sentences.Sentence, ...] = ()) -> list[str]:
    return [ask.text for ask in must_keep.find_open_requests(sentences.split_messages(messages), before)]


def test_the_ledger_names_ranges_tools_files_and_open_asks() -> None:
    messages = [
        spoken.message(3, "user", "Please fix src/app/main.py."),
        spoken.calling(4, "read_file", path="src/app/main.py"),
        spoken.calling(5, "run", command="pytest tests/app/test_main.py"),
        spoken.calling(9, "run", command="ls"),
        spoken.message(10, "user", "Remind me to tag the release later."),
    ]
    found = ledger.build(messages, ["model: took too long"])
    assert found["messages"] == 5
    assert found["ranges"] == [[3, 5], [9, 10]]
    assert found["tools"] == {"run": 2, "read_file": 1}
    assert found["files"] == ["src/app/main.py", "tests/app/test_main.py"]
    assert found["asks"] == ["Please fix src/app/main.py.", "Remind me to tag the release later."]
    assert found["notes"] == ["model: took too long"]


def test_a_store_takes_the_ledger_and_gives_it_back() -> None:
    with holdfast.SessionDB(":memory:") as db:
        session = db.create_session(source="test").id
        db.append_messages(session, [{"role": "user", "content": "See notes/a.md."}, {"role": "user", "content": "b"}])
        made = ledger.build(db.transcript(session), ["why"])
        work = db.begin_compaction(session)
        db.commit_compaction(work, summary="s", cut_seq=1, ledger=made)
        assert db.compactions(session)[-1].ledger == made


def test_however_much_goes_the_ledger_stays_small() -> None:
    messages = [
        each
        for seq in range(1, 3_000, 3)
        for each in (
            spoken.calling(seq, f"tool{seq}" + "x" * 1_000, path=f"/srv/{'d' * 50}/file-{seq}.txt"),
            spoken.message(seq + 1, "user", f"Remind me to do thing {seq} later. " + "long " * 500),
        )
    ]
    made = ledger.build(messages, ["problem " * 1_000] * 100)
    assert len(json.dumps(made)) < 60_000
    assert made["messages"] == 2_000
    assert made["ranges"][0][0] == 1
    assert made["ranges"][-1][1] == 2_999


@given(st.lists(st.integers(1, 5_000), max_size=400))
def test_for_any_messages_the_ranges_cover_every_one(seqs: list[int]) -> None:
    ranges = ledger.build([spoken.message(seq, "user", "x") for seq in seqs]).get("ranges", [])
    assert len(ranges) <= ledger.MAX_RANGES
    assert all(any(first <= seq <= last for first, last in ranges) for seq in seqs)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(ranges))


def test_where_there_are_too_many_ranges_the_last_one_reaches_to_the_end() -> None:
    near = [*range(1, 2 * ledger.MAX_RANGES, 2)]  # a gap of one message after each
    made = ledger.build([spoken.message(seq, "user", "x") for seq in [*near, 10_000, 20_000]])
    assert made["ranges"][:2] == [[1, 1], [3, 3]]
    assert made["ranges"][-1] == [near[-1], 20_000]
    assert len(made["ranges"]) == ledger.MAX_RANGES


def test_of_too_many_files_and_asks_those_named_last_are_in_the_ledger() -> None:
    count = 200
    messages = [
        spoken.message(seq, "user", f"Remind me to look at src/part{seq}.py later.") for seq in range(1, count + 1)
    ]
    made = ledger.build(messages)
    assert made["files"] == [f"src/part{seq}.py" for seq in range(count - ledger.MAX_FILES + 1, count + 1)]
    assert made["asks"][-1] == "Remind me to look at src/part200.py later."
    assert len(made["asks"]) == ledger.MAX_ASKS


def test_secrets_are_in_no_ledger() -> None:
    messages = [spoken.message(1, "user", "Please use password=hunter2! for the login")]
    assert "hunter2" not in json.dumps(ledger.build(messages))
    assert "hunter2" not in str(must_keep.select(messages, None, 500))


# --- open asks ---------------------------------------------------------------------------------------


def test_an_answered_ask_is_not_open() -> None:
    assert open_after(spoken.talk("Can you list the files?", "There are three: a, b and c.")) == []


def test_an_ask_nobody_answered_is_open_word_for_word() -> None:
    messages = spoken.talk("Hello.", "Hello!", "Some context first. Could you  rename\tthe table?")
    assert open_after(messages) == ["Could you rename the table?"]


def test_an_ask_for_later_stays_open_until_it_is_done() -> None:
    asked = spoken.talk("Remind me to renew the parking permit.", "OK.", "What is the weather?", "Sunny.")
    assert open_after(asked) == ["Remind me to renew the parking permit."]
    done = spoken.talk("I renewed the parking permit, it's done.", "Good.", begin=5)
    assert open_after([*asked, *done]) == []


def test_an_ask_that_was_put_off_stays_open() -> None:
    messages = spoken.talk("Please compare the two quotes.", "I'll get back to you on that.", "Thanks.", "Sure.")
    assert open_after(messages) == ["Please compare the two quotes."]


def test_an_ask_that_left_unanswered_is_closed_by_the_next_answer() -> None:
    before = (sentences.build_sentence(1, "user", "Raised beds or not?", "Open asks"),)
    assert open_after([spoken.message(2, "user", "Hm.")], before) == ["Raised beds or not?"]
    assert open_after([spoken.message(2, "assistant", "Raised.")], before) == []


# --- what must be kept -------------------------------------------------------------------------------


def test_asks_come_first_then_what_the_user_said_then_the_rest() -> None:
    messages = [
        spoken.message(1, "user", "The deposit is 1,450 EUR and the ticket is OPS-4411."),
        spoken.message(2, "assistant", "By the way there is also OPS-9000."),
        spoken.message(3, "tool", "row 77120X checked", tool_call_id="x"),
        spoken.message(4, "user", "Please remind me to call the bank later."),
    ]
    kept = must_keep.select(messages, None, 200)
    assert kept[0] == "Please remind me to call the bank later."
    order = [kept.index(each) for each in ("OPS-4411", "1,450 EUR", "OPS-9000", "77120X")]
    assert max(order[:2]) < order[2] < order[3]


def test_what_the_earlier_summary_held_is_still_to_be_kept() -> None:
    previous = (
        "## Facts\n> #4 user: The locker is number 3078.\n## Open asks\n> #5 user: Please remind me to pay later."
    )
    kept = must_keep.select(spoken.talk("Nice day.", "Yes."), previous, 100)
    assert kept == ("Please remind me to pay later.", "number 3078")


def test_asks_take_half_of_the_room_newest_first_and_all_of_it_fits() -> None:
    asked = [spoken.message(seq, "user", f"Remind me to water plant {seq} on the sill later.") for seq in range(1, 30)]
    told = [spoken.message(seq, "user", f"The ticket is OPS-{seq}00.") for seq in range(30, 90)]
    budget = 120
    kept = must_keep.select([*asked, *told], None, budget)
    asks_kept = [each for each in kept if each.startswith("Remind")]
    assert asks_kept[0] == "Remind me to water plant 29 on the sill later."
    assert sum(tokens.estimate(each) + 1 for each in asks_kept) <= budget // 2
    assert len(kept) > len(asks_kept)
    assert sum(tokens.estimate(each) + 1 for each in kept) <= budget


def test_what_stands_in_something_kept_is_not_kept_twice() -> None:
    messages = spoken.talk("Fine.", "OK.", "Please remind me to close OPS-4411 later.")
    assert must_keep.select(messages, None, 200) == ("Please remind me to close OPS-4411 later.",)


def test_an_ask_too_long_for_the_room_makes_place_for_smaller_ones() -> None:
    short = "Remind me to pay the rent later."
    long = f"Remind me to tell {' and '.join(['Anna', 'Bert', 'Clara'] * 8)} later."
    messages = [spoken.message(1, "user", short), spoken.message(2, "user", long)]
    assert must_keep.select(messages, None, 40)[0] == short
    assert must_keep.select(messages, None, 200)[:2] == (long, short)


@given(st.lists(st.text(max_size=200), max_size=20), st.integers(0, 300))
def test_for_any_texts_what_must_be_kept_fits_and_is_one_line_each(said: list[str], budget: int) -> None:
    kept = must_keep.select(spoken.talk(*said), None, budget)
    assert sum(tokens.estimate(each) for each in kept) <= budget
    assert all(each == each.strip() and len(each.splitlines()) == 1 for each in kept)
    assert len(set(kept)) == len(kept)
