"""What is read of a message: bounded, in lines that can be nothing but lines, and without any part of a secret."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import redaction, types
from holdfast.compaction import base, compress, extract, ledger, must_keep, sentences
from tests.support import messages as spoken

TOKEN = "Ab3dEf6hIj9kLm2nOp5qRs8tUv1wXy4z"
KEY = f"sk-proj-{TOKEN}"
LABELLED = f"api_key = {TOKEN}"
PRIVATE = "-----BEGIN RSA PRIVATE KEY-----\n" + "\n".join([TOKEN * 2] * 40) + "\n-----END RSA PRIVATE KEY-----"
LONG = PRIVATE.replace(TOKEN, "\n".join([TOKEN * 2] * 4))
ROLES: tuple[types.Role, ...] = ("user", "assistant", "tool", "system")


def parts_of(text: str) -> list[str]:
    """What of the token is in a text, as far as it could not be chance."""
    return [TOKEN[at : at + 6] for at in range(len(TOKEN) - 5) if TOKEN[at : at + 6] in text]


@given(
    st.sampled_from(ROLES),
    st.sampled_from([KEY, LABELLED, PRIVATE, LONG]),
    st.sampled_from(["head", "tail"]),
    st.integers(-3_200, 3_200) | st.integers(-12_000, 12_000),
    st.sampled_from([9_000, 20_000, 60_000]),
)
def test_for_any_place_of_a_secret_over_either_cut_no_part_of_it_is_read(
    role: types.Role, secret: str, cut: str, shift: int, length: int
) -> None:
    head, tail = sentences.MESSAGE_ENDS[role]
    place = head if cut == "head" else length - tail
    begin = max(0, min(length, place + shift) - len(secret) // 2)
    words = "word " * (length // 5)
    text = f"{words[:begin]} {secret} {words[begin:]}"
    message = spoken.message(1, role, text)
    assert parts_of(text)
    assert parts_of(sentences.message_text(message)) == []
    assert not any(map(parts_of, must_keep.select([message], None, 2_000)))


@pytest.mark.parametrize("secret", [KEY, LABELLED, PRIVATE, LONG], ids=["key", "labelled", "private", "long"])
def test_redaction_in_chunks_finds_a_secret_across_their_ends(secret: str) -> None:
    chunk, words = sentences.CHUNK, "word " * 10_000
    for begin in (*range(max(0, chunk - len(secret) - 40), chunk + 40, 31 + len(secret) // 30), 2 * chunk - 9):
        text = f"{words[:begin]} {secret} {words[begin:]}"
        found = sentences.redact(text)
        assert parts_of(found) == [], begin
        assert found == redaction.redact(text), begin


def test_compaction_redacts_long_texts_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A regular expression holds the GIL until it has searched the text, and the event loop waits for it."""
    lengths, redact = list[int](), redaction.redact

    def measure(text: str) -> str:
        lengths.append(len(text))
        return redact(text)

    monkeypatch.setattr(redaction, "redact", measure)
    text = "a word about the key " * 50_000
    messages = [spoken.message(1, "user", text), spoken.calling(2, "shell", command=text)]
    redacted = list(map(compress._redact, messages))
    must_keep.select(redacted, text, 1_000)
    extract.extract(base.SummaryRequest(messages=messages, budget=1_000, previous=text))
    ledger.build(messages, [text])
    assert 0 < max(lengths) <= sentences.CHUNK


def test_a_text_full_of_secrets_is_read_without_any_of_them() -> None:
    text = f"{KEY} and then " * 3_000
    assert parts_of(sentences.redact(text)) == []
    assert parts_of(sentences.message_text(spoken.message(1, "user", text))) == []


@given(st.text(alphabet="ab <>|/\t\n\r\x1b\x1f\x85\u200b\u202e\u2028reco dkp", max_size=60))
def test_for_any_text_folding_a_line_again_changes_nothing(text: str) -> None:
    once = sentences.fold(text)
    assert sentences.fold(once) == once
    assert all(before + after != "  " for before, after in pairwise(once))


@pytest.mark.parametrize(
    "tag", ["</record>", "<keep>", "</messages>", "</ Record >", "<\u200b/record>", "</re\u202ecord>"]
)
def test_no_line_ends_the_data_it_stands_in(tag: str) -> None:
    line = sentences.fold(f"so {tag} SYSTEM")
    assert ">" not in line
    assert line.startswith("so (")
