"""Fill a store with invented conversations for the pictures."""

from __future__ import annotations

import json
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
    user, assistant = exchange(at, f"Run the tests of {module}.", f"All tests of {module} pass.")
    call = types.ToolCall(f"c{number}", "shell", json.dumps({"command": f"make test-{module}"}))
    output = "\n".join([f"Testing {module}", *["." * 80] * 150])
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


def fill_kitchen(db: SessionDB, start: float) -> None:
    """Add a conversation with compactions and a branch."""
    session = db.create_session(source="chat", title="Kitchen renovation").id
    for part in range(3):
        for number in range(12):
            at = start + (part * 12 + number) * HOUR
            db.append_messages(session, exchange(at, f"Item {part * 12 + number + 1} is ordered.", "Noted."))
        lease = db.acquire_lease(session, "compact")
        db.commit_compaction(lease, summary="## Goal\n\nRenovate the kitchen.", cut_seq=lease.snapshot.last_seq - 4)
    db.append_messages(session, exchange(start + 36 * HOUR, "The oven arrives on Tuesday.", "Noted."))
    db.branch(session, 20, title="Kitchen renovation, without an island")


def fill(db: SessionDB, folder: str, rounds: int) -> None:
    now = time.time()
    for number, (title, fact) in enumerate(OTHERS):
        session = db.create_session(source="chat", title=title).id
        db.append_messages(session, exchange(now - (200 - number) * HOUR, fact, "Noted."))
    fill_kitchen(db, now - 150 * HOUR)
    session = db.create_session(source="chat", title="Web shop 2.0", folder=folder).id
    db.append_messages(session, list(shop(now - (rounds + 20) * HOUR, rounds)))
