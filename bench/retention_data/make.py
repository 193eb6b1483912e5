"""Generate history.jsonl and facts.jsonl: `python -m bench.retention_data.make`. The output is always the same.

The facts and their questions (facts.txt) were written before the first measurement, and must not be changed to suit a
ranking. They are placed between the chats of bench/corpus, which contain competing facts, and generated work: code,
logs, tool calls and their results.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
CORPUS = FOLDER.parent / "corpus"
MESSAGES = 2_000
SEED = 20_310

Message = dict[str, Any]

ACKNOWLEDGED = (
    "Got it.", "Noted.", "Understood, I'll keep that in mind.", "Thanks, that helps.", "All right.", "Good to know!",
    "Makes sense to me.", "Fine, carry on.", "OK.", "I see.",
)  # fmt: skip
CHATTER = (
    "It rained all morning here.", "Coffee first, then this.", "Sorry for the late reply, the train had no signal.",
    "By the way, the concert was lovely.", "I am half asleep today.", "Anyway, back to business.",
    "Quick one before lunch.", "The kids are finally in bed.", "Long day, short message.", "Oh, and something else.",
)  # fmt: skip
ASKED = (
    "Anything new on your side?", "What did you find?", "How does it look?", "And the result?", "Where are we?",
)  # fmt: skip
SERVICES = ("ingest", "mailer", "thumbs", "ledger-sync", "crawler", "auth-edge", "reports", "scheduler")
WORKED = (
    "Run the tests of {service} again.", "Look at the log of {service}, something is slow.",
    "Show me how {service} opens its connections.", "Is {service} healthy?", "Restart {service} when you get to it.",
)  # fmt: skip
CONCLUDED = (
    "{service} is fine again after {n} restarts.", "Nothing odd in {service}, {n} requests, all answered.",
    "The slow part of {service} is the query on line {n}.", "{service} passed {n} tests, none failed.",
)  # fmt: skip


def generate() -> tuple[list[Message], list[dict[str, Any]]]:
    """Return the messages, and the facts with the number of their message."""
    chance = random.Random(SEED)
    facts = _facts()
    chance.shuffle(facts)
    filler = _filler(chance)
    history: list[Message] = []
    placed = []
    for number, fact in enumerate(facts):
        until = (number + 1) * (MESSAGES - 8) // len(facts) - 3
        while len(history) < until - 3:
            history += next(filler)
        messages, at = _fact_messages(fact, len(history), chance)
        placed.append({"seq": len(history) + at + 1, "kind": fact["kind"], "key": fact["key"], "q": fact["q"]})
        history += messages
    while len(history) < MESSAGES:
        history.append({"role": ("user", "assistant")[len(history) % 2], "content": chance.choice(CHATTER)})
    return history, placed


def _facts() -> list[dict[str, str]]:
    lines = (FOLDER / "facts.txt").read_text("utf-8").splitlines()
    return [dict(zip(("kind", "who", "text", "key", "q"), line.split("|"), strict=True)) for line in lines[1:]]


def _fact_messages(fact: dict[str, str], number: int, chance: random.Random) -> tuple[list[Message], int]:
    """Return the messages that contain a fact, and the index of the one with the fact."""
    if fact["who"] == "tool":
        call, result = _called(f"f{number}", "run", {"command": "tail -n 5 out.log"}, fact["text"])
        return [{"role": "user", "content": chance.choice(ASKED)}, call, result], 2
    if fact["who"] == "assistant":
        return [{"role": "user", "content": chance.choice(ASKED)}, {"role": "assistant", "content": fact["text"]}], 1
    said = [chance.choice(CHATTER)] if chance.random() < 0.4 else []
    after = [chance.choice(CHATTER)] if chance.random() < 0.3 else []
    stated = {"role": "user", "content": " ".join([*said, fact["text"], *after])}
    return [stated, {"role": "assistant", "content": chance.choice(ACKNOWLEDGED)}], 0


def _filler(chance: random.Random) -> Iterator[list[Message]]:
    """Yield chats of the corpus and generated work alternately, without end."""
    chats = [
        json.loads(line)["messages"]
        for file in sorted(CORPUS.glob("chats-*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
    ]
    spoken = [message for chat in chats for message in chat if message["role"] != "tool"]
    while True:
        for begin in range(0, len(spoken), 4):
            yield spoken[begin : begin + 4]
            yield _work(chance)


def _work(chance: random.Random) -> list[Message]:
    service, n = chance.choice(SERVICES), chance.randrange(3, 900)
    name, given = chance.choice(
        (("run", {"command": f"journalctl -u {service} -n {n}"}), ("read_file", {"path": f"src/{service}/main_{n}.py"}))
    )
    output = _log(service, chance) if name == "run" else _code(service, n)
    call, result = _called(f"w{chance.randrange(10**9)}", name, given, output)
    return [
        {"role": "user", "content": chance.choice(WORKED).format(service=service)},
        call,
        result,
        {"role": "assistant", "content": chance.choice(CONCLUDED).format(service=service, n=n)},
    ]


def _called(call_id: str, name: str, given: dict[str, str], output: str) -> tuple[Message, Message]:
    call = {"id": call_id, "name": name, "arguments": json.dumps(given)}
    return (
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": output, "tool_call_id": call_id},
    )


def _log(service: str, chance: random.Random) -> str:
    kinds = (
        "INFO served in {} ms",
        "WARN retry {} of upstream",
        "ERROR connection reset after {} ms",
        "DEBUG cache {}",
    )
    return "\n".join(
        f"2031-05-{chance.randrange(1, 28):02d}T{chance.randrange(24):02d}:{chance.randrange(60):02d} {service} "
        + chance.choice(kinds).format(chance.randrange(2, 9_000))
        for _ in range(chance.randrange(3, 9))
    )


def _code(service: str, n: int) -> str:
    return (
        f"def open_{service.replace('-', '_')}(url: str, timeout: float = {n / 10}) -> Connection:\n"
        f'    """Connect, or raise after {n} tries."""\n    for attempt in range({n}):\n'
        "        try:\n            return connect(url, timeout=timeout)\n        except OSError:\n"
        "            backoff(attempt)\n    raise Unreachable(url)"
    )


def lines(values: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def main() -> None:
    history, facts = generate()
    (FOLDER / "history.jsonl").write_text(lines(history), "utf-8")
    (FOLDER / "facts.jsonl").write_text(lines(facts), "utf-8")
    print(f"{len(history)} messages, {len(facts)} facts")


if __name__ == "__main__":
    main()
