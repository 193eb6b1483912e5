"""Where logs ended: a guess that is right for one writer, and wide enough for several."""

from __future__ import annotations

from holdfast.store.postgres import fast_append

TALK = fast_append.Place(1, 1, "talk", "talk")


def noted(*seqs: int) -> fast_append.Tip:
    seen = fast_append.Tips()
    for seq in seqs:
        seen.note("talk", TALK, seq)
    found = seen.get("talk")
    assert found is not None
    return found


def test_who_writes_alone_guesses_one_number() -> None:
    assert noted(1, 2, 3) == fast_append.Tip(TALK, 3, 1)
    assert noted(3).digests("short") == 1


def test_where_others_write_the_next_numbers_are_guessed_until_they_stop() -> None:
    assert noted(1, 5).spread == fast_append.SPREAD
    assert noted(1, 5, 6, 7).spread == fast_append.SPREAD - 2
    assert noted(1, *range(5, 6 + fast_append.SPREAD)).spread == 1


def test_a_batch_of_our_own_is_no_sign_of_others() -> None:
    seen = fast_append.Tips()
    seen.note("talk", TALK, 3)
    seen.note("talk", TALK, 8, 5)
    assert seen.get("talk") == fast_append.Tip(TALK, 8, 1)


def test_a_head_that_moved_is_followed_at_the_same_number() -> None:
    seen = fast_append.Tips()
    seen.note("talk", TALK, 3)
    seen.follow(("talk", "unknown"), 2, "child")
    assert seen.get("talk") == fast_append.Tip(fast_append.Place(1, 2, "talk", "child"), 3, 1)
    assert seen.get("unknown") is None


def test_long_texts_are_guessed_for_once() -> None:
    assert noted(1, 5).digests("x" * fast_append.LONG) == 1


def test_only_so_many_are_remembered() -> None:
    seen = fast_append.Tips()
    for number in range(fast_append.MOST + 1):
        seen.note(f"s{number}", TALK, 1)
    assert seen.get("s0") is None
    assert seen.get(f"s{fast_append.MOST}") is not None
