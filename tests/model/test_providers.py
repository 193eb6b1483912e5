"""`create` turns a string into a model: address, key, window and price are those of its provider."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import errors, model
from holdfast.model import base, providers, retry
from tests.support import replay_server

KEYS = {provider.key_env: "the-key" for provider in providers.PROVIDERS.values() if provider.key_env}
WHOLE = replay_server.Answer(
    [replay_server.events({"choices": [{"delta": {"content": "Hello"}, "finish_reason": "stop"}]}, "[DONE]")]
)


def create(name: str, **options: object) -> base.Model:
    return model.create(name, **{"environ": KEYS, **options})  # type: ignore[arg-type]


def unwrap(created: base.Model) -> base.Model:
    assert isinstance(created, retry.RetryingModel)
    return created.inner


@pytest.mark.parametrize("provider", sorted(providers.PROVIDERS))
def test_every_provider_creates_a_model_that_retries(provider: str) -> None:
    created = create(f"{provider}/a/b:c")
    assert created.name == f"{provider}/a/b:c"
    kind = model.AnthropicModel if provider == "anthropic" else model.OpenAIModel
    inner = unwrap(created)
    assert isinstance(inner, kind)
    assert inner.model == "a/b:c"
    assert create(f"{provider}/x", attempts=1).__class__ is kind


def test_window_and_price_come_from_the_tables() -> None:
    created = unwrap(create("openai/gpt-5"))
    assert isinstance(created, model.OpenAIModel)
    assert created.window == 400_000
    assert created._price == base.Price(1.25, 10, 0.125)
    assert create("openai/gpt-5", window=1_000).window == 1_000
    local = unwrap(create("ollama/llama3.2"))
    assert isinstance(local, model.OpenAIModel)
    assert local._price == providers.FREE
    claude = unwrap(create("anthropic/claude-sonnet-4-5"))
    assert isinstance(claude, model.AnthropicModel)
    assert claude._max_output == 64_000


@pytest.mark.parametrize("name", ["offline", "holdfast/offline"])
def test_offline_needs_no_key(name: str) -> None:
    assert create(name, environ={}).name == "holdfast/offline"


@pytest.mark.parametrize("name", ["", "gpt-5", "openai/", "/gpt-5", "nowhere/gpt-5"])
def test_unknown_model_string_is_refused_with_the_providers(name: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=r"provider/model.*anthropic, openai"):
        create(name)


@pytest.mark.parametrize("key", ["", "  "])
def test_missing_key_names_the_variable_to_set(key: str) -> None:
    with pytest.raises(errors.KeyRefused, match="Set ANTHROPIC_API_KEY"):
        create("anthropic/claude-sonnet-4-5", environ={"ANTHROPIC_API_KEY": key})
    with pytest.raises(errors.KeyRefused, match="Set OPENAI_API_KEY"):
        create("openai/gpt-5", environ={"ANTHROPIC_API_KEY": "k"})


def test_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    with pytest.raises(errors.KeyRefused, match="GROQ_API_KEY"):
        model.create("groq/llama-3.3-70b")
    monkeypatch.setenv("GROQ_API_KEY", "k")
    assert model.create("groq/llama-3.3-70b").window == 131_072


@pytest.mark.parametrize(
    ("name", "by_variable"), [("openai/m", True), ("openai/m", False), ("mine/m", False), ("ollama/m", False)]
)
def test_another_address_is_asked_without_a_key_or_with_the_given_one(name: str, by_variable: bool) -> None:
    async def run(key: str | None) -> tuple[str, dict[str, str]]:
        async with replay_server.Server(WHOLE) as one:
            address = {"environ": {"OPENAI_BASE_URL": one.url}} if by_variable else {"base_url": one.url, "environ": {}}
            created = model.create(name, key=key, **address)  # type: ignore[arg-type]
            deltas = [delta async for delta in created.stream(base.Request(messages=()))]
            await created.close()
            text = "".join(delta.text for delta in deltas if isinstance(delta, base.ContentDelta))
            return text, {header.lower(): value for header, value in one.asked[0].headers.items()}

    text, headers = asyncio.run(run(None))
    assert text == "Hello"
    assert "authorization" not in headers
    assert asyncio.run(run(" secret\n"))[1]["authorization"] == "Bearer secret"


def test_a_provider_of_the_caller_replaces_the_table() -> None:
    lab = providers.Provider("lab", "anthropic", "https://lab.example", "LAB_KEY")
    with pytest.raises(errors.KeyRefused, match="LAB_KEY"):
        create("lab/m", provider=lab)
    created = create("lab/m", provider=lab, key="k", attempts=1)
    assert isinstance(created, model.AnthropicModel)
    assert created.name == "lab/m"


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://openrouter.ai/api/v1/", "openrouter"),
        ("http://localhost:11434/v1", "ollama"),
        ("http://127.0.0.1:1234/v1", "lmstudio"),
        ("http://[::1]:8000", "vllm"),
        ("http://10.0.0.1:11434/v1", None),
        ("https://example.org/v1", None),
        ("http://127.0.0.1:9999/v1", None),
        ("https://example.org:11434/v1", None),
        ("https://[", None),
        ("", None),
    ],
)
def test_provider_is_found_by_address(base_url: str, name: str | None) -> None:
    found = providers.find_by_address(base_url)
    assert (found.name if found else None) == name
