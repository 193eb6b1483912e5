"""The providers that Holdfast knows, and the function that turns a string such as `openai/gpt-5` into a model.

The table lists addresses and key variables; limits and prices come from the model tables. Adapters are loaded when a
model of theirs is created, which keeps httpx2 out of programs that do not need it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal
from urllib import parse

import msgspec

from holdfast import errors, model
from holdfast.model import base, model_table

LOCALHOST = "127.0.0.1"
OFFLINE, OFFLINE_NAME = "offline", "holdfast/offline"
FREE = base.Price(0.0, 0.0)
ATTEMPTS = 4


class LocalServer(msgspec.Struct, frozen=True):
    """A kind of model server for one machine: its default port and the command that starts it."""

    name: str
    port: int
    start: str

    @property
    def base_url(self) -> str:
        return f"http://{LOCALHOST}:{self.port}/v1"


LOCAL_SERVERS: tuple[LocalServer, ...] = (
    LocalServer("ollama", 11434, "ollama serve"),
    LocalServer("llama.cpp", 8080, "llama-server --jinja -m MODEL.gguf"),
    LocalServer("lmstudio", 1234, "lms server start"),
    LocalServer("vllm", 8000, "vllm serve MODEL"),
)


class Provider(msgspec.Struct, frozen=True):
    """A service that offers models over HTTP: its API, its address and the environment variables it reads."""

    name: str
    api: Literal["openai", "anthropic"] = "openai"
    base_url: str = ""
    key_env: str = ""
    """The variable that holds the API key; empty if no key is needed."""
    base_url_env: str = ""
    """The variable that overrides the address."""
    start: str = ""
    """The command that starts the server, if it runs on this machine and so costs nothing."""
    window: int | None = None
    """The context window of its models in tokens, if the model tables are wrong."""


_TABLE = (
    Provider("anthropic", "anthropic", "https://api.anthropic.com", "ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    Provider("openai", "openai", "https://api.openai.com/v1", "OPENAI_API_KEY", "OPENAI_BASE_URL"),
    Provider("openrouter", "openai", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    Provider("google", "openai", "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    Provider("mistral", "openai", "https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    Provider("deepseek", "openai", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    Provider("xai", "openai", "https://api.x.ai/v1", "XAI_API_KEY"),
    Provider("groq", "openai", "https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    Provider("together", "openai", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    *(Provider(server.name, "openai", server.base_url, start=server.start) for server in LOCAL_SERVERS),
)
PROVIDERS = {provider.name: provider for provider in _TABLE}


def create(
    name: str,
    *,
    key: str | None = None,
    base_url: str | None = None,
    window: int | None = None,
    max_output: int | None = None,
    price: base.Price | None = None,
    attempts: int = ATTEMPTS,
    provider: Provider | None = None,
    environ: Mapping[str, str] | None = None,
) -> base.Model:
    """Create the model that a string such as `openai/gpt-5`, `ollama/llama3.2` or `offline` names.

    The key and the address come from the arguments, else from the provider's variables in `environ` (the environment of
    the process by default). `window`, `max_output` and `price` come from the model tables if they are not given. A
    request that fails temporarily is sent up to `attempts` times; 1 turns retries off. With a `base_url`, any provider
    name works: the server at that address must speak the Chat Completions API. `provider` replaces the table's entry.

    Raises SettingInvalid if the string names no known provider, and KeyRefused if the provider's key is missing.
    """
    if name in (OFFLINE, OFFLINE_NAME):
        return model.OfflineModel(name=OFFLINE_NAME)
    provider_name, _, model_name = name.partition("/")
    found = provider or PROVIDERS.get(provider_name) or (Provider(provider_name) if base_url else None)
    if not provider_name or not model_name or found is None:
        raise errors.SettingInvalid(
            f"{errors.quote(name)} is not a model name. Use provider/model, such as `openai/gpt-5`, or `{OFFLINE}`. "
            f"Providers: {', '.join(PROVIDERS)}."
        )
    environ = os.environ if environ is None else environ
    url = base_url or environ.get(found.base_url_env) or found.base_url
    key = (key or environ.get(found.key_env) or "").strip()
    if not key and needs_key(msgspec.structs.replace(found, base_url=url)):
        raise errors.KeyRefused(f"{name} needs an API key. Set {found.key_env}, or pass `key`.", model=name)
    if price is None:
        price = FREE if found.start else model_table.find_price(url, model_name)
    limits = model_table.find_limits(model_name)
    window = window or found.window or limits.window
    created: base.Model
    if found.api == "anthropic":
        max_output = max_output or limits.max_output or window
        created = model.AnthropicModel(
            model_name, window=window, key=key, base_url=url, name=name, price=price, max_output=max_output
        )
    else:
        created = model.OpenAIModel(
            model_name, base_url=url, window=window, key=key, key_env=found.key_env or None, name=name, price=price
        )
    return created if attempts <= 1 else model.RetryingModel(created, model.Backoff(attempts=attempts))


def find_by_address(base_url: str) -> Provider | None:
    """Return the provider at an address: by its host, or by its port if the address is on this machine."""
    try:
        address = parse.urlsplit(base_url)
        host, port = address.hostname or "", address.port
    except ValueError:
        return None
    if host in (LOCALHOST, "localhost", "::1"):
        server = next((server for server in LOCAL_SERVERS if server.port == port), None)
        return PROVIDERS[server.name] if server else None
    return next((one for one in _TABLE if not one.start and parse.urlsplit(one.base_url).hostname == host), None)


def needs_key(provider: Provider) -> bool:
    """Return whether a provider needs an API key. A known one at another address, such as a proxy, may need none."""
    known = PROVIDERS.get(provider.name)
    is_moved = known is not None and known.base_url.rstrip("/") != provider.base_url.rstrip("/")
    return bool(provider.key_env) and not (is_moved and known is not None and known.key_env == provider.key_env)
