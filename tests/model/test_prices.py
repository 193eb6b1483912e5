"""List prices are found only by a model's full name at its maker's own address."""

from __future__ import annotations

import pytest

from holdfast import types
from holdfast.model import base, model_table

OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com"
GOOGLE = "https://generativelanguage.googleapis.com/v1beta/openai"


@pytest.mark.parametrize(
    ("base_url", "model", "expected"),
    [
        (OPENAI, "gpt-4.1", (2, 8, 0.5)),
        (OPENAI, "gpt-4.1-2025-04-14", (2, 8, 0.5)),
        (OPENAI, "gpt-4o-2024-05-13", (5, 15, None)),
        (ANTHROPIC, "claude-sonnet-4-5-20250929", (3, 15, 0.3)),
        (GOOGLE, "models/gemini-2.5-flash", (0.3, 2.5, 0.03)),
        ("https://api.mistral.ai/v1", "mistral-large-latest", (0.5, 1.5, None)),
        ("https://api.deepseek.com", "deepseek-chat", (0.28, 0.42, 0.028)),
        ("https://api.x.ai/v1", "grok-3-mini", (0.3, 0.5, 0.075)),
        (OPENAI, "gpt-4.1-something-new", None),
        (OPENAI, "claude-sonnet-4-5", None),
        ("http://127.0.0.1:8000/v1", "gpt-4.1", None),
        ("https://openrouter.ai/api/v1", "openai/gpt-4.1", None),
        ("http://[broken", "gpt-4.1", None),
    ],
)
def test_price_is_found_only_at_the_makers_address(base_url: str, model: str, expected: object) -> None:
    found = model_table.find_price(base_url, model)
    assert (found and (found.input, found.output, found.cache_read)) == expected


def test_request_beyond_the_long_context_threshold_costs_more() -> None:
    price = base.Price(2.0, 10.0, 0.2, long=base.LongContext(200_000, 2.0, 1.5))
    assert price.of(types.Usage(200_000, 1_000, 100_000)) == pytest.approx(0.2 + 0.02 + 0.01)
    assert price.of(types.Usage(200_001, 1_000, 100_001)) == pytest.approx(0.4 + 0.04 + 0.015, rel=1e-4)


def test_every_price_is_plausible() -> None:
    for name, price in ((name, price) for table in model_table.PRICES.values() for name, price in table.items()):
        assert 0 < price.input <= price.output, name
        assert price.cache_read is None or 0 < price.cache_read < price.input, name
        assert price.cache_write is None or price.input < price.cache_write, name
