"""Replies in Markdown: drawn the same however they come, nothing lost, nothing acts on the terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.terminal import event_text, markdown

LINES = [
    "",
    "# A title",
    "some *words* of text",
    "- an item",
    "  - one within",
    "1. first",
    "2. second, and it is long enough to be wrapped",
    "| a | b |",
    "|---|--:|",
    "```python",
    "```",
    "    x = 'one two'",
    "> quoted",
    "---",
    "===",
    "漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字",
    "a\tb [c](http://d.e/f)",
]
TEXTS = st.lists(st.sampled_from(LINES) | st.text("ab*_`[]()<>|#->~ 1.\\&;\n", max_size=50), max_size=12).map("\n".join)


CODES = re.compile(r"\x1b\[[0-9;]*m")


def played(words: str, columns: int, split: int = 1, marks: event_text.Marks | None = None) -> str:
    """All that was drawn of a reply that came in pieces of so many letters, without its colours."""
    drawn = markdown.MarkdownStream(lambda: columns, marks)
    out = "".join(drawn.add(words[place : place + split]) for place in range(0, len(words), split)) + drawn.end()
    return CODES.sub("", out).rstrip("\n")


def looks(words: str, columns: int = 40) -> str:
    return played(words, columns)


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ("Hello.", "Hello."),
        ("\n\n\nHello.\n\n\n\nMore.\n\n", "Hello.\n\nMore."),
        ("# One\ntext", "One\ntext"),
        ("One\n===\ntext", "One\ntext"),
        ("a **b** _c_ `d` ~~e~~", "a b c d e"),
        ("[here](http://a.b/c)", "here (http://a.b/c)"),
        ("<http://a.b/c>", "http://a.b/c"),
        ("- a\n* b\n  + c", "• a\n• b\n  • c"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("- one two three four five six seven eight nine", "• one two three four five six seven\n  eight nine"),
        ("In\n1986. That was it.", "In\n1986. That was it."),
        ("> a\n> b\n>> c", "│ a\n│ b\n│ │ c"),
        ("a\n\n***\n\nb", f"a\n\n{'─' * 40}\n\nb"),
        ("| a | b |\n|:--|--:|\n| x \\| y | 10 |", "a        b\n──────────\nx | y   10"),
        ("a | b", "a | b"),
        ("```\na  b  \n\n\n  c\n```", "```\na  b  \n\n\n  c\n```"),
        ("~~~\n```\n~~~", "~~~\n```\n~~~"),
        ("```sh\nls", "```sh\nls"),
        ("5 * 3 * 2 and snake_case_name", "5 * 3 * 2 and snake_case_name"),
        ("[bold]not markup[/bold] :smile:", "[bold]not markup[/bold] :smile:"),
        ("<b>html</b>", "<b>html</b>"),
        ("1. a\n   ```\n   x\n   ```\n   b\n    - c", "1. a\n   ```\n   x\n   ```\n   b\n    • c"),
        ("1. a\n  - b\n\n    c", "1. a\n  • b\n\n    c"),
        ("> a\n> - b\n>\n> ```\n> c\n> ```", "│ a\n│ • b\n│\n│ ```\n│ c\n│ ```"),
        ("a *b\nc* d", "a b\nc d"),
        ("-\n- a", "•\n• a"),
        ("[a]: http://b.c", "[a]: http://b.c"),
        (">" * 60 + " deep", ">" * 60 + " deep"),
    ],
)
def test_markdown_looks_like_this(words: str, seen: str) -> None:
    assert looks(words) == seen


def test_code_is_coloured_and_neither_broken_nor_padded() -> None:
    line = 'print("' + "x" * 100 + '")'
    drawn = markdown.MarkdownStream(lambda: 40)
    out = drawn.add(f"```python\n{line}\n```\n")
    assert "\x1b[" in out.split("\n")[1]
    assert CODES.sub("", out) == f"```python\n{line}\n```\n"


def test_a_string_over_several_lines_is_coloured_as_one() -> None:
    drawn = markdown.MarkdownStream(lambda: 40)
    out = drawn.add('```python\na = """one\nreturn two\n"""\nreturn three\n')
    inside, outside = out.split("\n")[2], out.split("\n")[4]
    assert inside.count("\x1b[") < outside.count("\x1b[")


def test_a_table_without_room_stays_as_it_was_said() -> None:
    said = "|a|b|c|\n|-|-|-|\n|1|2|3|"
    assert looks(said, columns=20) == said


@given(TEXTS, st.integers(1, 80), st.integers(1, 7))
def test_it_looks_the_same_however_a_reply_is_split(words: str, columns: int, split: int) -> None:
    assert played(words, columns, split) == played(words, columns, split=max(len(words), 1))


WORDS = st.lists(st.sampled_from(["- ", "# ", "> ", "1. ", "\n", "\n\n", "```\n", " "]), min_size=30, max_size=60)


@given(WORDS, st.integers(1, 9))
def test_at_any_moment_each_word_is_there_once_drawn_or_open(marks: list[str], split: int) -> None:
    said = "".join(f"{mark}w{number}x" for number, mark in enumerate(marks))
    drawn, out = markdown.MarkdownStream(lambda: 40), ""
    for place in range(0, len(said), split):
        out += drawn.add(said[place : place + split])
        seen = re.findall(r"w\d+x", CODES.sub("", out + drawn.open))
        assert seen == re.findall(r"w\d+x", said[: place + split])


def test_what_is_open_is_seen_as_it_was_said_until_its_block_is_complete() -> None:
    drawn = markdown.MarkdownStream(lambda: 40)
    assert drawn.add("Some **bold** words") == ""
    assert drawn.open == "Some **bold** words"
    assert CODES.sub("", drawn.add(".\n\nMore")) == "Some bold words.\n"
    # The empty row between them is there while the next one is being written, too.
    assert drawn.open == "\nMore"
    assert drawn.end() == "\nMore\n"
    assert drawn.open == ""


@pytest.mark.parametrize(
    "line", ["| 1 | 2 |", "words", "- an item", "  - an item", "> quoted", "    code", "words\n"], ids=repr
)
def test_the_cost_of_a_long_block_is_linear(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, lines = markdown.read_blocks, list[int]()
    monkeypatch.setattr(markdown, "read_blocks", lambda source: (lines.append(len(source)), parse(source))[1])
    played("- a\n\n| a | b |\n|---|---|\n" + f"{line}\n" * 2_000, 40, 50)
    assert sum(lines) < 40_000


def test_after_a_resize_the_next_block_has_the_new_width() -> None:
    columns = 40
    drawn = markdown.MarkdownStream(lambda: columns)
    drawn.add("one two three four five six")
    columns = 10
    assert drawn.end() == "one two\nthree four\nfive six\n"


ANYTHING = st.text(st.sampled_from("a \n\t\r\x1b\x07\x9b\u202e\u200b\x00\x7f[2J&#x1b;&#27;`*") | st.characters())


@given(ANYTHING, st.integers(1, 9))
def test_nothing_that_is_said_can_act_on_the_terminal(words: str, split: int) -> None:
    drawn = markdown.MarkdownStream(lambda: 40)
    out = "".join(drawn.add(words[at : at + split]) for at in range(0, len(words), split)) + drawn.end()
    assert CODES.sub("", out).translate({ord(c): None for c in "\n\u200c\u200d"}).isprintable()


@pytest.mark.parametrize(
    "spelled", ["&#x202e;", "&#8238;", "&#x9b;2J", "&#27;[2J", "[a](http://x/&#x202e;)", "`\u202e`"]
)
def test_a_character_spelled_by_its_number_is_made_safe_too(spelled: str) -> None:
    assert "\u202e" not in looks(spelled)
    assert "\x9b" not in looks(spelled)


def test_a_terminal_without_such_marks_gets_letters() -> None:
    said = "- a\n\n> b\n\n---\n\n|a|b|\n|-|-|\n|1|2|\n"
    assert played(said, 40, marks=event_text.PLAIN).isascii()


@pytest.mark.parametrize("family", ["\U0001f468\u200d\U0001f469\u200d\U0001f467 ", "e\u0301", "\U0001f1e9\U0001f1ea"])
def test_pictures_and_marks_are_drawn_whole(family: str) -> None:
    assert looks(f"**Done** {family * 3}") == f"Done {family * 3}".rstrip()
