"""List prices of common models, for estimates of what a conversation cost and for cost limits.

US dollars per million tokens, as the makers published them for their own APIs, collected on the day in `DATED`. A price
holds only at the maker's own address: brokers and proxies set their own, and some report it. A model that is not listed
here by its full name has no known price. `models."provider/model".price` in the settings overrides this table.
"""

from __future__ import annotations

import re
from urllib import parse

from holdfast.model import base

DATED = "2026-08-08"

# Brokers that report with every reply what they charged for it.
_REPORTING = frozenset({"openrouter.ai"})

# A dated snapshot costs what its model does, unless it has a row of its own.
_SNAPSHOT = re.compile(r"-(?:20\d\d-\d\d-\d\d|20\d{6})$")
Price = base.Price


def _long(
    above: int, factor: float, input: float, output: float, cache_read: float | None = None, write: float | None = None
) -> base.Price:
    """In requests of more than `above` tokens, input costs twice as much and output `factor` times as much."""
    return base.Price(input, output, cache_read, write, base.LongContext(above, 2.0, factor))


_OPENAI = {
    "gpt-5.6": _long(272_000, 1.5, 5, 30, 0.5, 6.25),
    "gpt-5.6-sol": _long(272_000, 1.5, 5, 30, 0.5, 6.25),
    "gpt-5.6-terra": _long(272_000, 1.5, 2, 12, 0.2, 2.5),
    "gpt-5.6-luna": _long(272_000, 1.5, 0.2, 1.2, 0.02, 0.25),
    "gpt-5.5": _long(272_000, 1.5, 5, 30, 0.5),
    "gpt-5.4": _long(272_000, 1.5, 2.5, 15, 0.25),
    "gpt-5.4-mini": Price(0.75, 4.5, 0.075),
    "gpt-5.4-nano": Price(0.2, 1.25, 0.02),
    "gpt-5.3-codex": Price(1.75, 14, 0.175),
    "gpt-5.3-chat-latest": Price(1.75, 14, 0.175),
    "gpt-5.2": Price(1.75, 14, 0.175),
    "gpt-5.2-codex": Price(1.75, 14, 0.175),
    "gpt-5.2-chat-latest": Price(1.75, 14, 0.175),
    "gpt-5.1": Price(1.25, 10, 0.125),
    "gpt-5.1-codex": Price(1.25, 10, 0.125),
    "gpt-5.1-codex-max": Price(1.25, 10, 0.125),
    "gpt-5.1-codex-mini": Price(0.25, 2, 0.025),
    "gpt-5.1-chat-latest": Price(1.25, 10, 0.125),
    "gpt-5": Price(1.25, 10, 0.125),
    "gpt-5-codex": Price(1.25, 10, 0.125),
    "gpt-5-chat-latest": Price(1.25, 10, 0.125),
    "gpt-5-mini": Price(0.25, 2, 0.025),
    "gpt-5-nano": Price(0.05, 0.4, 0.005),
    "gpt-4.1": Price(2, 8, 0.5),
    "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
    "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
    "gpt-4o": Price(2.5, 10, 1.25),
    "gpt-4o-2024-05-13": Price(5, 15),
    "gpt-4o-mini": Price(0.15, 0.6, 0.075),
    "chatgpt-4o-latest": Price(5, 15),
    "gpt-4-turbo": Price(10, 30),
    "gpt-4": Price(30, 60),
    "gpt-3.5-turbo": Price(0.5, 1.5),
    "o4-mini": Price(1.1, 4.4, 0.275),
    "o3": Price(2, 8, 0.5),
    "o3-mini": Price(1.1, 4.4, 0.55),
    "o1": Price(15, 60, 7.5),
}

_ANTHROPIC = {
    "claude-fable-5": Price(10, 50, 1, 12.5),
    "claude-opus-5": Price(5, 25, 0.5, 6.25),
    "claude-opus-4-8": Price(5, 25, 0.5, 6.25),
    "claude-opus-4-7": Price(5, 25, 0.5, 6.25),
    "claude-opus-4-6": Price(5, 25, 0.5, 6.25),
    "claude-opus-4-5": Price(5, 25, 0.5, 6.25),
    "claude-opus-4-1": Price(15, 75, 1.5, 18.75),
    "claude-opus-4": Price(15, 75, 1.5, 18.75),
    "claude-sonnet-5": Price(2, 10, 0.2, 2.5),
    "claude-sonnet-4-6": Price(3, 15, 0.3, 3.75),
    "claude-sonnet-4-5": _long(200_000, 1.5, 3, 15, 0.3, 3.75),
    "claude-sonnet-4": _long(200_000, 1.5, 3, 15, 0.3, 3.75),
    "claude-haiku-4-5": Price(1, 5, 0.1, 1.25),
    "claude-3-7-sonnet": Price(3, 15, 0.3, 3.75),
    "claude-3-opus": Price(15, 75, 1.5, 18.75),
    "claude-3-haiku": Price(0.25, 1.25, 0.03, 0.3),
}

