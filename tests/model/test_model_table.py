"""The tables of models: limits by any spelling of a name, list prices at the maker's own address only."""

from __future__ import annotations

import pytest

from holdfast import types
from holdfast.model import base, model_table

OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"


@pytest.mark.parametrize(
    ("name", "window", "output"),
    [
        ("openai/gpt-4o-mini", 128_000, 16_384),
        ("gpt-4-1106", 8_192, None),  # the number of a snapshot is no version
        ("gpt-4-1106-preview", 128_000, 4_096),
        ("eu.anthropic.claude-3-5-sonnet-20240620-v1:0", 200_000, 8_192),
        ("openrouter/anthropic/claude-sonnet-4.5", 200_000, 64_000),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072, None),
        *(
            (name, 16_384, None)
            for name in ("", "///", "-", "unknown/model", "marco-o1", "my-o3", "gpt", "llama", "ｇｐｔ")
        ),
    ],
)
def test_limits_are_found_by_any_spelling_or_are_the_default(name: str, window: int, output: int | None) -> None:
    assert model_table.find_limits(name) == model_table.ModelLimits(window, output)


@pytest.mark.parametrize("name", sorted(model_table.LIMITS))
def test_every_entry_is_found_by_its_own_name_and_leaves_space_for_input(name: str) -> None:
    found = model_table.find_limits(name)
    assert found == model_table.LIMITS[name]
    assert found.window >= 4_096
    assert found.max_output is None or found.max_output <= 0.6 * found.window


@pytest.mark.parametrize(
    ("base_url", "model", "expected"),
    [
        (OPENAI, "gpt-4.1-2025-04-14", (2, 8, 0.5)),
        (OPENAI, "gpt-4o-2024-05-13", (5, 15, None)),
        (ANTHROPIC, "claude-sonnet-4-5-20250929", (3, 15, 0.3)),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "models/gemini-2.5-flash", (0.3, 2.5, 0.03)),
        (OPENAI, "gpt-4.1-something-new", None),
        (OPENAI, "claude-sonnet-4-5", None),
        ("http://127.0.0.1:8000/v1", "gpt-4.1", None),
        ("http://[broken", "gpt-4.1", None),
    ],
)
def test_price_is_found_at_the_address_of_the_maker_only(base_url: str, model: str, expected: object) -> None:
    found = model_table.find_price(base_url, model)
    assert (found and (found.input, found.output, found.cache_read)) == expected


def test_price_counts_the_cache_and_long_contexts() -> None:
    usage = types.Usage(input=1_000_000, output=100_000, cache_read=600_000, cache_write=100_000)
    assert base.Price(3.0, 15.0).of(usage) == pytest.approx(4.5)
    assert base.Price(3.0, 15.0, 0.3, 3.75).of(usage) == pytest.approx(0.9 + 0.18 + 0.375 + 1.5)
    price = base.Price(2.0, 10.0, 0.2, long=base.LongContext(200_000, 2.0, 1.5))
    assert price.of(types.Usage(200_000, 1_000, 100_000)) == pytest.approx(0.2 + 0.02 + 0.01)
    assert price.of(types.Usage(200_001, 1_000, 100_001)) == pytest.approx(0.4 + 0.04 + 0.015, rel=1e-4)


def test_every_price_is_plausible() -> None:
    for name, price in ((name, price) for table in model_table.PRICES.values() for name, price in table.items()):
        assert 0 < price.input <= price.output, name
        assert price.cache_read is None or 0 < price.cache_read < price.input, name
        assert price.cache_write is None or price.input < price.cache_write, name
