"""Token estimates: near a tokenizer's count for every kind of text; a meter counts whole requests."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.model import tokens
from tests.support.provider_calls import TOOL, message

# Texts written for this test; the counts are those of js-tiktoken 1.0 with o200k_base.
SAMPLES = json.loads(Path(__file__).with_name("token_samples.json").read_text("utf-8"))
ALPHABET = "aA0 \n.é'中🎉\u0301"


def relative_error(sample: dict[str, Any]) -> float:
    return float(tokens.estimate(sample["text"]) / sample["tokens"] - 1)


@pytest.mark.parametrize("sample", SAMPLES, ids=[each["kind"] for each in SAMPLES])
def test_estimate_is_within_a_fifth_for_every_kind_of_text(sample: dict[str, Any]) -> None:
    assert abs(relative_error(sample)) <= 0.20


def test_estimate_is_within_an_eighth_on_average_and_unbiased() -> None:
    errors = [relative_error(each) for each in SAMPLES]
    assert statistics.mean(map(abs, errors)) <= 0.12
    assert abs(statistics.mean(errors)) <= 0.06


@example(" HeLLO", "\U00010400")
@given(st.text(ALPHABET, max_size=200), st.text(ALPHABET, max_size=200))
def test_estimate_is_bounded_by_bytes_and_nearly_additive(one: str, other: str) -> None:
    size = tokens.estimate(one)
    assert bool(one) <= size <= 2 * len(one.encode()) + 1
    assert tokens.estimate(one + other) <= size + tokens.estimate(other) + 12


def test_estimate_of_a_huge_text_is_sampled_and_stays_accurate() -> None:
    english, logs = (each["text"] for each in SAMPLES if each["kind"] in ("english", "log"))
    text = english * 300 + logs * 300
    whole = (tokens.estimate(english) + tokens.estimate(logs)) * 300
    assert len(text) > tokens._MAX_WHOLE
    assert abs(tokens.estimate(text) / whole - 1) < 0.05


def test_request_is_the_sum_of_system_prompt_tools_and_messages() -> None:
    said = [message("user", "Where is the harbour?"), message("assistant", "Behind the old light.")]
    meter = tokens.Meter()
    alone = meter.count("", [], said)
    assert alone == sum(map(meter.of, said))
    assert meter.count("Be brief.", [], said) == alone + tokens.estimate("Be brief.") + tokens.PER_MESSAGE
    one = meter.count("", [TOOL], said) - alone
    assert one > tokens.estimate(TOOL.description)
    assert meter.count("", [TOOL, TOOL], said) - alone == 2 * one
    longer = msgspec.structs.replace(TOOL, description=TOOL.description * 20)
    assert meter.count("", [longer], said) - alone > one == meter.count("", [TOOL], said) - alone
    assert meter.count("", [], []) == 0


@pytest.mark.parametrize(
    ("part", "least"),
    [
        ({"type": "text", "text": "one two three"}, 3),
        ({"type": "image", "data": "A" * 50_000}, tokens.PER_IMAGE),
        ({"type": "reasoning", "hidden": "x" * 500}, 100),
        ({"type": "hologram", "text": "word " * 100}, 0),
    ],
)
def test_every_part_that_is_sent_counts(part: dict[str, str], least: int) -> None:
    size = tokens.size(message("user", [part])) - tokens.PER_MESSAGE
    assert least <= size <= (least + 3 if least else 0)


def test_reported_usage_corrects_the_count_and_implausible_reports_are_ignored() -> None:
    meter = tokens.Meter()
    for estimated, reported in ((0, 50), (199, 5_000), (5_000, 0), (5_000, -3), (-1, 10)):
        meter.correct(estimated, reported)
    assert meter.factor == 1.0
    context = [message("user", "word " * 1_000)]
    true = round(meter.count("", [], context) * 1.6)
    for _ in range(20):
        meter.correct(meter.count("", [], context), true)
    assert abs(meter.count("", [], context) / true - 1) < 0.01


@pytest.mark.parametrize("reported", [1, 10**12])
def test_false_reports_move_the_count_within_bounds(reported: int) -> None:
    meter = tokens.Meter()
    meter.correct(1_000, reported)
    assert 0.8 <= meter.factor <= 1.7
    for _ in range(1_000):
        meter.correct(1_000, reported)
    assert tokens.Meter.MIN_FACTOR <= meter.factor <= tokens.Meter.MAX_FACTOR
