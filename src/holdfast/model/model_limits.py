"""What is known of models by their names: how much they read, and how much they may write.

Only what their makers published, and of a family the least of its members. A server may be set up for less
than its model could do: what a server itself reports, and what a person configured, both go before this.
Prices are in prices.py: they change, and depend on who is paid.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec


class Known(msgspec.Struct, frozen=True):
    """The window of a model in tokens, reply included, and the longest reply; None: as far as the window goes."""

    window: int
    max_output: int | None = None


# For a name nobody knows. Too little costs a compaction too early; too much, a request refused and made again.
DEFAULT = Known(16_384)

K = 1_024
_TABLE = {
    "gpt-3.5-turbo": Known(16_385, 4_096),
    "gpt-35-turbo": Known(16_385, 4_096),
    "gpt-4": Known(8_192),
    "gpt-4-32k": Known(32_768),
    "gpt-4-turbo": Known(128_000, 4_096),
    "gpt-4-1106-preview": Known(128_000, 4_096),
    "gpt-4-0125-preview": Known(128_000, 4_096),
    "gpt-4o": Known(128_000, 16_384),
    "gpt-4o-2024-05-13": Known(128_000, 4_096),
    "chatgpt-4o": Known(128_000, 16_384),
    "gpt-4.1": Known(1_047_576, 32_768),
    "gpt-4.5-preview": Known(128_000, 16_384),
    "gpt-5": Known(400_000, 128_000),
    "gpt-5-chat": Known(128_000, 16_384),
    "gpt-oss": Known(128 * K),
    "o1": Known(200_000, 100_000),
    "o1-mini": Known(128_000, 65_536),
    "o1-preview": Known(128_000, 32_768),
    "o3": Known(200_000, 100_000),
    "o4-mini": Known(200_000, 100_000),
    "claude": Known(100_000, 4_096),
    "claude-2.1": Known(200_000, 4_096),
    "claude-3": Known(200_000, 4_096),
    "claude-3-5": Known(200_000, 8_192),
    "claude-3-7": Known(200_000, 64_000),
    "claude-sonnet": Known(200_000, 64_000),
    "claude-haiku": Known(200_000, 64_000),
    "claude-opus": Known(200_000, 32_000),
    "claude-opus-4-5": Known(200_000, 64_000),
    "gemini": Known(32_768, 8_192),
    "gemini-1.5": Known(K * K, 8_192),
    "gemini-2.0-flash": Known(K * K, 8_192),
    "gemini-2.5-pro": Known(K * K, 65_535),
    "gemini-2.5-flash": Known(K * K, 65_535),
    "gemma": Known(8 * K),
    "gemma-3": Known(32 * K),
    "llama-2": Known(4 * K),
    "llama-3": Known(8 * K),
    "llama-3.1": Known(128 * K),
    "llama-3.2": Known(128 * K),
    "llama-3.3": Known(128 * K),
    "llama-4": Known(K * K),
    "qwen": Known(8 * K),
    "qwen-2": Known(32 * K),
    "qwen-2.5": Known(32 * K),
    "qwen-3": Known(32 * K),
    "qwen-3-coder": Known(256 * K),
    "qwq": Known(32 * K),
    "mistral": Known(8 * K),
    "mistral-7b": Known(8 * K),
    "mistral-small": Known(32 * K),
    "mistral-large": Known(32 * K),
    "mistral-large-2": Known(128 * K),
    "mistral-large-2407": Known(128 * K),
    "mistral-large-2411": Known(128 * K),
    "mistral-nemo": Known(128 * K),
    "ministral": Known(128 * K),
    "mixtral": Known(32 * K),
    "mixtral-8x22b": Known(64 * K),
    "codestral": Known(32 * K),
    "deepseek-coder": Known(16 * K),
    "deepseek-coder-v2": Known(128 * K),
    "deepseek-chat": Known(64 * K, 8_192),
    "deepseek-reasoner": Known(64 * K, 8_192),
    "deepseek-v3": Known(128 * K),
    "deepseek-r1": Known(128 * K),
    "deepseek-r1-distill-llama": Known(128 * K),
    "deepseek-r1-distill-qwen": Known(32 * K),
    "command-r": Known(128_000, 4_096),
    "grok-2": Known(128 * K),
    "grok-3": Known(128 * K),
    "grok-4": Known(256_000),
    "kimi-k2": Known(128 * K),
    "glm-4.5": Known(128 * K),
    "phi-3": Known(4 * K),
    "phi-4": Known(16 * K),
    "smollm2": Known(8 * K),
}


def _spelled(name: str) -> str:
    """One spelling for a name: llama3.1:8b and Meta-Llama-3.1-8B begin alike once they are spelled so."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return re.sub(r"(?:^|(?<=-))([a-z]{3,}?)(?=\d)", r"\1-", plain)


_FAMILIES = {_spelled(name): known for name, known in _TABLE.items()}
_STARTS = {name.partition("-")[0] for name in _FAMILIES}
# Too short to be looked for inside of a name.
_WHOLE_ONLY = {"o1", "o3", "o4"}


@lru_cache(maxsize=256)
def of(name: str) -> Known:
    """What is known of a model, by the longest beginning of its name that is known; else a careful guess.

    Who serves it may stand before the name, as in `openrouter/anthropic/claude-…` or `eu.anthropic.claude-…`.
    """
    words = _spelled(name[:200].rstrip("/").rpartition("/")[2]).split("-")
    for place, word in enumerate(words):
        if word in _STARTS and (place == 0 or word not in _WHOLE_ONLY):
            known = _longest(words[place:])
            if known is not None:
                return known
    return DEFAULT


def _longest(words: list[str]) -> Known | None:
    found = ("-".join(words[:length]) for length in range(len(words), 0, -1))
    return next((_FAMILIES[name] for name in found if name in _FAMILIES), None)
