"""`create` turns a string into a model: address, key, window and price are those of its provider."""

from __future__ import annotations

import pytest

from holdfast import errors, model
from holdfast.model import base, providers, retry
from tests.support.provider_calls import collect
from tests.support.replay_server import Answer, Server, events

KEYS = {provider.key_env: "the-key" for provider in providers.PROVIDERS.values() if provider.key_env}
WHOLE = Answer([events({"choices": [{"delta": {"content": "Hello"}, "finish_reason": "stop"}]}, "[DONE]")])


def create(name: str, **options: object) -> base.Model:
    return model.create(name, **{"environ": KEYS, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("provider", sorted(providers.PROVIDERS))
def test_every_provider_creates_a_model_that_retries(provider: str) -> None:
    created = create(f"{provider}/a/b:c")
    assert created.name == f"{provider}/a/b:c"
    assert isinstance(created, retry.RetryingModel)
    kind = model.AnthropicModel if provider == "anthropic" else model.OpenAIModel
    assert isinstance(created.inner, kind)
    assert created.inner.model == "a/b:c"
    assert create(f"{provider}/x", attempts=1).__class__ is kind


def test_window_price_and_output_limit_come_from_the_tables() -> None:
    created = create("openai/gpt-5", attempts=1)
    assert (created.window, created._price) == (400_000, base.Price(1.25, 10, 0.125))
    assert create("openai/gpt-5", window=1_000).window == 1_000
    local = create("ollama/llama3.2", attempts=1)
    assert local._price == providers.FREE
    claude = create("anthropic/claude-sonnet-4-5", attempts=1)
    assert claude._max_output == 64_000
    assert create("offline", environ={}).name == create("holdfast/offline", environ={}).name == "holdfast/offline"


@pytest.mark.parametrize("name", ["", "gpt-5", "openai/", "/gpt-5", "nowhere/gpt-5"])
def test_unknown_model_string_is_refused_with_the_providers(name: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=r"provider/model.*anthropic, openai"):
        create(name)


def test_missing_key_is_reported_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("", "  "):
        with pytest.raises(errors.KeyRefused, match="Set ANTHROPIC_API_KEY"):
            create("anthropic/claude-sonnet-4-5", environ={"ANTHROPIC_API_KEY": key})
    monkeypatch.delenv("GROQ_API_KEY", raising=False)
    with pytest.raises(errors.KeyRefused, match="GROQ_API_KEY"):
        model.create("groq/llama-3.3-70b")
    monkeypatch.setenv("GROQ_API_KEY", "k")
    assert model.create("groq/llama-3.3-70b").window == 131_072


@pytest.mark.parametrize(
    ("name", "by_variable"), [("openai/m", True), ("openai/m", False), ("mine/m", False), ("ollama/m", False)]
)
async def test_other_address_gets_only_the_given_key(name: str, by_variable: bool) -> None:
    async with Server(WHOLE) as server:
        address = (
            {"environ": {"OPENAI_BASE_URL": server.url}} if by_variable else {"base_url": server.url, "environ": {}}
        )
        for key in (None, " secret\n"):
            created = model.create(name, key=key, **address)  # type: ignore[arg-type]
            assert (await collect(created))[0].text == "Hello"
            await created.close()
    without, given = (request.headers for request in server.asked)
    assert "authorization" not in without
    assert given["authorization"] == "Bearer secret"


def test_provider_of_the_caller_replaces_the_table() -> None:
    lab = providers.Provider("lab", "anthropic", "https://lab.example", "LAB_KEY")
    with pytest.raises(errors.KeyRefused, match="LAB_KEY"):
        create("lab/m", provider=lab)
    created = create("lab/m", provider=lab, key="k", attempts=1)
    assert isinstance(created, model.AnthropicModel)
    assert created.name == "lab/m"


@pytest.mark.parametrize(
    ("base_url", "name"),
    [
        ("https://openrouter.ai/api/v1/", "openrouter"),
        ("http://127.0.0.1:1234/v1", "lmstudio"),
        ("https://example.org:11434/v1", None),
        ("https://[", None),
    ],
)
def test_provider_is_found_by_its_address(base_url: str, name: str | None) -> None:
    found = providers.find_by_address(base_url)
    assert (found.name if found else None) == name
