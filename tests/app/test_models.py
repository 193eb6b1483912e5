"""Which model answers which conversation: what can be had is told, what was made once is shared, and all are closed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import config, errors, events
from holdfast.app import compose, models
from holdfast.model import ScriptedModel, base, local_servers, providers
from tests.app.test_running import settings as plain
from tests.support import provider_process


def settings(home: Path, **more: Any) -> config.Settings:
    given = {"providers": providers.PROVIDERS, "model": None, **more}
    return msgspec.structs.replace(plain(home), **given)


class Closing(ScriptedModel):
    closed = 0

    async def close(self) -> None:
        self.closed += 1


async def test_what_can_be_had_is_what_a_key_is_there_for_or_settings_name(tmp_path: Path) -> None:
    given = settings(
        tmp_path,
        model="anthropic/claude-opus-4-5",
        fallback=("openai/gpt-5", "offline", "nobody/nothing"),
        models={"anthropic/claude-haiku-4-5": config.ModelSection()},
        keys={"anthropic": config.Secret("k")},
    )
    offered = await models.ConversationModels(given, ScriptedModel([], name="anthropic/claude-opus-4-5")).listed()
    own = [name for name in offered if name.partition("/")[0] in ("anthropic", "openai", "nobody", "holdfast")]
    # No key is there for openai, and nobody is no provider.
    assert own == [
        "anthropic/claude-opus-4-5",
        "anthropic/claude-haiku-4-5",
        f"anthropic/{models.DEFAULT_MODELS['anthropic']}",
        providers.OFFLINE_NAME,
    ]


async def test_a_model_is_made_once_and_all_are_closed_once(tmp_path: Path) -> None:
    usual = Closing([], name="usual/one")
    shelf = models.ConversationModels(settings(tmp_path, keys={"openai": config.Secret("k")}), usual)
    one = await shelf.choose("a", "openai/gpt-5")
    assert await shelf.choose("b", "openai/gpt-5") is one
    assert [shelf.of(name) for name in ("a", "b", "c")] == [one, one, usual]
    assert await shelf.choose("a", "usual/one") is usual
    shelf.follow("branch", "b")
    shelf.follow("other", "c")
    assert (shelf.of("branch"), shelf.of("other")) == (one, usual)
    for name in ("offline", providers.OFFLINE_NAME):
        assert models.is_offline(await shelf.choose("a", name))
    await shelf.close()
    assert usual.closed == 1


@pytest.mark.parametrize(("served", "named"), [("llama3.2", "ollama/llama3.2"), ("x; rm -rf ~\x1b[2J", "ollama/MODEL")])
def test_local_server_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: str, named: str
) -> None:
    async def find() -> list[local_servers.RunningServer]:
        url = "http://127.0.0.1:11434/v1"
        return [local_servers.RunningServer("ollama", url, (served,), uids=frozenset(uids))]

    monkeypatch.setattr(local_servers, "find", find)
    uids = {os.getuid() + 1}
    chosen = asyncio.run(models.choose(settings(tmp_path)))
    assert models.is_offline(chosen.model)
    assert f"(uid {os.getuid() + 1}), so it is not used" in (chosen.notice or "")
    assert f'set HOLDFAST_MODEL={named} or, in config.toml, model = "{named}".' in (chosen.notice or "")
    offered = models.ConversationModels(settings(tmp_path), ScriptedModel([], name="a/b")).listed()
    assert not any(name.startswith("ollama/") for name in asyncio.run(offered))
    uids = {os.getuid()}
    assert asyncio.run(models.choose(settings(tmp_path))).model.name == f"ollama/{served}"


def test_key_of_a_provider_without_a_default_model_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def find() -> list[local_servers.RunningServer]:
        return []

    monkeypatch.setattr(local_servers, "find", find)
    chosen = asyncio.run(models.choose(settings(tmp_path, keys={"google": config.Secret("k")})))
    assert models.is_offline(chosen.model)
    assert (chosen.notice or "").startswith("GEMINI_API_KEY is set, but no model is chosen.")
    assert asyncio.run(models.choose(settings(tmp_path))).notice == models.ADVICE


@pytest.mark.parametrize("named", [None, "ollama/llama3.2"])
def test_local_server_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str | None) -> None:
    """A cost limit ends a turn whose reply has no known cost."""
    with provider_process.playing(provider_process.called("list_files", "{}", tokens=10)) as played:

        async def find() -> list[local_servers.RunningServer]:
            return [
                local_servers.RunningServer("ollama", f"{played.url}/v1", ("llama3.2",), uids=frozenset({os.getuid()}))
            ]

        async def costs() -> list[float | None]:
            chosen = await models.choose(
                settings(tmp_path, limits=config.LimitsSection(cost=1.0), providers=known), named
            )
            deltas = [each async for each in chosen.model.stream(base.Request(messages=()))]
            await chosen.model.close()
            return [each.usage.cost for each in deltas if isinstance(each, base.UsageDelta)]

        monkeypatch.setattr(local_servers, "find", find)
        ollama = msgspec.structs.replace(providers.PROVIDERS["ollama"], base_url=f"{played.url}/v1")
        known = {**providers.PROVIDERS, "ollama": ollama}
        assert asyncio.run(costs()) == [0.0]


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("anthropic/claude-sonnet-4-5", True),
        ("openai/gpt-4.1", True),
        ("openrouter/openrouter/auto", True),  # It reports what it charged.
        ("ollama/llama3.2", True),
        ("offline", True),
        ("lab/priced", True),
        ("lab/other", False),
        ("openai/gpt-unknown", False),
    ],
)
def test_cost_limit_needs_a_known_price(tmp_path: Path, name: str, allowed: bool) -> None:
    given = settings(
        tmp_path,
        providers={**providers.PROVIDERS, "lab": providers.Provider("lab", "openai", "http://127.0.0.1:9/v1")},
        keys=dict.fromkeys(providers.PROVIDERS, config.Secret("k")),
        models={"lab/priced": config.ModelSection(price=base.Price(1, 2))},
        limits=config.LimitsSection(cost=1.0),
    )

    async def made() -> None:
        for fallback in ((), (name,)):
            limited = msgspec.structs.replace(given, fallback=fallback)
            chosen = await models.choose(limited, name if not fallback else "offline")
            await chosen.model.close()

    if allowed:
        asyncio.run(made())
    else:
        with pytest.raises(errors.SettingInvalid, match=r"The price of .+ is not known"):
            asyncio.run(made())


@pytest.mark.parametrize("name", ["offline", "holdfast/offline"])
def test_the_built_in_model_is_had_by_both_of_its_names(tmp_path: Path, name: str) -> None:
    assert models.is_offline(asyncio.run(models.choose(settings(tmp_path, model=name))).model)


@pytest.mark.parametrize("name", ["nonsense", "nobody/model", "openai/gpt-5", "openai/", "/x"])
async def test_a_model_that_cannot_be_had_changes_nothing(tmp_path: Path, name: str) -> None:
    usual = ScriptedModel([])
    shelf = models.ConversationModels(settings(tmp_path), usual)
    with pytest.raises(errors.SettingInvalid):
        await shelf.choose("a", name)
    assert shelf.of("a") is usual


async def test_the_program_answers_with_the_model_that_was_chosen_and_counts_for_it_anew(tmp_path: Path) -> None:
    given = settings(tmp_path, model="offline", keys={"openai": config.Secret("k")})
    async with compose.start(given) as app:
        door = app.runtime
        first = await door.agents.get("talk")
        await door.send("talk", events.Command("/model openai/gpt-5"))
        second = await door.agents.get("talk")
        assert (first.model.name, second.model.name) == (providers.OFFLINE_NAME, "openai/gpt-5")
        assert second.meter is not first.meter
        assert (await door.agents.get("other")).meter is first.meter
        assert second.memory is not first.memory
        await door.send("talk", events.Command("/model offline"))
        assert (await door.submit("talk", events.Submit("Hello"))).completed
