"""Published limits and list prices of models.

Limits are found by the family name of a model, wherever it is served. For a family, the table has the smallest values
of its members; values that a server reports or a user configures take precedence.

Prices are US dollars per million tokens, collected on PRICES_DATE. A price holds only at the maker's own address:
brokers and proxies set their own, and some report it with each reply. A model that is not listed by its full name has
no known price. `models."provider/model".price` in the settings overrides the table.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeVar
from urllib import parse

import msgspec

from holdfast.model import base

PRICES_DATE = "2026-08-08"


T = TypeVar("T")


def _by_name(rows: dict[str, T]) -> dict[str, T]:
    """Return a table with one entry per name. A key of `rows` holds the names that share a value."""
    return {name: value for names, value in rows.items() for name in names.split()}


class ModelLimits(msgspec.Struct, frozen=True):
    """The context window of a model in tokens, and its longest reply; None: limited by the window only."""

    window: int
    max_output: int | None = None


DEFAULT_LIMITS = ModelLimits(16_384)
"""For unknown models. A small value causes early compactions; a large one, refused requests."""

K = 1_024
LIMITS = _by_name(
    {
        "gpt-3.5-turbo gpt-35-turbo": ModelLimits(16_385, 4_096),
        "gpt-4": ModelLimits(8_192),
        "gpt-4-32k": ModelLimits(32_768),
        "gpt-4-turbo gpt-4-1106-preview gpt-4-0125-preview gpt-4o-2024-05-13 command-r": ModelLimits(128_000, 4_096),
        "gpt-4o chatgpt-4o gpt-4.5-preview gpt-5-chat": ModelLimits(128_000, 16_384),
        "gpt-4.1": ModelLimits(1_047_576, 32_768),
        "gpt-5": ModelLimits(400_000, 128_000),
        "gpt-oss llama-3.1 llama-3.2 llama-3.3 mistral-large-2 mistral-large-2407 mistral-large-2411": ModelLimits(
            128 * K
        ),
        "mistral-nemo ministral deepseek-coder-v2 deepseek-v3 deepseek-r1 deepseek-r1-distill-llama": ModelLimits(
            128 * K
        ),
        "grok-2 grok-3 kimi-k2 glm-4.5": ModelLimits(128 * K),
        "o1 o3 o4-mini": ModelLimits(200_000, 100_000),
        "o1-mini": ModelLimits(128_000, 65_536),
        "o1-preview": ModelLimits(128_000, 32_768),
        "claude": ModelLimits(100_000, 4_096),
        "claude-2.1 claude-3": ModelLimits(200_000, 4_096),
        "claude-3-5": ModelLimits(200_000, 8_192),
        "claude-3-7 claude-sonnet claude-haiku claude-opus-4-5": ModelLimits(200_000, 64_000),
        "claude-opus": ModelLimits(200_000, 32_000),
        "gemini": ModelLimits(32_768, 8_192),
        "gemini-1.5 gemini-2.0-flash": ModelLimits(K * K, 8_192),
        "gemini-2.5-pro gemini-2.5-flash": ModelLimits(K * K, 65_535),
        "gemma llama-3 qwen mistral mistral-7b smollm2": ModelLimits(8 * K),
        "gemma-3 qwen-2 qwen-2.5 qwen-3 qwq mistral-small mistral-large mixtral codestral": ModelLimits(32 * K),
        "deepseek-r1-distill-qwen": ModelLimits(32 * K),
        "llama-2 phi-3": ModelLimits(4 * K),
        "llama-4": ModelLimits(K * K),
        "qwen-3-coder": ModelLimits(256 * K),
        "mixtral-8x22b": ModelLimits(64 * K),
        "deepseek-coder phi-4": ModelLimits(16 * K),
        "deepseek-chat deepseek-reasoner": ModelLimits(64 * K, 8_192),
        "grok-4": ModelLimits(256_000),
    }
)


def _normalize(name: str) -> str:
    """Normalize the spelling of a name, so that `llama3.1:8b` and `Llama-3.1-8B` begin alike."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return re.sub(r"(?:^|(?<=-))([a-z]{3,}?)(?=\d)", r"\1-", plain)


