"""Choose and create the model of the settings.

In this order: the model that was named, the first provider with an API key, the server at OPENAI_BASE_URL, a model
server on this machine, the built-in offline model. Provider adapters are imported when they are used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from holdfast import config, errors, model
from holdfast.model import base, local_servers, model_table, providers

# The models that are used if only an API key is set.
DEFAULT_MODELS = {"anthropic": "claude-sonnet-4-5", "openai": "gpt-4.1", "openrouter": "openrouter/auto"}
LIST_TIMEOUT = 10.0
"""Seconds that a server may take to list its models."""
ADVICE = (
    "No API key is set and no model server runs here: this is the built-in offline model. "
    "Set ANTHROPIC_API_KEY, OPENAI_API_KEY or OPENROUTER_API_KEY, or start Ollama, to use a language model. "
    'Or try: "My train leaves at 9:40." · "When does my train leave?" · "List the files."'
)


class ModelChoice(NamedTuple):
    """A model, and a notice about how it was chosen."""

    model: base.Model
    notice: str | None = None


class ConversationModels:
    """The models of conversations: a default, and those chosen while the program runs. The creator closes it."""

    def __init__(
        self, settings: config.Settings, default: base.Model, wrap: Callable[[base.Model], base.Model] = lambda it: it
    ) -> None:
        self._settings, self._default, self._wrap = settings, default, wrap
        self._created: dict[str, base.Model] = {default.name: default}
        self._chosen: dict[str, base.Model] = {}

    def of(self, conversation_id: str) -> base.Model:
        return self._chosen.get(conversation_id, self._default)

    async def listed(self) -> list[str]:
        """Return the names of the models in the settings, of providers with a key, of local servers, and `offline`."""
        settings = self._settings
        named = [settings.model, *settings.fallback, *settings.models]
        defaults = [f"{provider}/{name}" for provider, name in DEFAULT_MODELS.items() if provider in settings.keys]
        servers = [server for server in await local_servers.find() if local_servers.is_trusted(server.uids)]
        local = [f"{server.kind}/{name}" for server in servers for name in server.models]
        every = [
            self._default.name,
            *(name for name in named if name and _is_available(settings, name)),
            *defaults,
            *local,
        ]
        return list(dict.fromkeys(name for name in (*every, providers.OFFLINE_NAME) if name != providers.OFFLINE))

    async def choose(self, conversation_id: str, name: str) -> base.Model:
        """Use a model for a conversation. Raises SettingInvalid if it is not available. Models are created once."""
        if name not in self._created:
            self._created[name] = self._wrap((await choose(self._settings, name)).model)
        self._chosen[conversation_id] = self._created[name]
        return self._created[name]

    def follow(self, conversation_id: str, origin: str) -> None:
        if origin in self._chosen:
            self._chosen[conversation_id] = self._chosen[origin]

    async def close(self) -> None:
        for model_ in self._created.values():
            await model_.close()


def is_offline(chosen: base.Model) -> bool:
    """Return whether a model is the built-in one, which is not a language model."""
    return chosen.name == providers.OFFLINE_NAME


async def choose(settings: config.Settings, named: str | None = None) -> ModelChoice:
    """Return the named model, or that of the settings. Raises SettingInvalid if it is not available."""
    name = named or settings.model
    if name is None:
        return await _detect(settings)
    return ModelChoice(_chain(settings, name))


async def _detect(settings: config.Settings) -> ModelChoice:
    for provider, default in DEFAULT_MODELS.items():
        if provider in settings.keys:
            return ModelChoice(_chain(settings, f"{provider}/{default}"))
    openai = settings.providers.get("openai")
    if openai is not None and not providers.needs_key(openai):
        return await _first_served(settings, openai)
    servers = [server for server in await local_servers.find() if server.models]
    for server in servers:
        if local_servers.is_trusted(server.uids):
            name = f"{server.kind}/{server.models[0]}"
            local = _create(settings, name, server.window, server.base_url)
            return ModelChoice(local, f"Using {name}, which runs on this machine.")
    return ModelChoice(providers.create(providers.OFFLINE), _explain_offline(settings, servers))


def _explain_offline(settings: config.Settings, servers: list[local_servers.RunningServer]) -> str:
    """Explain why the offline model is used, and how to choose another one."""
    if provider := next(iter(settings.keys), None):
        return (
            f"{settings.providers[provider].key_env} is set, but no model is chosen. Choose one with --model "
            f"{provider}/MODEL or HOLDFAST_MODEL. Until then, this is the built-in offline model."
        )
    return _not_used(servers[0]) if servers else ADVICE


def _not_used(server: local_servers.RunningServer) -> str:
    """Explain why a server on this machine is not used, and which setting allows it."""
    names = [local_servers.user_name(uid) or "unknown" for uid in server.uids]
    users = ", ".join(f"{name} (uid {uid})" for name, uid in zip(names, server.uids, strict=True))
    # The name comes from an untrusted server, and users copy it to a shell.
    name = server.models[0] if re.fullmatch(r"[\w.:/\-]{1,80}", server.models[0], re.ASCII) else "MODEL"
    owner = f"it belongs to the user {users}" if users else "the system does not show which user runs it"
    return (
        f"A model server listens on {server.base_url}, but {owner}, so it is not used: this is the built-in offline "
        f"model. If you trust that server, set HOLDFAST_MODEL={server.kind}/{name} or, in config.toml, "
        f'model = "{server.kind}/{name}".'
    )


async def _first_served(settings: config.Settings, openai: providers.Provider) -> ModelChoice:
    """Return the first model that the server at OPENAI_BASE_URL lists. Raises SettingInvalid if it lists none."""
    client = model.OpenAIModel(
        "", base_url=openai.base_url, window=1, key_env=openai.key_env, name="openai", timeout=LIST_TIMEOUT
    )
    try:
        listed = await client.list_served()
        why = "the list is empty." if listed else "the response is not a list of models."
    except errors.ModelError as error:
        listed, why = None, str(error)
    finally:
        await client.close()
    if listed is None or not listed.models:
        raise errors.SettingInvalid(
            f"OPENAI_BASE_URL is set, but no model is named and the server lists none: {why} "
            "Name a model with HOLDFAST_MODEL=openai/NAME; set OPENAI_API_KEY if the server needs a key."
        )
    name = f"openai/{listed.models[0]}"
    notice = f"Using {name}, the first model that the server at OPENAI_BASE_URL lists."
    return ModelChoice(_chain(settings, name, listed.window), notice)


def _chain(settings: config.Settings, name: str, served_window: int | None = None) -> base.Model:
    """Return the model, with fallback to those of the settings."""
    chain = [_create(settings, name, served_window), *(_create(settings, each) for each in settings.fallback)]
    return chain[0] if len(chain) == 1 else model.FallbackModel(chain)


def _create(
    settings: config.Settings, name: str, served_window: int | None = None, base_url: str | None = None
) -> base.Model:
    provider, _, bare = name.partition("/")
    found = settings.providers.get(provider)
    if found is None:
        return providers.create(name, environ={})
    key = settings.keys.get(provider)
    if key is None and providers.needs_key(found):
        raise errors.SettingInvalid(f"{name} needs an API key: set {found.key_env}.")
    section = settings.models.get(name, config.ModelSection())
    url = base_url or found.base_url
    price = section.price or (providers.FREE if found.start else model_table.find_price(url, bare))
    if settings.limits.cost is not None and price is None and not model_table.reports_cost(url):
        raise errors.SettingInvalid(
            f"The price of {name} is not known, so the cost limit (`--max-cost`, `limits.cost`) cannot be enforced. "
            f'Set it with `holdfast config edit`: `[models."{name}"]` with `price = {{ input = 1.0, output = 4.0 }}`, '
            "in US dollars per million tokens, 0 if it is free. Or leave the limit out."
        )
    return providers.create(
        name,
        key=key,
        base_url=url,
        window=section.window or found.window or served_window,
        max_output=section.max_output,
        price=price,
        provider=found,
        environ={},
    )


def _is_available(settings: config.Settings, name: str) -> bool:
    """Return whether the provider is known, and its key is set if it needs one."""
    provider, _, bare = name.partition("/")
    found = settings.providers.get(provider)
    return bool(bare) and found is not None and (provider in settings.keys or not providers.needs_key(found))
