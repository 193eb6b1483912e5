"""What is known of a model is found by its name, however a provider spells it; of the rest, a careful guess."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model import model_table


@pytest.mark.parametrize(
    ("name", "window", "output"),
    [
        ("gpt-4o", 128_000, 16_384),
        ("openai/gpt-4o-mini", 128_000, 16_384),
        ("gpt-4", 8_192, None),
        ("gpt-4-0613", 8_192, None),
        ("gpt-4-1106-preview", 128_000, 4_096),
        ("gpt-4.1-nano", 1_047_576, 32_768),
        ("gpt-35-turbo", 16_385, 4_096),
        ("gpt-5-mini", 400_000, 128_000),
        ("gpt-5-chat-latest", 128_000, 16_384),
        ("o1-mini-2024-09-12", 128_000, 65_536),
        ("o3-mini", 200_000, 100_000),
        ("claude-3-haiku-20240307", 200_000, 4_096),
        ("claude-3-5-sonnet-20241022", 200_000, 8_192),
        ("anthropic/claude-3.5-sonnet", 200_000, 8_192),
        ("eu.anthropic.claude-3-5-sonnet-20240620-v1:0", 200_000, 8_192),
        ("claude-3-5-sonnet@20240620", 200_000, 8_192),
        ("openrouter/anthropic/claude-sonnet-4.5", 200_000, 64_000),
        ("claude-opus-4-1-20250805", 200_000, 32_000),
        ("claude-opus-4-5", 200_000, 64_000),
        ("models/gemini-1.5-flash", 1_048_576, 8_192),
        ("google/gemini-2.5-pro", 1_048_576, 65_535),
        ("llama3:8b", 8_192, None),
        ("llama3.1:8b", 131_072, None),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072, None),
        ("Meta-Llama-3-8B-Instruct", 8_192, None),
        ("qwen2.5-coder:7b", 32_768, None),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", 262_144, None),
        ("mixtral:8x7b", 32_768, None),
        ("mistral-nemo:latest", 131_072, None),
        ("deepseek-r1:8b", 131_072, None),
        ("deepseek-r1-distill-qwen-7b", 32_768, None),
        ("phi4:latest", 16_384, None),
    ],
)
def test_a_known_model_is_known_by_any_spelling(name: str, window: int, output: int | None) -> None:
    assert model_table.find_limits(name) == model_table.ModelLimits(window, output)


@pytest.mark.parametrize("name", ["", "///", "-", "nobody/knows-this", "marco-o1", "my-o3", "gpt", "llama", "ｇｐｔ"])
def test_an_unknown_model_gets_the_careful_guess(name: str) -> None:
    assert model_table.find_limits(name) == model_table.DEFAULT_LIMITS


def test_a_longer_beginning_goes_before_a_shorter_one() -> None:
    assert model_table.find_limits("gpt-4-32k") != model_table.find_limits("gpt-4")
    # The number of a snapshot is no version: 1106 does not begin with 4.1.
    assert model_table.find_limits("gpt-4-1106").window == 8_192


@pytest.mark.parametrize("name", sorted(model_table.LIMITS))
def test_every_entry_is_found_by_its_own_name_and_leaves_room_to_read(name: str) -> None:
    found = model_table.find_limits(name)
    assert found == model_table.LIMITS[name]
    assert found.max_output is None or found.max_output <= 0.6 * found.window


@given(st.text())
def test_for_any_name_something_is_known(name: str) -> None:
    assert model_table.find_limits(name).window >= 4_096
