"""The HTTP client for providers: send a request, yield the events of its stream.

It knows no provider: adapters pass bytes and read events. Every failure becomes an errors.ModelError here; bodies and
headers appear in no error and no log. This is the only module that imports httpx2.
"""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import httpx2

from holdfast import errors
from holdfast.model import base, provider_errors, request_common, stream_parser

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 300.0
DRAIN_TIMEOUT = 0.2

MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Some servers send a whole tool call or an image in one event."""
MAX_ERROR_BYTES = 64 * 1024
MAX_LIST_BYTES = 4 * 1024 * 1024

_FAILURES = (httpx2.InvalidURL, httpx2.DecodingError, httpx2.TransportError)

# Requests to this machine never use the proxy of the environment.
_NO_PROXY = ("all://localhost", "all://127.0.0.1", "all://[::1]")
_parse_url = functools.lru_cache(maxsize=64)(httpx2.URL)


class HttpClient:
    """The connections of one model, opened on demand and reused. Safe for concurrent requests.

    Proxies and certificates come from the environment.
    """

    def __init__(
        self, advice: provider_errors.Advice, headers: Mapping[str, str], *, timeout: float = READ_TIMEOUT
    ) -> None:
        named = ("authorization", "x-api-key", "api-key")
        self.secrets = [value.removeprefix("Bearer ") for name, value in headers.items() if name.lower() in named]
        """The keys in the headers. Providers may quote them in errors, which must not repeat them."""
        self._advice = advice
        self._headers = headers
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def post_stream(self, url: str, body: bytes) -> AsyncGenerator[httpx2.ServerSentEvent, None]:
        """Send a request and yield the events of its stream until the server ends it.

        Raises errors.ModelError only: according to the response, ModelUnreachable if the connection fails before the
        first event, ModelCut after it. Close the iterator (`contextlib.aclosing`) to cancel the request.
        """
        has_begun = False
        try:
            response = await self._send("POST", url, body)
            try:
                await self._check_response(response)
                async for event in httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES):
                    has_begun = True
                    yield event
            finally:
                await response.aclose()
        except _FAILURES as error:
            raise self._translate(error, has_begun, url) from None

    async def get(self, url: str) -> bytes:
        """Return the body of a 200 response, up to MAX_LIST_BYTES. Raises errors.ModelError only."""
        try:
            response = await self._send("GET", url)
            try:
                body = await _read_start(response, MAX_LIST_BYTES)
            finally:
                await response.aclose()
        except _FAILURES as error:
            raise self._translate(error, False, url) from None
        if response.status_code != 200:
            raise self._refusal(response, body)
        return body

    async def close(self) -> None:
        """Close the connections. A later request opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def _send(self, method: str, url: str, body: bytes | None = None) -> httpx2.Response:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            # Connections belong to the event loop that opened them.
            self._client, self._loop = self._open(is_plain=url.startswith("http://")), loop
        # AsyncClient.build_request would merge and parse the same headers and URL for every request.
        return await self._client.send(
            httpx2.Request(method, _parse_url(url), headers=self._client.headers, content=body), stream=True
        )

    def _open(self, is_plain: bool) -> httpx2.AsyncClient:
        for value in self._headers.values():
            if not (value.isascii() and value.isprintable() and value == value.strip()):
                # The error of the HTTP library would show the key.
                what = f"The key or a header of {self._advice.model} has characters that cannot be sent."
                raise errors.KeyRefused(f"{what} {self._advice.key}", model=self._advice.model)
        try:
            return httpx2.AsyncClient(
                timeout=httpx2.Timeout(self._timeout, connect=CONNECT_TIMEOUT, pool=None),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8),
                headers={"user-agent": "holdfast", **self._headers},
                # Loading the certificates takes 50 ms, which plain HTTP does not need; this context trusts none.
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else True,
                mounts=dict.fromkeys(_NO_PROXY),
                trust_env=True,
            )
        except (ImportError, ValueError, OSError, httpx2.InvalidURL):
            # A SOCKS proxy without its package, an invalid proxy address, missing certificates.
            raise self._error(
                errors.ModelUnreachable,
                "cannot be reached with this proxy or these certificates",
                "Check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE; SOCKS needs `pip install httpx2[socks]`.",
            ) from None

    async def _check_response(self, response: httpx2.Response) -> None:
        """Raise unless the response is an event stream, whatever its content type is called."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code == 200 and not kind.endswith(("json", "html")):
            # Some servers omit the type or name another charset. An event stream is always UTF-8.
            response.headers["content-type"] = "text/event-stream; charset=utf-8"
            return
        body = await _read_start(response, MAX_ERROR_BYTES)
        if response.status_code != 200:
            raise self._refusal(response, body)
        if kind.endswith("html"):
            raise self._error(errors.ModelServerError, "answered with a web page", "Check the base URL.")
        if b'"error"' in body:
            text = body.decode("utf-8", "replace")
            raise provider_errors.from_event(text, self._advice, has_begun=False, secrets=self.secrets)
        raise self._error(errors.ModelServerError, "answered with JSON instead of a stream")

    def _refusal(self, response: httpx2.Response, body: bytes) -> errors.ModelError:
        return provider_errors.from_status(
            response.status_code, response.headers, body, self._advice, now=time.time(), secrets=self.secrets
        )

    def _translate(self, error: Exception, has_begun: bool, url: str) -> errors.ModelError:
        if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
            return self._error(
                errors.RequestRefused, "has an invalid base URL", "It must begin with https:// or http://."
            )
        if isinstance(error, httpx2.DecodingError):
            return self._error(errors.ModelServerError, "sent a stream that cannot be decompressed")
        if isinstance(error, httpx2.SSEError):
            return self._error(errors.ModelServerError, "sent an event that is too large")
        if has_begun:
            return self._error(errors.ModelCut, provider_errors.BROKE_OFF)
        what, advice = self._explain_unreachable(error)
        return self._error(errors.ModelUnreachable, f"({_address(url)}) {what}", advice)

    def _explain_unreachable(self, error: Exception) -> tuple[str, str]:
        """Return what happened, and what the user can do."""
        if isinstance(error, httpx2.ConnectTimeout | httpx2.ReadTimeout):
            waited = CONNECT_TIMEOUT if isinstance(error, httpx2.ConnectTimeout) else self._timeout
            return f"did not answer for {waited:g} seconds", self._advice.reach
        if isinstance(error, httpx2.ProxyError):
            return "cannot be reached through the proxy", "Check HTTPS_PROXY."
        if isinstance(error, httpx2.RemoteProtocolError):
            return "closed the connection without an answer", self._advice.reach
        if "certificate verify failed" in str(error).lower():
            return "has an untrusted certificate", "Set SSL_CERT_FILE to a file with the certificates to trust."
        reason = _find_reason(error)
        return f"cannot be reached: {reason}" if reason else "cannot be reached", self._advice.reach

    def _error(self, kind: type[errors.ModelError], what: str, advice: str = "") -> errors.ModelError:
        return kind(f"{self._advice.model} {what}. {advice}".strip(), model=self._advice.model)


def _address(url: str) -> str:
    """Return the scheme and the host of a URL; the rest may contain secrets."""
    parsed = httpx2.URL(url)
    return f"{parsed.scheme}://{parsed.netloc.decode('ascii')}"


def _find_reason(error: BaseException | None) -> str:
    """Return the message of the operating system at the root of an error."""
    while error is not None:
        match error:
            case BaseExceptionGroup():
                # One failed attempt for each address of the host.
                error = error.exceptions[0]
                continue
            case ssl.SSLError():
                return (error.reason or "").replace("_", " ").lower()
            case socket.gaierror():
                return (error.strerror or "").lower()
            case OSError(errno=int() as number):
                return os.strerror(number).lower()
        error = error.__cause__ or error.__context__
    return ""


async def _read_start(response: httpx2.Response, limit: int) -> bytes:
    """Read at least `limit` bytes of a body, or all of it."""
    start = b""
    async for chunk in response.aiter_bytes():
        start += chunk
        if len(start) >= limit:
            break
    return start


class ApiModel:
    """The common part of the adapters: a model behind an HTTP API."""

    def __init__(
        self,
        model: str,
        *,
        url: str,
        window: int,
        price: base.Price | None,
        headers: Mapping[str, str],
        extra: Mapping[str, Any] | None,
        timeout: float,
        advice: provider_errors.Advice,
    ) -> None:
        self.model = model
        self._url, self._window, self._price = url, window, price
        self._extra = dict(extra or {})
        self._advice = advice
        sent = {"content-type": "application/json", "accept": "application/json, text/event-stream", **headers}
        self._http = HttpClient(advice, sent, timeout=timeout)

    @property
    def name(self) -> str:
        return self._advice.model

    @property
    def window(self) -> int:
        return self._window

    async def close(self) -> None:
        await self._http.close()

    async def _post(
        self, body: Mapping[str, Any], parser: stream_parser.StreamParser
    ) -> AsyncGenerator[base.Delta, None]:
        """Send a request and yield the deltas of its reply."""
        try:
            async with aclosing(self._http.post_stream(self._url, bytes(request_common.encode(body)))) as events:
                async for event in events:
                    for delta in parser.feed(event.event, event.data):
                        yield delta
                    if parser.done:
                        await _drain(events)
                        break
        except errors.ModelCut:
            # A server may close the connection as soon as it has sent the finish reason.
            if not parser.complete:
                raise
        for delta in parser.end():
            yield delta


async def _drain(events: AsyncGenerator[httpx2.ServerSentEvent, None]) -> None:
    """Read the rest of a body, so that the connection can be reused."""
    with suppress(errors.ModelError, TimeoutError):
        async with asyncio.timeout(DRAIN_TIMEOUT):
            async for _ in events:
                pass
