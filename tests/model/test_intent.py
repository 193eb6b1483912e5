"""The intent of a message is found by its form, and prose never becomes an action."""

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
        ("run the command uname -a", "uname -a"),
        ("run\n```sh\ncd src\nls\n```", "cd src\nls"),
        ("run ls\nand then we see", "ls"),
        ("run the tests", ""),
        ("run away with me", ""),
    ],
)
def test_command_is_run_only_if_it_is_written_out(text: str, command: str) -> None:
    assert intent.parse(text) == intent.Intent("run", command)


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("show me src/app.py", "src/app.py"),
        ("please open the file /etc/hosts.", "/etc/hosts"),
        ('read "my notes.txt"', "my notes.txt"),
        ("show `weird name`", "weird name"),
        ("what does notes.txt say about Bella?", "notes.txt"),
    ],
)
def test_file_is_read_if_it_is_named(text: str, path: str) -> None:
    assert intent.parse(text) == intent.Intent("read", path)


@pytest.mark.parametrize(
    ("text", "path", "content"),
    [
        ("create a file notes.txt with buy milk", "notes.txt", "buy milk"),
        ("create a file todo with buy milk", "todo", "buy milk"),
        ('please write the file "my notes.txt" with "a\nb".', "my notes.txt", "a\nb"),
        ("create a new file called src/a.py containing `print(1)`", "src/a.py", "print(1)"),
    ],
)
def test_file_is_written_if_name_and_content_are_given(text: str, path: str, content: str) -> None:
    assert intent.parse(text) == intent.Intent("write", path, content)


QUESTIONS = [
    "what is my dog called?",
    "Anna lives where?",
    "remind me of the password hint",
    "Wie heißt mein Hund",
    "我的猫叫什么",
    "где ключ",
    "أين المفتاح؟",
]
TEXTS = {
    "tell": [
        "read the book",
        "my dog is called Bella",
        "When I was young I lived in Rome.",
        "Comment the second line out",
        "Make him/her with clay",
        "runs every night at three",
    ],
    "greet": ["hi", "Hello!", "hey there", "Guten Morgen", "你好"],
    "thank": ["thanks", "Thank you very much.", "Great, thanks!", "danke"],
    "list": ["list the files", "Please show me all files in this folder.", "list my files"],
    "generate": ["write a poem", "Can you explain the difference between TCP and UDP?", "fix this bug"],
    "explain": ["who are you?", "What can you do", "help", "Are you an AI?", "wer bist du?"],
    "empty": ["", "   \n", "?!", "🎉🎉", "\x00\x1b"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in TEXTS.items() for text in texts])
def test_other_messages_have_their_kind(kind: str, text: str) -> None:
    assert intent.parse(text) == intent.Intent(kind)


@pytest.mark.parametrize("text", [*QUESTIONS, "x " * 2_000 + "?"])
def test_question_is_found_by_its_mark_or_its_first_words(text: str) -> None:
    assert intent.parse(text) == intent.Intent("ask", text[-intent.MAX_LENGTH :])


@given(st.text(alphabet="run read `'\"a/.?\n", max_size=80))
def test_action_contains_only_text_of_the_message(text: str) -> None:
    found = intent.parse(text)
    assert found.kind not in ("run", "read") or found.text in text


@pytest.mark.parametrize(
    "text",
    ["please " * 280, "find " + "x in " * 390, "find " + "` in `" * 320, "run " + "`" * 1_990, "what does " * 200],
)
def test_text_made_to_be_slow_is_parsed_in_time(text: str) -> None:
    assert len(text) <= intent.MAX_LENGTH
    assert intent.parse(text).kind in ("tell", "ask", "run")  # a slow pattern would run into the timeout of the test