_FAMILIES = {_normalize(name): known for name, known in LIMITS.items()}
_STARTS = {name.partition("-")[0] for name in _FAMILIES}
# Too short to be searched for inside a name.
_AT_START_ONLY = {"o1", "o3", "o4"}


@lru_cache(maxsize=256)
def find_limits(name: str) -> ModelLimits:
    """Return the limits of the longest known family name that the model's name begins with, else DEFAULT_LIMITS.

    Names of providers may precede it, as in `openrouter/anthropic/claude-…` or `eu.anthropic.claude-…`.
    """
    words = _normalize(name[:200].rstrip("/").rpartition("/")[2]).split("-")
    for place, word in enumerate(words):
        if word in _STARTS and (place == 0 or word not in _AT_START_ONLY):
            prefixes = ("-".join(words[place:end]) for end in range(len(words), place, -1))
            family = next((prefix for prefix in prefixes if prefix in _FAMILIES), None)
            if family is not None:
                return _FAMILIES[family]
    return DEFAULT_LIMITS


# --- prices ----------------------------------------------------------------------------------------

# A dated snapshot has the price of its model, unless it is listed.
_SNAPSHOT = re.compile(r"-(?:20\d\d-\d\d-\d\d|20\d{6})$")
Price = base.Price


def _long(
    above: int, factor: float, input: float, output: float, cache_read: float | None = None, write: float | None = None
) -> base.Price:
    """Return a price for which requests above `above` tokens cost twice for input and `factor` times for output."""
    return base.Price(input, output, cache_read, write, base.LongContext(above, 2.0, factor))


_OPENAI = _by_name(
    {
        "gpt-5.6 gpt-5.6-sol": _long(272_000, 1.5, 5, 30, 0.5, 6.25),
        "gpt-5.6-terra": _long(272_000, 1.5, 2, 12, 0.2, 2.5),
        "gpt-5.6-luna": _long(272_000, 1.5, 0.2, 1.2, 0.02, 0.25),
        "gpt-5.5": _long(272_000, 1.5, 5, 30, 0.5),
        "gpt-5.4": _long(272_000, 1.5, 2.5, 15, 0.25),
        "gpt-5.4-mini": Price(0.75, 4.5, 0.075),
        "gpt-5.4-nano": Price(0.2, 1.25, 0.02),
        "gpt-5.3-codex gpt-5.3-chat-latest gpt-5.2 gpt-5.2-codex gpt-5.2-chat-latest": Price(1.75, 14, 0.175),
        "gpt-5.1 gpt-5.1-codex gpt-5.1-codex-max gpt-5.1-chat-latest gpt-5 gpt-5-codex": Price(1.25, 10, 0.125),
        "gpt-5-chat-latest": Price(1.25, 10, 0.125),
        "gpt-5.1-codex-mini gpt-5-mini": Price(0.25, 2, 0.025),
        "gpt-5-nano": Price(0.05, 0.4, 0.005),
        "gpt-4.1 o3": Price(2, 8, 0.5),
        "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
        "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
        "gpt-4o": Price(2.5, 10, 1.25),
        "gpt-4o-2024-05-13 chatgpt-4o-latest": Price(5, 15),
        "gpt-4o-mini": Price(0.15, 0.6, 0.075),
        "gpt-4-turbo": Price(10, 30),
        "gpt-4": Price(30, 60),
        "gpt-3.5-turbo": Price(0.5, 1.5),
        "o4-mini": Price(1.1, 4.4, 0.275),
        "o3-mini": Price(1.1, 4.4, 0.55),
        "o1": Price(15, 60, 7.5),
    }
)

_ANTHROPIC = _by_name(
    {
        "claude-fable-5": Price(10, 50, 1, 12.5),
        "claude-opus-5 claude-opus-4-8 claude-opus-4-7 claude-opus-4-6 claude-opus-4-5": Price(5, 25, 0.5, 6.25),
        "claude-opus-4-1 claude-opus-4 claude-3-opus": Price(15, 75, 1.5, 18.75),
        "claude-sonnet-5": Price(2, 10, 0.2, 2.5),
        "claude-sonnet-4-6 claude-3-7-sonnet": Price(3, 15, 0.3, 3.75),
        "claude-sonnet-4-5 claude-sonnet-4": _long(200_000, 1.5, 3, 15, 0.3, 3.75),
        "claude-haiku-4-5": Price(1, 5, 0.1, 1.25),
        "claude-3-haiku": Price(0.25, 1.25, 0.03, 0.3),
    }
)

