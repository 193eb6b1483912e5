"""Replies in Markdown: drawn the same however they are streamed, without loss, and safe for the terminal."""

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


def draw(text: str, columns: int = 40, split: int = 1, marks: event_text.Marks | None = None) -> str:
    """Return a reply that was streamed in pieces of this length, without its colours."""
    stream = markdown.MarkdownStream(lambda: columns, marks)
    out = "".join(stream.add(text[place : place + split]) for place in range(0, len(text), split)) + stream.end()
    return CODES.sub("", out).rstrip("\n")


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("\n\n\nHello.\n\n\n\nMore.\n\n", "Hello.\n\nMore."),
        ("# One\ntext", "One\ntext"),
        ("a **b** _c_ `d` ~~e~~", "a b c d e"),
        ("[here](http://a.b/c)", "here (http://a.b/c)"),
        ("- a\n* b\n  + c", "• a\n• b\n  • c"),
        ("- one two three four five six seven eight nine", "• one two three four five six seven\n  eight nine"),
        ("In\n1986. That was it.", "In\n1986. That was it."),
        ("> a\n> b\n>> c", "│ a\n│ b\n│ │ c"),
        ("a\n\n***\n\nb", f"a\n\n{'─' * 40}\n\nb"),
        ("| a | b |\n|:--|--:|\n| x \\| y | 10 |", "a        b\n──────────\nx | y   10"),
        ("```\na  b  \n\n\n  c\n```", "```\na  b  \n\n\n  c\n```"),
        ("~~~sh\n```", "~~~sh\n```"),
        ("5 * 3 * 2 and snake_case_name", "5 * 3 * 2 and snake_case_name"),
        ("[bold]not markup[/bold] :smile:", "[bold]not markup[/bold] :smile:"),
        ("<b>html</b>", "<b>html</b>"),
        ("1. a\n   ```\n   x\n   ```\n   b\n    - c", "1. a\n   ```\n   x\n   ```\n   b\n    • c"),
        ("> a\n> - b\n>\n> ```\n> c\n> ```", "│ a\n│ • b\n│\n│ ```\n│ c\n│ ```"),
        ("a *b\nc* d", "a b\nc d"),
        ("[a]: http://b.c", "[a]: http://b.c"),
        (">" * 60 + " deep", ">" * 60 + " deep"),
        ("**Done** e\u0301 \U0001f468\u200d\U0001f469", "Done e\u0301 \U0001f468\u200d\U0001f469"),
    ],
)
def test_markdown_is_drawn(text: str, drawn: str) -> None:
    assert draw(text) == drawn


def test_code_is_coloured_and_neither_broken_nor_padded() -> None:
    line = 'print("' + "x" * 100 + '")'
    drawn = markdown.MarkdownStream(lambda: 40)
    out = drawn.add(f"```python\n{line}\n```\n")
    assert "\x1b[" in out.split("\n")[1]
    assert CODES.sub("", out) == f"```python\n{line}\n```\n"
    out = markdown.MarkdownStream(lambda: 40).add('```python\na = """one\nreturn two\n"""\nreturn three\n')
    inside, outside = out.split("\n")[2], out.split("\n")[4]
    assert inside.count("\x1b[") < outside.count("\x1b[")


def test_table_without_room_stays_as_it_is() -> None:
    table = "|a|b|c|\n|-|-|-|\n|1|2|3|"
    assert draw(table, columns=20) == table


@given(TEXTS, st.integers(1, 80), st.integers(1, 7))
def test_any_reply_is_drawn_the_same_however_it_is_split(text: str, columns: int, split: int) -> None:
    assert draw(text, columns, split) == draw(text, columns, split=max(len(text), 1))


WORDS = st.lists(st.sampled_from(["- ", "# ", "> ", "1. ", "\n", "\n\n", "```\n", " "]), min_size=30, max_size=60)


@given(WORDS, st.integers(1, 9))
def test_every_word_is_drawn_or_open_exactly_once_at_any_time(marks: list[str], split: int) -> None:
    text = "".join(f"{mark}w{number}x" for number, mark in enumerate(marks))
    stream, out = markdown.MarkdownStream(lambda: 40), ""
    for place in range(0, len(text), split):
        out += stream.add(text[place : place + split])
        seen = re.findall(r"w\d+x", CODES.sub("", out + stream.open))
        assert seen == re.findall(r"w\d+x", text[: place + split])


def test_open_block_is_shown_unstyled_until_it_is_complete() -> None:
    drawn = markdown.MarkdownStream(lambda: 40)
    assert drawn.add("Some **bold** words") == ""
    assert drawn.open == "Some **bold** words"
    assert CODES.sub("", drawn.add(".\n\nMore")) == "Some bold words.\n"
    # The empty row between them is there while the next one is being written, too.
    assert drawn.open == "\nMore"
    assert drawn.end() == "\nMore\n"
    assert drawn.open == ""


@pytest.mark.parametrize("line", ["| 1 | 2 |", "words", "  - an item", "> quoted", "    code", "words\n"], ids=repr)
def test_cost_of_a_long_block_is_linear(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parse, lines = markdown.read_blocks, list[int]()
    monkeypatch.setattr(markdown, "read_blocks", lambda source: (lines.append(len(source)), parse(source))[1])
    draw("- a\n\n| a | b |\n|---|---|\n" + f"{line}\n" * 500, 40, 50)
    assert sum(lines) < 10_000


ANYTHING = st.text(st.sampled_from("a \n\t\r\x1b\x07\x9b\u202e\u200b\x00\x7f[2J&#x1b;&#27;`*") | st.characters())


@given(ANYTHING, st.integers(1, 9))
def test_any_reply_is_printable(text: str, split: int) -> None:
    assert draw(text, 40, split).translate({ord(c): None for c in "\n\u200c\u200d"}).isprintable()


@pytest.mark.parametrize(
    "entity", ["&#x202e;", "&#8238;", "&#x9b;2J", "&#27;[2J", "[a](http://x/&#x202e;)", "`\u202e`"]
)
def test_control_characters_of_entities_are_escaped(entity: str) -> None:
    assert draw(entity).isprintable()


def test_plain_marks_are_ascii() -> None:
    assert draw("- a\n\n> b\n\n---\n\n|a|b|\n|-|-|\n|1|2|\n", marks=event_text.PLAIN).isascii()
