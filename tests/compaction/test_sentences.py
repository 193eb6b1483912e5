"""Texts of messages are read in bounded parts and single lines, without any part of a secret."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import redaction, types
from holdfast.compaction import must_keep, sentences
from tests.support.messages import message

TOKEN = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
KEY = f"sk-proj-{TOKEN}"
LABELLED = f"api_key = {TOKEN}"
PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join([TOKEN * 2] * 40) + "\n-----END RSA PRIVATE KEY-----"
LONG = PRIVATE.replace(TOKEN, "\n".join([TOKEN * 2] * 4))
ROLES: tuple[types.Role, ...] = ("user", "assistant", "tool", "system")


def parts_of(text: str) -> list[str]:
    """Return the parts of the token in a text that cannot be there by chance."""
    return [TOKEN[at : at + 6] for at in range(len(TOKEN) - 5) if TOKEN[at : at + 6] in text]


@given(
    st.sampled_from(ROLES),
    st.sampled_from([KEY, LABELLED, PRIVATE, LONG]),
    st.sampled_from(["head", "tail"]),
    st.integers(-3_200, 3_200) | st.integers(-12_000, 12_000),
    st.sampled_from([9_000, 20_000, 60_000]),
)
def test_no_part_of_a_secret_at_any_place_is_read(
    role: types.Role, secret: str, cut: str, shift: int, length: int
) -> None:
    head, tail = sentences.MESSAGE_ENDS[role]
    place = head if cut == "head" else length - tail
    begin = max(0, min(length, place + shift) - len(secret) // 2)
    words = "word " * (length // 5)
    text = f"{words[:begin]} {secret} {words[begin:]}"
    said = message(1, role, text)
    assert parts_of(text)
    assert parts_of(sentences.message_text(said)) == []
    assert not any(map(parts_of, must_keep.select([said], None, 2_000)))


@pytest.mark.parametrize("secret", [KEY, LABELLED, PRIVATE, LONG], ids=["key", "labelled", "private", "long"])
def test_secret_across_two_chunks_is_redacted(secret: str) -> None:
    assert parts_of(sentences.redact(f"{secret} and then " * 3_000)) == []
    chunk, words = sentences.CHUNK, "word " * 10_000
    for begin in (*range(max(0, chunk - len(secret) - 40), chunk + 40, 31 + len(secret) // 30), 2 * chunk - 9):
        text = f"{words[:begin]} {secret} {words[begin:]}"
        found = sentences.redact(text)
        assert parts_of(found) == [], begin
        assert found == redaction.redact(text), begin


@given(st.text(alphabet="ab <>|/\t\n\r\x1b\x1f\x85\u200b\u202e\u2028reco dkp", max_size=60))
def test_folding_any_text_again_changes_nothing(text: str) -> None:
    once = sentences.fold(text)
    assert sentences.fold(once) == once
    assert all(before + after != "  " for before, after in pairwise(once))
