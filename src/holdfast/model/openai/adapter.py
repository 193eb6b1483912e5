"""Models behind the Chat Completions API, which nearly every server speaks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from holdfast import errors
from holdfast.model import base, http, local_servers, model_table, provider_errors, providers, request_common
from holdfast.model.openai import request as openai_request
from holdfast.model.openai import stream

# Fields that some servers refuse, and that can be left out.
_OPTIONAL_FIELDS = ("stream_options", "temperature")


class OpenAIModel(http.ApiModel):
    """A model behind a server that speaks Chat Completions. `extra` are further fields of the request."""

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
        timeout: float = http.READ_TIMEOUT,
    ) -> None:
        name = name or f"{_provider_name(base_url)}/{model}"
        super().__init__(
            model,
            url=_join_url(base_url, "/chat/completions"),
            window=window,
            price=price,
            headers={**({"authorization": f"Bearer {key}"} if key else {}), **(headers or {})},
            extra=extra,
            timeout=timeout,
            advice=build_advice(name, model, base_url, key_env),
        )
        self._base_url = base_url
        self._dialect = choose_dialect(base_url, name.partition("/")[0])
        self._refused_fields: set[str] = set()

    async def list_served(self) -> local_servers.RunningServer | None:
        """Return the models that the server lists; None if its answer is not a list. Raises ModelError."""
        url = _join_url(self._base_url, "/models")
        return local_servers.parse_models("openai", self._base_url, await self._http.get(url))

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        while True:
            try:
                async with aclosing(self._stream_once(request)) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except errors.RequestRefused as error:
                # A refusal comes before the first delta. The refused field is left out from now on.
                field = next((field for field in _OPTIONAL_FIELDS if field in str(error)), None)
                if field is None or field in self._refused_fields or error.status not in (400, 422):
                    raise
                self._refused_fields.add(field)

    def _stream_once(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        body = openai_request.build(
            request, self._dialect, model=self.model, extra=self._extra, without=sorted(self._refused_fields)
        )
        parser = stream.Parser(
            self._advice,
            provider=self._dialect.provider,
            names=request_common.original_names(request.tools),
            price=self._price,
            secrets=self._http.secrets,
        )
        return self._post(body, parser)


def choose_dialect(base_url: str, provider: str) -> openai_request.Dialect:
    """Return the dialect of the server at an address."""
    host = model_table.host_of(base_url)
    if host == "api.openai.com" or host.endswith(".openai.azure.com"):
        return openai_request.Dialect(provider=provider, max_tokens="max_completion_tokens")
    return openai_request.Dialect(provider=provider, id_length=9 if host == "api.mistral.ai" else 40)


def build_advice(name: str, model: str, base_url: str, key_env: str | None = None) -> provider_errors.Advice:
    """Return what the user can do if this model cannot be asked."""
    provider = providers.find_by_address(base_url)
    if provider is not None and provider.start:
        missing = f"Get it with `ollama pull {model}`." if provider.name == "ollama" else "Load it in the server first."
        reach = f"Is it running? Start it with `{provider.start}`."
        return provider_errors.Advice(model=name, reach=reach, missing=missing)
    variable = key_env or (provider.key_env if provider else "")
    if variable:
        return provider_errors.Advice(model=name, key=f"Set {variable} to a valid key.")
    return provider_errors.Advice(model=name)


def _provider_name(base_url: str) -> str:
    provider = providers.find_by_address(base_url)
    return provider.name if provider else model_table.host_of(base_url) or "unknown"


def _join_url(base_url: str, endpoint: str) -> str:
    # The address may end with a query, such as the version of an API.
    path, mark, query = base_url.partition("?")
    return f"{path.rstrip('/').removesuffix('/chat/completions')}{endpoint}{mark}{query}"
