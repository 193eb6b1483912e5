"""The benchmark: its checked-in history is the generated one."""

from __future__ import annotations

from bench import retention
from bench.retention_data import make


def test_checked_in_history_is_the_generated_one() -> None:
    history, facts = make.generate()
    assert (retention.read("history.jsonl"), retention.read("facts.jsonl")) == (history, facts)
    assert (len(history), len(facts)) == (2_000, 200)
    assert len({fact["seq"] for fact in facts}) == 200
    for fact in facts:
        assert fact["key"] in history[fact["seq"] - 1]["content"]
        assert fact["key"] not in fact["q"]
        assert sum(fact["key"] in message["content"] for message in history) == 1, fact
