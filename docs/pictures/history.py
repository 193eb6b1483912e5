"""Fill a store with invented conversations for the pictures: `python docs/pictures/history.py STORE FOLDER`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from holdfast import SessionDB, types

MODEL = "anthropic/claude-sonnet-4-5"
HOUR = 3600.0
DECISIONS = (
    ("We release version 2.0 of the web shop on Friday.", "Noted. I can list the open tasks at any time."),
    ("The staging database listens on port 5433, because port 5432 belongs to the CI database.", "Noted: port 5433."),
    ("Prices are integers in cents; only templates format them.", "Agreed, that avoids rounding errors."),
    ("Export the orders as CSV every night at 02:30.", "The export is scheduled."),
)
MODULES = ("accounts", "cart", "catalog", "checkout", "coupons", "invoices", "orders", "returns", "search", "shipping")
OTHERS = (
    ("Names for the cat", "We call the cat Miso."),
    ("Train to Porto", "Our train leaves at 9:40 from platform 4."),
    ("Bread recipe", "The dough rests for twelve hours."),
)


def exchange(at: float, question: str, answer: str) -> list[types.NewMessage]:
    return [
        types.NewMessage(role="user", content=question, at=at),
        types.NewMessage(role="assistant", content=answer, model=MODEL, at=at + 5),
    ]


def test_run(at: float, module: str, number: int) -> list[types.NewMessage]:
    """Return an exchange with a long tool result, which fills the context window."""
    user, assistant = exchange(at, f"Run the tests of {module}.", f"All 180 tests of {module} pass.")
    call = types.ToolCall(f"c{number}", "shell", json.dumps({"command": f"pytest -v tests/test_{module}.py"}))
    output = "\n".join(f"tests/test_{module}.py::test_{module}_case_{case} PASSED" for case in range(180))
    return [
        user,
        types.NewMessage(role="assistant", content="", tool_calls=(call,), model=MODEL, at=at + 1),
        types.NewMessage(role="tool", content=output, tool_call_id=call.id, at=at + 4),
        assistant,
    ]


def shop(start: float, rounds: int) -> Iterator[types.NewMessage]:
    for number, (question, answer) in enumerate(DECISIONS):
        yield from exchange(start + number * HOUR, question, answer)
    for number in range(rounds):
        yield from test_run(start + (4 + number) * HOUR, MODULES[number % len(MODULES)], number)


def fill(db: SessionDB, folder: str, rounds: int) -> None:
    now = time.time()
    for number, (title, fact) in enumerate(OTHERS):
        session = db.create_session(source="chat", title=title).id
        db.append_messages(session, exchange(now - (200 - number) * HOUR, fact, "Noted."))
    session = db.create_session(source="chat", title="Web shop 2.0", folder=folder).id
    db.append_messages(session, list(shop(now - (rounds + 20) * HOUR, rounds)))


if __name__ == "__main__":
    with SessionDB(sys.argv[1]) as opened:
        fill(opened, sys.argv[2], int(sys.argv[3]))
