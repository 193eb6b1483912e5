"""What a plain message asks for is told by its form, and prose never becomes an action."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import intent


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("run ls -la", "ls -la"),
        ("Run `make test` please", "make test"),
        ("please execute: git status", "git status"),
        ("could you run `df -h`?", "df -h"),
        ("run the command uname -a", "uname -a"),
        ("run\n```sh\ncd src\nls\n```", "cd src\nls"),
        ("run ls\nand then we see", "ls"),
        ("run the tests", ""),
        ("run away with me", ""),
        ("run it again?", ""),
    ],
)
def test_only_a_command_that_is_written_out_is_run(text: str, command: str) -> None:
    assert intent.parse(text) == intent.Intent("run", command)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("read README.md", "README.md"),
        ("show me src/app.py", "src/app.py"),
        ("please open the file /etc/hosts.", "/etc/hosts"),
        ("cat Makefile", "Makefile"),
        ('read "my notes.txt"', "my notes.txt"),
        ("show `weird name`", "weird name"),
        ("what does notes.txt say about Bella?", "notes.txt"),
        ("What does the file docs/plan.md say?", "docs/plan.md"),
        ("what's in config.toml?", "config.toml"),
    ],
)
def test_a_file_is_read_when_one_is_named(text: str, path: str) -> None:
    assert intent.parse(text) == intent.Intent("read", path)


@pytest.mark.parametrize("text", ["read the book", "open the door", "show me what you mean.", "read between lines"])
def test_what_names_no_file_reads_none(text: str) -> None:
    assert intent.parse(text) == intent.Intent("tell")


@pytest.mark.parametrize(
    "text",
    [
        "what is my dog called?",
        "where is the key",
        "did I tell you about Oslo",
        "Anna lives where?",
        "which port does it use",
        "remind me of the password hint",
        "Wie heißt mein Hund",
        "¿dónde está la llave?",
        "我的猫叫什么",
        "私の犬の名前は何ですか",
        "где ключ",
        "أين المفتاح؟",
    ],
)
def test_a_question_is_told_by_its_mark_or_its_first_words(text: str) -> None:
    assert intent.parse(text) == intent.Intent("ask", text)


@pytest.mark.parametrize(
    "text",
    [
        "my dog is called Bella",
        "When I was young I lived in Rome.",
        "Do not forget the milk",
        "Was in Rome last week.",
        "Comment the second line out",
        "我的猫叫小白。",
        "runs every night at three",
    ],
)
def test_a_statement_is_no_question(text: str) -> None:
    assert intent.parse(text) == intent.Intent("tell")


@pytest.mark.parametrize(
    "text", ["hi", "Hello!", "hey there", "Guten Morgen", "thanks", "Thank you very much.", "你好"]
)
def test_a_greeting_is_known(text: str) -> None:
    assert intent.parse(text) == intent.Intent("greet")


@pytest.mark.parametrize("text", ["who are you?", "What can you do", "help", "Are you an AI?", "wer bist du?"])
def test_asking_who_answers_is_known(text: str) -> None:
    assert intent.parse(text) == intent.Intent("explain")


@pytest.mark.parametrize("text", ["", "   \n", "?!", "🎉🎉", "\x00\x1b"])
def test_without_words_there_is_nothing(text: str) -> None:
    assert intent.parse(text) == intent.Intent("empty")


@given(st.text(max_size=400))
def test_for_any_text_there_is_an_intent_and_an_action_has_what_was_written(text: str) -> None:
    match intent.parse(text):
        case intent.Intent("run", command):
            assert command in text
        case intent.Intent("read", path):
            assert path in text
        case _:
            pass


@pytest.mark.parametrize(
    "text",
    ["please " * 280, "find " + "x in " * 390, "find " + "` in `" * 320, "run " + "`" * 1_990, "what does " * 200],
)
def test_text_made_to_be_slow_is_not(text: str) -> None:
    assert len(text) <= 2_000
    intent.parse(text)
