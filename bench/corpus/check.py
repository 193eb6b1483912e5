"""Check the corpus and print its counts: `python bench/corpus/check.py`.

A mistake in the corpus (an answer that points past the end, a repeated question) would be measured as a failure of the
search.
"""

import itertools
import json
import pathlib
from collections import Counter
from typing import Any

FOLDER = pathlib.Path(__file__).parent
ROLES = ("user", "assistant", "tool")


def conversations() -> list[dict[str, Any]]:
    """Return the conversations of the corpus, in the order of the files."""
    files = sorted(FOLDER.glob("chats-*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def faults(chat: dict[str, Any]) -> list[str]:
    """Return the problems of a conversation."""
    found = [] if set(chat) == {"id", "messages", "questions"} else [f"keys {sorted(chat)}"]
    messages = chat["messages"]
    for seq, message in enumerate(messages, 1):
        if set(message) != {"role", "content"} or message["role"] not in ROLES or not message["content"].strip():
            found.append(f"message {seq} is malformed")
    found += [
        f"question {question['q']!r}: {fault}" for question in chat["questions"] for fault in misfit(question, messages)
    ]
    return [*found, *role_faults([message["role"] for message in messages])]


def misfit(question: dict[str, Any], messages: list[dict[str, str]]) -> list[str]:
    answers = question["answers"]
    found = [] if 1 <= len(answers) <= 3 and answers == sorted(set(answers)) else [f"answers {answers}"]
    return found + [f"no message {seq}" for seq in answers if not 1 <= seq <= len(messages)]


def role_faults(roles: list[str]) -> list[str]:
    """Check that the user begins, only the user repeats, and the assistant follows each tool result."""
    found = [] if roles[0] == "user" else ["the user does not begin"]
    for seq, (role, following) in enumerate(itertools.pairwise(roles), 1):
        if role == following != "user" or (role == "tool" and following != "assistant"):
            found.append(f"message {seq + 1}: {following} after {role}")
    return found


def main() -> None:
    chats = conversations()
    wrong = [f"{chat['id']}: {fault}" for chat in chats for fault in faults(chat)]
    questions = [question for chat in chats for question in chat["questions"]]
    for name, values in (("id", [chat["id"] for chat in chats]), ("question", [each["q"] for each in questions])):
        wrong += [f"{name} {value!r} occurs {count} times" for value, count in Counter(values).items() if count > 1]
    if wrong:
        raise SystemExit("\n".join(wrong))
    lengths = [len(chat["messages"]) for chat in chats]
    words = [len(message["content"].split()) for chat in chats for message in chat["messages"]]
    roles = Counter(message["role"] for chat in chats for message in chat["messages"])
    short, long = sum(count <= 5 for count in words), sum(count >= 100 for count in words)
    print(
        f"{len(chats)} conversations of {min(lengths)} to {max(lengths)} messages, {len(words)} in all: {dict(roles)}"
    )
    print(f"{sum(words)} words, {short} messages of up to 5 words, {long} of 100 or more")
    print(f"{len(questions)} questions, by answers each: {dict(Counter(len(each['answers']) for each in questions))}")


if __name__ == "__main__":
    main()
