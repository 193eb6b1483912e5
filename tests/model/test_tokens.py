"""The estimate is near what a tokenizer counts on every kind of text, and one meter counts whole requests with it."""

from __future__ import annotations

import statistics
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import types
from holdfast.model import tokens
from tests.support import token_samples

TOOL = types.ToolSpec(
    "read_file",
    "Reads a file.",
    {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


def message(seq: int, role: types.Role, content: types.Content = "", **body: Any) -> types.Message:
    written = msgspec.json.encode(types.Body(content=content, **body)).decode()
    return types.Message(seq, f"uid{seq}", "s", role, 0.0, written)


@pytest.mark.parametrize(
    ("kind", "true", "text"), token_samples.SAMPLES, ids=[kind for kind, _, _ in token_samples.SAMPLES]
)
def test_estimate_is_within_a_fifth_on_every_kind_of_text(kind: str, true: int, text: str) -> None:
    assert abs(tokens.estimate(text) / true - 1) <= 0.20, kind


def test_estimate_is_within_an_eighth_on_average_and_leans_to_neither_side() -> None:
    errors = [tokens.estimate(text) / true - 1 for _, true, text in token_samples.SAMPLES]
    assert statistics.mean(map(abs, errors)) <= 0.12
    assert abs(statistics.mean(errors)) <= 0.06


def test_counting_characters_would_not_have_done() -> None:
    worst = max(abs(len(text) / 4 / true - 1) for _, true, text in token_samples.SAMPLES)
    assert worst > 0.6


@given(st.text())
def test_for_any_text_the_estimate_is_at_least_one_and_bounded_by_its_bytes(text: str) -> None:
    size = tokens.estimate(text)
    assert size >= (1 if text else 0)
    assert size <= 2 * len(text.encode("utf-8", "surrogatepass")) + 1


@given(st.text(max_size=200), st.text(max_size=200))
def test_for_any_two_texts_together_are_never_much_more_than_apart(one: str, other: str) -> None:
    assert tokens.estimate(one + other) <= tokens.estimate(one) + tokens.estimate(other) + 12


@given(st.text(alphabet="aA0 \n.é'中🎉", min_size=1, max_size=300))
def test_for_any_text_every_character_is_in_some_piece(text: str) -> None:
    classes = text.translate(tokens._classes)
    assert "".join(tokens._PIECE.findall(classes)) == classes


def test_a_huge_text_is_weighed_by_stretches_and_stays_true() -> None:
    english, logs = (text for kind, _, text in token_samples.SAMPLES if kind in ("english", "log"))
    text = english * 300 + logs * 300
    whole = (tokens.estimate(english) + tokens.estimate(logs)) * 300
    assert len(text) > tokens._MAX_WHOLE
    assert abs(tokens.estimate(text) / whole - 1) < 0.05


@pytest.mark.parametrize(
    "text", ["a" * 100_000, "A" * 100_000, "'" * 100_000, " " * 100_000, "\n" * 100_000, "中" * 99_999]
)
def test_odd_text_fills_no_memory(text: str) -> None:
    tokens.estimate(text)
    assert tokens._cost.cache_info().currsize <= 8192
    assert all(len(piece) <= 100 for piece in tokens._PIECE.findall(text.translate(tokens._classes)))


# --- the meter ---------------------------------------------------------------------------------------


def test_a_request_is_the_sum_of_its_system_prompt_tools_and_messages() -> None:
    said = [message(1, "user", "Where is the harbour?"), message(2, "assistant", "Behind the old light.")]
    meter = tokens.Meter()
    alone = meter.count("", [], said)
    assert alone == sum(map(meter.of, said))
    assert meter.count("Be brief.", [], said) == alone + tokens.estimate("Be brief.") + tokens.PER_MESSAGE
    assert meter.count("", [TOOL], said) > alone + tokens.estimate(TOOL.description)
    assert meter.count("", [TOOL, TOOL], said) - alone == 2 * (meter.count("", [TOOL], said) - alone)
    assert meter.count("", [], []) == 0


@pytest.mark.parametrize(
    ("content", "least"),
    [
        ([{"type": "text", "text": "one two three"}], 3),
        ([{"type": "image", "data": "A" * 50_000}], tokens.PER_IMAGE),
        ([{"type": "reasoning", "text": "one two three"}], 3),
        ([{"type": "reasoning", "hidden": "x" * 500}], 100),
    ],
)
def test_every_part_counts(content: types.Content, least: int) -> None:
    size = tokens.size(message(1, "user", content)) - tokens.PER_MESSAGE
    assert least <= size <= least + 3


def test_parts_nobody_sends_do_not_count() -> None:
    assert tokens.size(message(1, "user", [{"type": "hologram", "text": "word " * 100}])) == tokens.PER_MESSAGE


@pytest.mark.parametrize("arguments", ['{"path": "a/b.txt"}', {"path": "a/b.txt"}, '{"path": "a/b.t'])
def test_calls_count_whatever_form_their_arguments_have(arguments: str | dict[str, Any]) -> None:
    calls = (types.ToolCall("c1", "read_file", arguments),)
    assert tokens.size(message(1, "assistant", tool_calls=calls)) >= tokens.PER_MESSAGE + tokens.PER_CALL + 5


def test_a_message_is_weighed_once() -> None:
    said = message(1, "user", "Where is the harbour?")
    first = tokens.size(said)
    assert said.__dict__["tokens"] == first
    said.__dict__["tokens"] = 1_000
    assert tokens.size(said) == 1_000


def test_a_long_context_costs_what_is_new() -> None:
    context = [message(n, "user", f"number {n}") for n in range(10_000)]
    meter = tokens.Meter()
    meter.count("", [], context)
    for one in context:
        one.__dict__["tokens"] = 1
    new = message(10_000, "user", "something new")
    assert meter.count("", [], [*context, new]) == 10_000 + tokens.size(new)


def test_reports_correct_the_count_until_it_agrees() -> None:
    meter = tokens.Meter()
    context = [message(1, "user", "word " * 1_000)]
    true = round(meter.count("", [], context) * 1.6)
    for _ in range(20):
        meter.correct(meter.count("", [], context), true)
    assert abs(meter.count("", [], context) / true - 1) < 0.01


@pytest.mark.parametrize("reported", [1, 10**12])
def test_a_provider_that_lies_moves_the_count_within_bounds(reported: int) -> None:
    meter = tokens.Meter()
    meter.correct(1_000, reported)
    assert 0.8 <= meter.factor <= 1.7
    for _ in range(1_000):
        meter.correct(1_000, reported)
    assert tokens.Meter.MIN_FACTOR <= meter.factor <= tokens.Meter.MAX_FACTOR


@pytest.mark.parametrize(("estimated", "reported"), [(0, 50), (199, 5_000), (5_000, 0), (5_000, -3), (-1, 10)])
def test_reports_that_say_nothing_are_ignored(estimated: int, reported: int) -> None:
    meter = tokens.Meter()
    meter.correct(estimated, reported)
    assert meter.factor == 1.0


def test_tools_are_weighed_again_when_they_change() -> None:
    meter = tokens.Meter()
    one = meter.count("", [TOOL], [])
    other = msgspec.structs.replace(TOOL, description=TOOL.description * 20)
    assert meter.count("", [other], []) > one
    assert meter.count("", [TOOL], []) == one


def test_counting_the_rest_of_a_request_does_not_have_its_tools_weighed_again() -> None:
    meter = tokens.Meter()
    meter.count("", [TOOL], [])
    kept = meter._weighed
    meter.count("a prompt", [], [])
    assert meter._weighed is kept
