"""The intent of a message is found by its form, and prose never becomes an action."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import intent

# A command is run only if it is written out, a file is read if it is named and written if its content is given.
ACTIONS = {
    "run ls -la": intent.Intent("run", "ls -la"),
    "Run `make test` please": intent.Intent("run", "make test"),
    "run\n```sh\ncd src\nls\n```": intent.Intent("run", "cd src\nls"),
    "run the tests": intent.Intent("run", ""),
    "show me src/app.py": intent.Intent("read", "src/app.py"),
    "please open the file /etc/hosts.": intent.Intent("read", "/etc/hosts"),
    'read "my notes.txt"': intent.Intent("read", "my notes.txt"),
    "what does notes.txt say about Bella?": intent.Intent("read", "notes.txt"),
    "create a file notes.txt with buy milk": intent.Intent("write", "notes.txt", "buy milk"),
    'please write the file "my notes.txt" with "a\nb".': intent.Intent("write", "my notes.txt", "a\nb"),
    "create a new file called src/a.py containing `print(1)`": intent.Intent("write", "src/a.py", "print(1)"),
}
QUESTIONS = ["what is my dog called?", "Wie heißt mein Hund", "где ключ", "أين المفتاح؟"]
TEXTS: dict[intent.Kind, list[str]] = {
    "tell": ["read the book", "my dog is called Bella", "Comment the second line out"],
    "greet": ["hi", "Hello!", "hey there", "Guten Morgen", "你好"],
    "thank": ["thanks", "Thank you very much.", "Great, thanks!", "danke"],
    "list": ["list the files", "Please show me all files in this folder.", "list my files"],
    "generate": ["write a poem", "Can you explain the difference between TCP and UDP?", "fix this bug"],
    "explain": ["who are you?", "What can you do", "help", "Are you an AI?", "wer bist du?"],
    "empty": ["", "   \n", "?!", "🎉🎉", "\x00\x1b"],
}

INTENTS = [
    *ACTIONS.items(),
    *((text, intent.Intent(kind)) for kind, texts in TEXTS.items() for text in texts),
    *((text, intent.Intent("ask", text[-intent.MAX_LENGTH :])) for text in [*QUESTIONS, "x " * 2_000 + "?"]),
]


@pytest.mark.parametrize(("text", "found"), INTENTS)
def test_intent_of_a_message_is_found_by_its_form(text: str, found: intent.Intent) -> None:
    assert intent.parse(text) == found


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
