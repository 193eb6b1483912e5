"""Anthropic's Messages API: the call itself. What is asked and what is answered have files of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from holdfast.model import base, http, provider_errors, request_common
from holdfast.model.anthropic import request as anthropic_request
from holdfast.model.anthropic import stream

BASE_URL = "https://api.anthropic.com"
VERSION = "2026-10-21"
MAX_OUTPUT = 8_192


class AnthropicModel:
    """A model behind Anthropic's API. `extra` are fields of the request that are not set here, such as thinking."""

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
        timeout: float = http.READ,
    ) -> None:
        self.model = model
        self._name = name or f"{anthropic_request.PROVIDER}/{model}"
        self._window = window
        self._price = price
        self._max_output = max_output
        self._extra = dict(extra or {})
        self._key = key or ""
        self._url = f"{base_url.rstrip('/').removesuffix('/v1')}/v1/messages"
        self._headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "anthropic-version": VERSION,
            **_credentials(key, base_url),
            **(headers or {}),
        }
        self._asked = provider_errors.Asked(model=self._name, key="Set ANTHROPIC_API_KEY to a valid key.")
        self._wire = http.Wire(self._asked, timeout=timeout)

    @property
    def name(self) -> str:
        return self._name

    @property
    def window(self) -> int:
        return self._window

    async def close(self) -> None:
        await self._wire.close()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Delta, None]:
        body = anthropic_request.build(
            request,
            model=self.model,
            max_output=self._max_output,
            provider=self._name.partition("/")[0],
            extra=self._extra,
        )
        parser = stream.Parser(
            self._asked, names=request_common.names(request.tools), price=self._price, secrets=(self._key,)
        )
        events = self._wire.post_stream(self._url, self._headers, msgspec.json.encode(body))
        async with aclosing(http.parsed(events, parser)) as deltas:
            async for delta in deltas:
                yield delta


def _credentials(key: str | None, base_url: str) -> dict[str, str]:
    """The key as the provider wants it; others who speak its API may still look where it used to be."""
    if not key:
        return {}
    own = {"authorization": f"Bearer {key}"}
    return own if base_url.startswith(BASE_URL) else {**own, "x-api-key": key}
