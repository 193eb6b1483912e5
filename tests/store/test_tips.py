"""Where logs ended: a guess that is right for one writer, and wide enough for several."""

from __future__ import annotations

from holdfast.store import tips

TALK = tips.Place(1, 1, "talk", "talk")


def noted(*seqs: int) -> tips.Tip:
    seen = tips.Tips()
    for seq in seqs:
        seen.note("talk", TALK, seq)
    found = seen.get("talk")
    assert found is not None
    return found


def test_who_writes_alone_guesses_one_number() -> None:
    assert noted(1, 2, 3) == tips.Tip(TALK, 3, 1)
    assert noted(3).digests("short") == 1


def test_where_others_write_the_next_numbers_are_guessed_until_they_stop() -> None:
    assert noted(1, 5).spread == tips.SPREAD
    assert noted(1, 5, 6, 7).spread == tips.SPREAD - 2
    assert noted(1, *range(5, 6 + tips.SPREAD)).spread == 1


def test_a_batch_of_our_own_is_no_sign_of_others() -> None:
    seen = tips.Tips()
    seen.note("talk", TALK, 3)
    seen.note("talk", TALK, 8, 5)
    assert seen.get("talk") == tips.Tip(TALK, 8, 1)


def test_a_head_that_moved_is_followed_at_the_same_number() -> None:
    seen = tips.Tips()
    seen.note("talk", TALK, 3)
    seen.follow(("talk", "unknown"), 2, "child")
    assert seen.get("talk") == tips.Tip(tips.Place(1, 2, "talk", "child"), 3, 1)
    assert seen.get("unknown") is None


def test_long_texts_are_guessed_for_once() -> None:
    assert noted(1, 5).digests("x" * tips.LONG) == 1


def test_only_so_many_are_remembered() -> None:
    seen = tips.Tips()
    for number in range(tips.MOST + 1):
        seen.note(f"s{number}", TALK, 1)
    assert seen.get("s0") is None
    assert seen.get(f"s{tips.MOST}") is not None
