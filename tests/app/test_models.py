"""The model of each conversation: listing, sharing, prices and closing."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from holdfast import config, errors, events
from holdfast.app import compose, models
from holdfast.model import ScriptedModel, base, local_servers, providers


@pytest.fixture
def settings(settings: config.Settings) -> config.Settings:
    return msgspec.structs.replace(settings, providers=providers.PROVIDERS, model=None)


KEY = config.Secret("k")


def replaced(settings: config.Settings, **changes: Any) -> config.Settings:
    return msgspec.structs.replace(settings, **changes)


class ClosingModel(ScriptedModel):
    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_models_with_a_key_or_named_in_settings_are_listed(settings: config.Settings) -> None:
    given = replaced(
        settings,
        model="anthropic/claude-opus-4-5",
        fallback=("openai/gpt-5", "offline", "nobody/nothing"),
        models={"anthropic/claude-haiku-4-5": config.ModelSection()},
        keys={"anthropic": KEY},
    )
    offered = await models.ConversationModels(given, ScriptedModel([], name="anthropic/claude-opus-4-5")).listed()
    own = [name for name in offered if name.partition("/")[0] in ("anthropic", "openai", "nobody", "holdfast")]
    # openai has no key, and `nobody` is no provider.
    assert own == [
        "anthropic/claude-opus-4-5",
        "anthropic/claude-haiku-4-5",
        f"anthropic/{models.DEFAULT_MODELS['anthropic']}",
        providers.OFFLINE_NAME,
    ]


async def test_models_are_shared_and_closed_once(settings: config.Settings) -> None:
    usual = ClosingModel([], name="usual/one")
    chosen = models.ConversationModels(replaced(settings, keys={"openai": KEY}), usual)
    one = await chosen.choose("a", "openai/gpt-5")
    assert await chosen.choose("b", "openai/gpt-5") is one
    assert [chosen.of(name) for name in ("a", "b", "c")] == [one, one, usual]
    assert await chosen.choose("a", "usual/one") is usual
    for name in ("nonsense", "nobody/model", "anthropic/x", "openai/", "/x"):
        with pytest.raises(errors.SettingInvalid):
            await chosen.choose("b", name)
    assert chosen.of("b") is one
    chosen.follow("branch", "b")
    chosen.follow("other", "c")
    assert (chosen.of("branch"), chosen.of("other")) == (one, usual)
    for name in ("offline", providers.OFFLINE_NAME):
        assert models.is_offline(await chosen.choose("a", name))
    await chosen.close()
    assert usual.closed == 1


@pytest.fixture
def local_server(monkeypatch: pytest.MonkeyPatch) -> list[local_servers.RunningServer]:
    """The local servers that are found."""
    found = list[local_servers.RunningServer]()

    async def find() -> list[local_servers.RunningServer]:
        return found

    monkeypatch.setattr(local_servers, "find", find)
    return found


def ollama(model: str, uid: int, url: str = "http://127.0.0.1:11434/v1") -> local_servers.RunningServer:
    return local_servers.RunningServer("ollama", url, (model,), uids=frozenset({uid}))


@pytest.mark.parametrize(("served", "named"), [("llama3.2", "ollama/llama3.2"), ("x; rm -rf ~\x1b[2J", "ollama/MODEL")])
async def test_local_server_of_another_user_is_not_used(
    settings: config.Settings, local_server: list[local_servers.RunningServer], served: str, named: str
) -> None:
    other = os.getuid() + 1
    local_server.append(ollama(served, other))
    chosen = await models.choose(settings)
    assert models.is_offline(chosen.model)
    assert f"(uid {other}), so it is not used" in (chosen.notice or "")
    assert f'set HOLDFAST_MODEL={named} or, in config.toml, model = "{named}".' in (chosen.notice or "")
    offered = await models.ConversationModels(settings, ScriptedModel([], name="a/b")).listed()
    assert not any(name.startswith("ollama/") for name in offered)
    local_server[0] = ollama(served, os.getuid())
    assert (await models.choose(settings)).model.name == f"ollama/{served}"


@pytest.mark.usefixtures("local_server")
async def test_offline_model_is_used_when_nothing_else_is_available(settings: config.Settings) -> None:
    chosen = await models.choose(replaced(settings, keys={"google": KEY}))
    assert models.is_offline(chosen.model)
    assert (chosen.notice or "").startswith("GEMINI_API_KEY is set, but no model is chosen.")
    assert (await models.choose(settings)).notice == models.ADVICE
    for name in ("offline", "holdfast/offline"):
        assert models.is_offline((await models.choose(replaced(settings, model=name))).model)
    other = replaced(settings, keys={"openai": KEY}, fallback=("offline",))
    assert not models.is_offline((await models.choose(other, "openai/some")).model)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("anthropic/claude-sonnet-4-5", True),
        ("openrouter/openrouter/auto", True),  # It reports what it charged.
        ("ollama/llama3.2", True),
        ("offline", True),
        ("lab/priced", True),
        ("lab/other", False),
        ("openai/gpt-unknown", False),
    ],
)
@pytest.mark.parametrize("is_fallback", [False, True])
async def test_cost_limit_needs_a_price(settings: config.Settings, name: str, allowed: bool, is_fallback: bool) -> None:
    limited = replaced(
        settings,
        providers={**providers.PROVIDERS, "lab": providers.Provider("lab", "openai", "http://127.0.0.1:9/v1")},
        keys=dict.fromkeys(providers.PROVIDERS, KEY),
        models={"lab/priced": config.ModelSection(price=base.Price(1, 2))},
        limits=config.LimitsSection(cost=1.0),
        fallback=(name,) if is_fallback else (),
    )
    choosing = models.choose(limited, "offline" if is_fallback else name)
    if allowed:
        await (await choosing).model.close()
    else:
        with pytest.raises(errors.SettingInvalid, match=r"The price of .+ is not known"):
            await choosing


async def test_program_uses_the_chosen_model_with_its_own_meter(settings: config.Settings) -> None:
    given = replaced(settings, model="offline", keys={"openai": KEY})
    async with compose.start(given) as app:
        first = await app.runtime.agents.get("talk")
        await app.runtime.send("talk", events.Command("/model openai/gpt-5"))
        second = await app.runtime.agents.get("talk")
        assert (first.model.name, second.model.name) == (providers.OFFLINE_NAME, "openai/gpt-5")
        assert second.meter is not first.meter
        assert (await app.runtime.agents.get("other")).meter is first.meter
        assert second.memory is not first.memory
        await app.runtime.send("talk", events.Command("/model offline"))
        assert (await app.runtime.submit("talk", events.Submit("Hello"))).completed