_GOOGLE = {
    "gemini-3.6-flash": Price(1.5, 7.5, 0.15),
    "gemini-3.5-flash": Price(1.5, 9, 0.15),
    "gemini-3.5-flash-lite": Price(0.3, 2.5, 0.03),
    "gemini-3.1-pro-preview": _long(200_000, 1.5, 2, 12, 0.2),
    "gemini-3.1-flash-lite": Price(0.25, 1.5, 0.025),
    "gemini-3-pro-preview": _long(200_000, 1.5, 2, 12, 0.2),
    "gemini-3-flash-preview": Price(0.5, 3, 0.05),
    "gemini-2.5-pro": _long(200_000, 1.5, 1.25, 10, 0.125),
    "gemini-2.5-flash": Price(0.3, 2.5, 0.03),
    "gemini-2.5-flash-lite": Price(0.1, 0.4, 0.01),
    "gemini-2.0-flash": Price(0.1, 0.4, 0.025),
    "gemini-2.0-flash-lite": Price(0.075, 0.3, 0.01875),
}

_MISTRAL = {
    "mistral-large-latest": Price(0.5, 1.5),
    "mistral-large-2512": Price(0.5, 1.5),
    "mistral-large-2411": Price(2, 6),
    "mistral-medium-latest": Price(1.5, 7.5),
    "mistral-medium-2604": Price(1.5, 7.5),
    "mistral-medium-2508": Price(0.4, 2),
    "mistral-medium-2505": Price(0.4, 2),
    "magistral-medium-latest": Price(2, 5),
    "magistral-medium-2509": Price(2, 5),
    "magistral-small-latest": Price(0.5, 1.5),
    "devstral-latest": Price(0.4, 2),
    "devstral-2512": Price(0.4, 2),
    "devstral-medium-latest": Price(0.4, 2),
    "codestral-2508": Price(0.3, 0.9),
    "ministral-8b-latest": Price(0.15, 0.15),
    "ministral-8b-2512": Price(0.15, 0.15),
}

_DEEPSEEK = {
    "deepseek-v4-pro": Price(0.435, 0.87, 0.00363),
    "deepseek-v4-flash": Price(0.14, 0.28, 0.0028),
    "deepseek-chat": Price(0.28, 0.42, 0.028),
    "deepseek-reasoner": Price(0.28, 0.42, 0.028),
}

_XAI = {
    "grok-4.5": _long(200_000, 2.0, 2, 6, 0.5),
    "grok-4.3": _long(200_000, 2.0, 1.25, 2.5, 0.2),
    "grok-4-1-fast-reasoning": _long(128_000, 2.0, 0.2, 0.5, 0.05),
    "grok-4-1-fast-non-reasoning": _long(128_000, 2.0, 0.2, 0.5, 0.05),
    "grok-4-fast-reasoning": _long(128_000, 2.0, 0.2, 0.5, 0.05),
    "grok-4-fast-non-reasoning": _long(128_000, 2.0, 0.2, 0.5, 0.05),
    "grok-4": _long(128_000, 2.0, 3, 15),
    "grok-4-0709": _long(128_000, 2.0, 3, 15),
    "grok-code-fast-1": Price(0.2, 1.5, 0.02),
    "grok-3": Price(3, 15, 0.75),
    "grok-3-mini": Price(0.3, 0.5, 0.075),
}

TABLE = {
    "api.openai.com": _OPENAI,
    "api.anthropic.com": _ANTHROPIC,
    "generativelanguage.googleapis.com": _GOOGLE,
    "api.mistral.ai": _MISTRAL,
    "api.deepseek.com": _DEEPSEEK,
    "api.x.ai": _XAI,
}


def find(base_url: str, model: str) -> base.Price | None:
    """Return the list price of a model at its maker's own address; None if it is not known."""
    prices = TABLE.get(_host(base_url), {})
    name = model.removeprefix("models/")
    return prices.get(name) or prices.get(_SNAPSHOT.sub("", name))


def is_reported(base_url: str) -> bool:
    """Whether the provider at this address reports what it charged, so that no price has to be known."""
    return _host(base_url) in _REPORTING


def _host(base_url: str) -> str:
    try:
        return parse.urlsplit(base_url).hostname or ""
    except ValueError:
        return ""
