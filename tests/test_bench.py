"""The benchmark: its checked-in history is the generated one, and missed targets are reported first."""

from __future__ import annotations

from bench import figures, report, retention
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


def figure(key: str, ours: float, target: figures.Target | None) -> figures.Figure:
    return figures.Figure(key, f"line {key}", "ms", ours, ("floor", 2.0), target)


def test_missed_targets_precede_every_table() -> None:
    good, slow = figure("good", 2.0, figures.at_most(1.4)), figure("slow", 3.0, figures.at_most(1.4))
    text = report.text({"Python": "3"}, {"A table": [good, slow, figure("free", 9.0, None)]})
    first, table = text.split("A table")
    assert "MISSED: 1 of 2 targets" in first
    assert "line slow" in first
    assert "1.50 x" in first
    assert "line good" not in first
    assert all(f"line {key}" in table for key in ("good", "slow", "free"))
    met = report.text({}, {"A table": [good]})
    assert "All 1 targets are met." in met
    assert "MISSED" not in met