_GOOGLE = _by_name(
    {
        "gemini-3.6-flash": Price(1.5, 7.5, 0.15),
        "gemini-3.5-flash": Price(1.5, 9, 0.15),
        "gemini-3.5-flash-lite gemini-2.5-flash": Price(0.3, 2.5, 0.03),
        "gemini-3.1-pro-preview gemini-3-pro-preview": _long(200_000, 1.5, 2, 12, 0.2),
        "gemini-3.1-flash-lite": Price(0.25, 1.5, 0.025),
        "gemini-3-flash-preview": Price(0.5, 3, 0.05),
        "gemini-2.5-pro": _long(200_000, 1.5, 1.25, 10, 0.125),
        "gemini-2.5-flash-lite": Price(0.1, 0.4, 0.01),
        "gemini-2.0-flash": Price(0.1, 0.4, 0.025),
        "gemini-2.0-flash-lite": Price(0.075, 0.3, 0.01875),
    }
)

_MISTRAL = _by_name(
    {
        "mistral-large-latest mistral-large-2512 magistral-small-latest": Price(0.5, 1.5),
        "mistral-large-2411": Price(2, 6),
        "mistral-medium-latest mistral-medium-2604": Price(1.5, 7.5),
        "mistral-medium-2508 mistral-medium-2505 devstral-latest devstral-2512 devstral-medium-latest": Price(0.4, 2),
        "magistral-medium-latest magistral-medium-2509": Price(2, 5),
        "codestral-2508": Price(0.3, 0.9),
        "ministral-8b-latest ministral-8b-2512": Price(0.15, 0.15),
    }
)

_DEEPSEEK = _by_name(
    {
        "deepseek-v4-pro": Price(0.435, 0.87, 0.00363),
        "deepseek-v4-flash": Price(0.14, 0.28, 0.0028),
        "deepseek-chat deepseek-reasoner": Price(0.28, 0.42, 0.028),
    }
)

_XAI = _by_name(
    {
        "grok-4.5": _long(200_000, 2.0, 2, 6, 0.5),
        "grok-4.3": _long(200_000, 2.0, 1.25, 2.5, 0.2),
        "grok-4-1-fast-reasoning grok-4-1-fast-non-reasoning grok-4-fast-reasoning": _long(
            128_000, 2.0, 0.2, 0.5, 0.05
        ),
        "grok-4-fast-non-reasoning": _long(128_000, 2.0, 0.2, 0.5, 0.05),
        "grok-4 grok-4-0709": _long(128_000, 2.0, 3, 15),
        "grok-code-fast-1": Price(0.2, 1.5, 0.02),
        "grok-3": Price(3, 15, 0.75),
        "grok-3-mini": Price(0.3, 0.5, 0.075),
    }
)

PRICES = {
    "api.openai.com": _OPENAI,
    "api.anthropic.com": _ANTHROPIC,
    "generativelanguage.googleapis.com": _GOOGLE,
    "api.mistral.ai": _MISTRAL,
    "api.deepseek.com": _DEEPSEEK,
    "api.x.ai": _XAI,
}


def find_price(base_url: str, model: str) -> base.Price | None:
    """Return the list price of a model at its maker's own address; None if it is unknown."""
    prices = PRICES.get(host_of(base_url), {})
    name = model.removeprefix("models/")
    return prices.get(name) or prices.get(_SNAPSHOT.sub("", name))


def reports_cost(base_url: str) -> bool:
    """Whether the provider at this address reports the cost with every reply, so that no price is needed."""
    return host_of(base_url) == "openrouter.ai"


def host_of(base_url: str) -> str:
    """Return the host of an address; empty if it has none."""
    try:
        return parse.urlsplit(base_url).hostname or ""
    except ValueError:
        return ""
