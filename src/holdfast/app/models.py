"""From settings to a model that can be asked.

The one that was named; else the first provider there is a key for; else the server at OPENAI_BASE_URL; else a server on
this machine; else the built-in offline model. Adapters are loaded when one of theirs is made: the offline model needs
none of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from holdfast import config, errors, model
from holdfast.model import base, local_servers, model_limits, prices, retry, socket_owners

# What is asked when only a key was given.
USUAL = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-4.1", "openrouter": "openrouter/auto"}
LISTING = 10.0
"""Seconds that a server may take to list its models."""
FREE = base.Price(0.0, 0.0)
"""What a server on this machine costs."""
OFFLINE, OFFLINE_NAME = "offline", "holdfast/offline"

ADVICE = (
    "No key is set and no model server runs here: this is the built-in offline model. "
    "Set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENROUTER_API_KEY, or start Ollama, for a real one."
)


class Chosen(NamedTuple):
    """A model, and what is to be said about how it was chosen."""

    model: base.Model
    notice: str | None = None


class Models:
    """Which model answers which conversation, until the program ends. Whoever makes it closes it."""

    def __init__(
        self, settings: config.Settings, usual: base.Model, wrap: Callable[[base.Model], base.Model] = lambda it: it
    ) -> None:
        self._settings, self._usual, self._wrap = settings, usual, wrap
        self._made: dict[str, base.Model] = {usual.name: usual}
        self._chosen: dict[str, base.Model] = {}

    def of(self, conversation_id: str) -> base.Model:
        return self._chosen.get(conversation_id, self._usual)

    async def listed(self) -> list[str]:
        """Those that settings name or a key is there for, those of servers on this machine, and the built-in one."""
        settings = self._settings
        named = [settings.model, *settings.fallback, *settings.models]
        usual = [f"{provider}/{name}" for provider, name in USUAL.items() if provider in settings.keys]
        servers = [server for server in await local_servers.find() if socket_owners.is_trusted(server.uids)]
        here = [f"{server.kind}/{name}" for server in servers for name in server.models]
        every = [self._usual.name, *(name for name in named if name and _to_be_had(settings, name)), *usual, *here]
        return list(dict.fromkeys(name for name in (*every, OFFLINE_NAME) if name != OFFLINE))

    async def choose(self, conversation_id: str, name: str) -> base.Model:
        """SettingInvalid when it cannot be had. One that was made is not made again: others may be using it."""
        if name not in self._made:
            self._made[name] = self._wrap((await choose(self._settings, name)).model)
        self._chosen[conversation_id] = self._made[name]
        return self._made[name]

    def follow(self, conversation_id: str, origin: str) -> None:
        if origin in self._chosen:
            self._chosen[conversation_id] = self._chosen[origin]

    async def close(self) -> None:
        for made in self._made.values():
            await made.close()


def is_offline(chosen: base.Model) -> bool:
    """Whether it is the built-in one, and no language model at all."""
    return chosen.name == OFFLINE_NAME


async def choose(settings: config.Settings, named: str | None = None) -> Chosen:
    """The model of these settings; SettingInvalid when one is named that cannot be had."""
    name = named or settings.model
    if name is None:
        return await _found(settings)
    return Chosen(_chain(settings, (name, *settings.fallback)))


async def _found(settings: config.Settings) -> Chosen:
    for provider, usual in USUAL.items():
        if provider in settings.keys:
            return Chosen(_chain(settings, (f"{provider}/{usual}", *settings.fallback)))
    openai = settings.providers.get("openai")
    if openai is not None and not config.needs_key("openai", openai):
        return await _served(settings, openai)
    servers = [server for server in await local_servers.find() if server.models]
    for server in servers:
        if socket_owners.is_trusted(server.uids):
            name = f"{server.kind}/{server.models[0]}"
            window = server.window or model_limits.of(server.models[0]).window
            made = model.OpenAIModel(server.models[0], base_url=server.base_url, window=window, name=name, price=FREE)
            return Chosen(_chained([made]), f"Using {name}, which runs on this machine.")
    return Chosen(model.OfflineModel(name=OFFLINE_NAME), _not_used(servers[0]) if servers else ADVICE)


def _not_used(server: local_servers.Found) -> str:
    """Say why a server on this machine is not used, and which setting would allow it."""
    names = [socket_owners.user_name(uid) or "unknown" for uid in server.uids]
    users = ", ".join(f"{name} (uid {uid})" for name, uid in zip(names, server.uids, strict=True))
    # The name comes from a server that is not trusted, and people copy it to a shell.
    name = server.models[0] if re.fullmatch(r"[\w.:/\-]{1,80}", server.models[0], re.ASCII) else "MODEL"
    owner = f"it belongs to the user {users}" if users else "the system does not show which user runs it"
    return (
        f"A model server listens on {server.base_url}, but {owner}, so it is not used: this is the built-in offline "
        f"model. If you trust that server, set HOLDFAST_MODEL={server.kind}/{name} or, in config.toml, "
        f'model = "{server.kind}/{name}".'
    )


async def _served(settings: config.Settings, openai: config.Provider) -> Chosen:
    """The first model that the server at OPENAI_BASE_URL lists; SettingInvalid where it lists none."""
    asked = model.OpenAIModel(
        "", base_url=openai.base_url or "", window=1, key_env=openai.key_env, name="openai", timeout=LISTING
    )
    try:
        listed = await asked.list_served()
        why = "the list is empty." if listed else "the answer is not a list of models."
    except errors.ModelError as error:
        listed, why = None, str(error)
    finally:
        await asked.close()
    if listed is None or not listed.models:
        raise errors.SettingInvalid(
            f"OPENAI_BASE_URL is set, but no model is named and the server lists none: {why} "
            "Name a model with HOLDFAST_MODEL=openai/NAME; set OPENAI_API_KEY if the server needs a key."
        )
    name = f"openai/{listed.models[0]}"
    made = [_made(settings, name, listed.window), *(_made(settings, each) for each in settings.fallback)]
    return Chosen(_chained(made), f"Using {name}, the first model that the server at OPENAI_BASE_URL lists.")


def _chain(settings: config.Settings, names: tuple[str, ...]) -> base.Model:
    return _chained([_made(settings, name) for name in names])


def _chained(made: list[base.Model]) -> base.Model:
    patient = [retry.RetryingModel(one) for one in made]
    return patient[0] if len(patient) == 1 else retry.FallbackModel(patient)


def _made(settings: config.Settings, name: str, told_window: int | None = None) -> base.Model:
    if name in (OFFLINE, OFFLINE_NAME):
        return model.OfflineModel(name=OFFLINE_NAME)
    provider, _, bare = name.partition("/")
    found = settings.providers.get(provider) or _on_this_machine(provider)
    if not bare or found is None:
        names = ", ".join([*settings.providers, *(kind.name for kind in local_servers.KINDS)])
        raise errors.SettingInvalid(
            f"{errors.shown(name)} names no model: say provider/model, as in `openai/gpt-5`, or `{OFFLINE}`. "
            f"Providers: {names}."
        )
    key = settings.keys.get(provider)
    if key is None and config.needs_key(provider, found):
        raise errors.SettingInvalid(f"{name} needs a key: set {found.key_env}.")
    said = settings.models.get(name, config.Known())
    window = said.window or found.window or told_window or model_limits.of(bare).window
    url = found.base_url or config.PROVIDERS[found.kind].base_url or ""
    listed = prices.find(url, bare) if provider in settings.providers else FREE
    price = base.Price(*_values(said.price)) if said.price else listed
    if settings.limits.cost is not None and price is None and not prices.is_reported(url):
        raise errors.SettingInvalid(
            f"The price of {name} is not known, so the cost limit (`--max-cost`, `limits.cost`) cannot be enforced. "
            f'Set it with `holdfast config edit`: `[models."{name}"]` with `price = {{ input = 1.0, output = 4.0 }}`, '
            "in US dollars per million tokens, 0 if it is free. Or leave the limit out."
        )
    if found.kind == "anthropic":
        longest = said.max_output or model_limits.of(bare).max_output or window
        return model.AnthropicModel(
            bare, window=window, key=key, base_url=url, name=name, price=price, max_output=longest
        )
    return model.OpenAIModel(bare, base_url=url, window=window, key=key, key_env=found.key_env, name=name, price=price)


def _to_be_had(settings: config.Settings, name: str) -> bool:
    """Whether its provider is known, and its key is there if it needs one."""
    provider, _, bare = name.partition("/")
    found = settings.providers.get(provider)
    return bool(bare and found) and (provider in settings.keys or not (found and config.needs_key(provider, found)))


def _values(price: config.Price) -> tuple[float, float, float | None, float | None]:
    return price.input, price.output, price.cache_read, price.cache_write


def _on_this_machine(provider: str) -> config.Provider | None:
    for kind in local_servers.KINDS:
        if kind.name == provider:
            return config.Provider("openai", f"http://{local_servers.HOST}:{kind.port}/v1")
    return None
