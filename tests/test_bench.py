"""The bench runs, prints every line it promises, and puts what falls short first. No time is judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from bench import figures, report, retention, timing
from bench.retention_data import make

ROOT = Path(__file__).parent.parent


def bench(*arguments: str) -> str:
    command = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_only_the_section_that_was_asked_for_is_measured_and_printed() -> None:
    printed = bench("--quick", "--only", "fire")
    assert "compaction under fire: kept of 15" in printed
    assert "append p50" not in printed


def test_the_history_with_facts_is_what_its_maker_makes() -> None:
    history, facts = make.made()
    assert (retention.read("history.jsonl"), retention.read("facts.jsonl")) == (history, facts)
    assert (len(history), len(facts)) == (2_000, 200)
    assert len({fact["seq"] for fact in facts}) == 200
    for fact in facts:
        assert fact["key"] in history[fact["seq"] - 1]["content"]
        assert fact["key"] not in fact["q"]
        assert sum(fact["key"] in message["content"] for message in history) == 1, fact


def figure(key: str, ours: float, target: figures.Target | None) -> figures.Figure:
    return figures.Figure(key, f"line {key}", "ms", ours, ("floor", 2.0), target)


def test_what_falls_short_stands_before_every_table() -> None:
    lines = [figure("good", 2.0, figures.at_most(1.4)), figure("slow", 3.0, figures.at_most(1.4))]
    text = report.text({"Python": "3"}, {"A table": [*lines, figure("free", 9.0, None)]})
    first, table = text.split("A table")
    assert "FALLS SHORT: 1 of 2 targets" in first
    assert "line slow" in first
    assert "1.50 x" in first
    assert "line good" not in first
    assert all(f"line {key}" in table for key in ("good", "slow", "free"))


def test_a_run_that_meets_every_target_says_so() -> None:
    text = report.text({}, {"A table": [figure("good", 2.0, figures.at_most(1.4))]})
    assert "Nothing falls short: 1 of 1 targets" in text
    assert "SHORT:" not in text


@pytest.mark.parametrize(
    ("target", "ours", "ok"),
    [
        (figures.at_most(1.4), 2.8, True),
        (figures.at_most(1.4), 2.9, False),
        (figures.at_least(0.9), 1.8, True),
        (figures.at_least(0.9), 1.7, False),
        (figures.at_most(250, "value"), 250, True),
        (figures.at_most(250, "value"), 251, False),
        (None, 1, None),
    ],
)
def test_a_target_is_judged_on_the_ratio_or_on_the_value(
    target: figures.Target | None, ours: float, ok: bool | None
) -> None:
    assert figure("any", ours, target).ok is ok


@pytest.mark.parametrize(("block", "order"), [(1, "ababab"), (2, "aabbab")])
def test_systems_take_turns(block: int, order: str) -> None:
    seen: list[str] = []
    taken = timing.interleaved({name: lambda _, name=name: seen.append(name) for name in "ab"}, 3, block)
    assert "".join(seen) == order
    assert {name: len(times) for name, times in taken.items()} == {"a": 3, "b": 3}


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(100, 0, -1)]
    assert timing.percentile(values, 0.99) == 99
    assert timing.percentile(values, 0.5) == 50
    assert timing.percentile([7.0], 0.99) == 7.0
