"""Long texts as several messages: nothing is lost, nothing is too long, and code stays code."""

from __future__ import annotations

import re

import hypothesis
import pytest
from hypothesis import strategies

from holdfast.gateway import text_split


@pytest.mark.parametrize(
    ("text", "limit", "parts"),
    [
        pytest.param("", 10, [], id="nothing"),
        pytest.param(" \n", 10, [], id="nothing to see"),
        pytest.param("Hello.", 10, ["Hello."], id="short enough"),
        pytest.param("One two.\n\nThree four.", 12, ["One two.", "Three four."], id="between paragraphs"),
        pytest.param("One two.\nThree four.", 12, ["One two.", "Three four."], id="between lines"),
        pytest.param("One two. Three four.", 12, ["One two.", "Three four."], id="between sentences"),
        pytest.param("one two three four", 10, ["one two", "three four"], id="between words"),
        pytest.param("abcdefghijklmnop", 6, ["abcdef", "ghijkl", "mnop"], id="anywhere"),
        pytest.param("今天很好。明天也好。", 6, ["今天很好。", "明天也好。"], id="sentences without spaces"),
        pytest.param("a\n\n" + "b" * 18, 20, ["a\n\n" + "b" * 17, "b"], id="no message for a word alone"),
        pytest.param(
            "See:\n```py\none = 1\ntwo = 2\nthree = 3\n```\nDone.",
            28,
            ["See:\n```py\none = 1\n```", "```py\ntwo = 2\nthree = 3\n```", "Done."],
            id="code is closed and opened again",
        ),
        pytest.param(
            "Some words before it.\n```\nx = 1\ny = 2\n```",
            28,
            ["Some words before it.", "```\nx = 1\ny = 2\n```"],
            id="a block that fits moves as a whole",
        ),
        pytest.param(
            "```\n" + "x" * 30,
            20,
            ["```\n" + "x" * 12 + "\n```", "```\n" + "x" * 12 + "\n```", "```\n" + "x" * 6],
            id="a line of code that never ends",
        ),
        pytest.param("  indented\n    more", 12, ["  indented", "    more"], id="how far a line is indented stays"),
    ],
)
def test_a_text_is_cut_where_it_hurts_least(text: str, limit: int, parts: list[str]) -> None:
    assert text_split.split(text, limit) == parts


def seen(text: str) -> str:
    """All that can be read of it: without spaces, and without the fences that may be added."""
    return re.sub(r"\s", "", text)


@hypothesis.given(strategies.text(strategies.sampled_from("ab .\n。é😀"), max_size=200), strategies.integers(1, 40))
def test_for_any_text_nothing_is_lost_and_no_part_is_too_long(text: str, limit: int) -> None:
    parts = text_split.split(text, limit)
    assert seen("".join(parts)) == seen(text)
    assert all(0 < len(part) <= limit for part in parts)


def utf16(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


@hypothesis.given(strategies.text(strategies.sampled_from("a. 😀\n"), max_size=100), strategies.integers(2, 20))
def test_a_platform_may_count_in_its_own_way(text: str, limit: int) -> None:
    parts = text_split.split(text, limit, utf16)
    assert seen("".join(parts)) == seen(text)
    assert all(utf16(part) <= limit for part in parts)


blocks = strategies.lists(
    strategies.sampled_from(
        ["Words here.", "", "```py\nx = 1\n\nprint(x)\n```", "~~~\na = 2\n~~~", "````\n```\n````", "x" * 50]
    ),
    max_size=12,
).map("\n".join)


@hypothesis.given(blocks, strategies.integers(24, 80))
def test_for_any_blocks_of_code_each_part_has_all_its_fences(text: str, limit: int) -> None:
    parts = text_split.split(text, limit)
    assert all(0 < len(part) <= limit for part in parts)
    assert all(text_split._open_block(part) is None for part in parts)
    fences = re.compile(r"[`~]{3,}(py)?")
    assert seen(fences.sub("", "".join(parts))) == seen(fences.sub("", text))
