"""Chat Completions, the format nearly every server speaks: who is behind an address, and the call itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any
from urllib import parse

from holdfast import errors
from holdfast.model import base, http, local_servers, provider_errors, request_common
from holdfast.model.openai import request as openai_request
from holdfast.model.openai import stream

# Hosts, what people call them, and the variable their key is usually in.
_PROVIDERS = {
    "api.openai.com": ("openai", "OPENAI_API_KEY"),
    "openrouter.ai": ("openrouter", "OPENROUTER_API_KEY"),
    "api.groq.com": ("groq", "GROQ_API_KEY"),
    "api.mistral.ai": ("mistral", "MISTRAL_API_KEY"),
    "api.deepseek.com": ("deepseek", "DEEPSEEK_API_KEY"),
    "api.x.ai": ("xai", "XAI_API_KEY"),
    "api.together.xyz": ("together", "TOGETHER_API_KEY"),
    "generativelanguage.googleapis.com": ("google", "GEMINI_API_KEY"),
}

# What a server may not know, and can be asked without.
_SPARE = ("stream_options", "temperature")


class OpenAIModel:
    """A model behind any server that speaks Chat Completions. `extra` are fields of the request not set here."""

    def __init__(
        self,
        model: str,
        *,
        base_url: str,
        window: int,
        key: str | None = None,
        key_env: str | None = None,
        name: str | None = None,
        price: base.Price | None = None,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        timeout: float = http.READ,
    ) -> None:
        self.model = model
        self._name = name or f"{provider_of(base_url)}/{model}"
        self._window = window
        self._price = price
        self._extra = dict(extra or {})
        self._key = key or ""
        self._base_url, self._url = base_url, _url(base_url)
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            **({"authorization": f"Bearer {key}"} if key else {}),
            **(headers or {}),
        }
        self._dialect = dialect_of(base_url, self._name.partition("/")[0])
        self._asked = advice(self._name, model, base_url, key_env)
        self._wire = http.Wire(self._asked, timeout=timeout)
        self._without: set[str] = set()

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._window

    async def close(self) -> None:
        await self._wire.close()

    async def list_served(self) -> local_servers.Found | None:
        """Return the models that the server lists; None where its answer is no such list. Raises ModelError."""
        body = await self._wire.get(_url(self._base_url, "/models"), {**self._headers, "accept": "application/json"})
        return local_servers.read(local_servers.Kind("openai", 0, ""), self._base_url, body)

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        while True:
            try:
                async with aclosing(self._asked_once(request)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except errors.RequestRefused as refusal:
                # Once refused, such a field is left out for good. It comes before the first delta, or not at all.
                spare = next((field for field in _SPARE if field in str(refusal)), None)
                if spare is None or spare in self._without or refusal.status not in (400, 422):
                    raise
                self._without.add(spare)

    async def _asked_once(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        body = openai_request.build(
            request, self._dialect, model=self.model, extra=self._extra, without=sorted(self._without)
        )
        parser = stream.Parser(
            self._asked,
            provider=self._dialect.provider,
            names=request_common.names(request.tools),
            price=self._price,
            secrets=(self._key,),
        )
        events = self._wire.post_stream(self._url, self._headers, bytes(request_common.encoded(body)))
        async with aclosing(http.parsed(events, parser)) as deltas:
            async for delta in deltas:
                yield delta


def provider_of(base_url: str) -> str:
    """What people call whoever is behind an address."""
    kind, host = local_servers.at(base_url), _host(base_url)
    if kind is not None:
        return kind.name
    return _PROVIDERS[host][0] if host in _PROVIDERS else host or "unknown"


def dialect_of(base_url: str, provider: str) -> openai_request.Dialect:
    host = _host(base_url)
    if host == "api.openai.com" or host.endswith(".openai.azure.com"):
        return openai_request.Dialect(provider=provider, max_tokens="max_completion_tokens")
    return openai_request.Dialect(provider=provider, id_length=9 if host == "api.mistral.ai" else 40)


def advice(name: str, model: str, base_url: str, key_env: str | None = None) -> provider_errors.Asked:
    """What to tell a person when this model cannot be asked."""
    kind, host = local_servers.at(base_url), _host(base_url)
    if kind is not None:
        pull = f"Get it with `ollama pull {model}`." if kind.name == "ollama" else "Load it in the server first."
        return provider_errors.Asked(model=name, reach=f"Is it running? Start it with `{kind.start}`.", missing=pull)
    variable = key_env or (_PROVIDERS[host][1] if host in _PROVIDERS else None)
    if variable:
        return provider_errors.Asked(model=name, key=f"Set {variable} to a valid key.")
    return provider_errors.Asked(model=name)


def _host(base_url: str) -> str:
    try:
        return parse.urlsplit(base_url).hostname or ""
    except ValueError:
        return ""


def _url(base_url: str, endpoint: str = "/chat/completions") -> str:
    # Some put a version of their API behind a question mark.
    path, mark, query = base_url.partition("?")
    return f"{path.rstrip('/').removesuffix('/chat/completions')}{endpoint}{mark}{query}"
