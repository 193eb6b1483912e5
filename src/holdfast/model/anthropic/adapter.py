"""Models behind Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

from holdfast.model import base, http, provider_errors, request_common
from holdfast.model.anthropic import request as anthropic_request
from holdfast.model.anthropic import stream

BASE_URL = "https://api.anthropic.com"
VERSION = "2026-10-21"
MAX_OUTPUT = 8_192


class AnthropicModel(http.ApiModel):
    """A model behind Anthropic's API. `extra` are further fields of the request, such as `thinking`."""

    def __init__(
        self,
        model: str,
        *,
        window: int,
        key: str | None = None,
        base_url: str = BASE_URL,
        name: str | None = None,
        price: base.Price | None = None,
        max_output: int = MAX_OUTPUT,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        timeout: float = http.READ_TIMEOUT,
    ) -> None:
        name = name or f"{anthropic_request.PROVIDER}/{model}"
        super().__init__(
            model,
            url=f"{base_url.rstrip('/').removesuffix('/v1')}/v1/messages",
            window=window,
            price=price,
            headers={"anthropic-version": VERSION, **_credentials(key, base_url), **(headers or {})},
            extra=extra,
            timeout=timeout,
            advice=provider_errors.Advice(model=name, key="Set ANTHROPIC_API_KEY to a valid key."),
        )
        self._max_output = max_output

    def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        body = anthropic_request.build(
            request,
            model=self.model,
            max_output=self._max_output,
            provider=self.name.partition("/")[0],
            extra=self._extra,
        )
        names = request_common.original_names(request.tools)
        parser = stream.Parser(self._advice, names=names, price=self._price, secrets=self._http.secrets)
        return self._post(body, parser)


def _credentials(key: str | None, base_url: str) -> dict[str, str]:
    """Return the headers with the key. Compatible servers may expect it in the older header."""
    if not key:
        return {}
    bearer = {"authorization": f"Bearer {key}"}
    return bearer if base_url.startswith(BASE_URL) else {**bearer, "x-api-key": key}
