"""The HTTP client for providers: send a request, yield the events of its stream.

It knows no provider: adapters pass bytes and read events. Every failure becomes an errors.ModelError here; bodies and
headers appear in no error and no log. This is the only module that imports httpx2.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple, Protocol

import httpx2
import msgspec

from holdfast import errors
from holdfast.model import base, provider_errors, request_common

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


class ServerSentEvent(NamedTuple):
    """A server-sent event: its name (`message` by default) and its data."""

    event: str
    data: str


class HttpClient:
    """The connections of one model, opened on demand and reused. Safe for concurrent requests.

    Proxies and certificates come from the environment.
    """

    def __init__(self, advice: provider_errors.Advice, *, timeout: float = READ_TIMEOUT) -> None:
        self._advice = advice
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None
        self._made_for: tuple[asyncio.AbstractEventLoop, bool] | None = None

    async def post_stream(
        self, url: str, headers: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Send a request and yield the events of its stream until the server ends it.

        Raises errors.ModelError only: according to the response, ModelUnreachable if the connection fails before the
        first event, ModelCut after it. Close the iterator (`contextlib.aclosing`) to cancel the request.
        """
        client = self._connect(plain=url.startswith("http://"))
        has_begun = False
        try:
            request = client.build_request("POST", url, headers=_check_headers(headers, self._advice), content=body)
            response = await client.send(request, stream=True)
            try:
                await self._check_response(response, _secrets(headers))
                async for event in httpx2.EventSource(response, max_event_size=MAX_EVENT_BYTES):
                    has_begun = True
                    yield ServerSentEvent(event.event, event.data)
            finally:
                await response.aclose()
        except _FAILURES as error:
            raise self._translate(error, has_begun, url) from None

    async def get(self, url: str, headers: Mapping[str, str]) -> bytes:
        """Return the body of a 200 response, up to MAX_LIST_BYTES. Raises errors.ModelError only."""
        client = self._connect(plain=url.startswith("http://"))
        try:
            async with client.stream("GET", url, headers=_check_headers(headers, self._advice)) as response:
                body = await _read_start(response, MAX_LIST_BYTES)
                if response.status_code != 200:
                    raise self._refusal(response, body, _secrets(headers))
                return body
        except _FAILURES as error:
            raise self._translate(error, False, url) from None

    async def close(self) -> None:
        """Close the connections. A later request opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._made_for and self._made_for[0] is asyncio.get_running_loop():
            await client.aclose()

    def _connect(self, plain: bool) -> httpx2.AsyncClient:
        # Connections belong to the event loop that opened them.
        wanted = (asyncio.get_running_loop(), plain)
        if self._client is None or self._made_for != wanted:
            self._client, self._made_for = self._open(plain), wanted
        return self._client

    def _open(self, plain: bool) -> httpx2.AsyncClient:
        try:
            return httpx2.AsyncClient(
                timeout=httpx2.Timeout(self._timeout, connect=CONNECT_TIMEOUT, pool=None),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8),
                headers={"user-agent": "holdfast"},
                # Loading the certificates takes 50 ms, which plain HTTP does not need; this context trusts none.
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
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

    async def _check_response(self, response: httpx2.Response, secrets: Sequence[str]) -> None:
        """Raise unless the response is an event stream, whatever its content type is called."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code == 200 and not kind.endswith(("json", "html")):
            # Some servers omit the type or name another charset. An event stream is always UTF-8.
            response.headers["content-type"] = "text/event-stream; charset=utf-8"
            return
        body = await _read_start(response)
        if response.status_code != 200:
            raise self._refusal(response, body, secrets)
        raise self._not_a_stream(kind, body, secrets)

    def _refusal(self, response: httpx2.Response, body: bytes, secrets: Sequence[str]) -> errors.ModelError:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return provider_errors.from_status(
            response.status_code, headers, body, self._advice, now=time.time(), secrets=secrets
        )

    def _not_a_stream(self, kind: str, body: bytes, secrets: Sequence[str]) -> errors.ModelError:
        if kind.endswith("json"):
            try:
                given = msgspec.json.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                given = None
            if isinstance(given, dict) and given.get("error"):
                return provider_errors.from_object(given, self._advice, has_begun=False, secrets=secrets)
            return self._error(errors.ModelServerError, "answered with JSON instead of a stream")
        return self._error(errors.ModelServerError, "answered with a web page", "Check the base URL.")

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


class Parser(Protocol):
    """Turns the events of one stream into deltas."""

    @property
    def done(self) -> bool:
        """Whether no further event is expected."""

    @property
    def complete(self) -> bool:
        """Whether the server has sent the reason why the reply ended."""

    def feed(self, name: str, data: str) -> list[base.Delta]: ...
    def end(self) -> list[base.Delta]:
        """Return the last deltas after the end of the stream. Raises ModelCut if the reply is incomplete."""


async def parse_stream(
    events: AsyncGenerator[ServerSentEvent, None], parser: Parser
) -> AsyncGenerator[base.Delta, None]:
    """Yield the deltas that the parser makes of the events."""
    try:
        async with aclosing(events):
            async for event in events:
                for delta in parser.feed(event.event, event.data):
                    yield delta
                if parser.done:
                    await drain(events)
                    break
    except errors.ModelCut:
        # A server may close the connection as soon as it has sent the finish reason.
        if not parser.complete:
            raise
    for delta in parser.end():
        yield delta


async def drain(events: AsyncIterator[ServerSentEvent]) -> None:
    """Read the rest of a body, so that the connection can be reused."""
    with suppress(errors.ModelError, TimeoutError):
        async with asyncio.timeout(DRAIN_TIMEOUT):
            async for _ in events:
                pass


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


def _check_headers(headers: Mapping[str, str], advice: provider_errors.Advice) -> dict[str, str]:
    """Return the headers if HTTP allows their values. The error of the HTTP library would show the key."""
    for value in headers.values():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise errors.KeyRefused(
                f"The key or a header of {advice.model} has characters that cannot be sent. {advice.key}",
                model=advice.model,
            )
    return dict(headers)


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """Return the keys in these headers. Providers may quote them in errors, which must not repeat them."""
    named = ("authorization", "x-api-key", "api-key")
    return [value.removeprefix("Bearer ") for name, value in headers.items() if name.lower() in named]


async def _read_start(response: httpx2.Response, limit: int = MAX_ERROR_BYTES) -> bytes:
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
        key: str | None,
        price: base.Price | None,
        headers: Mapping[str, str],
        extra: Mapping[str, Any] | None,
        timeout: float,
        advice: provider_errors.Advice,
    ) -> None:
        self.model = model
        self._url, self._window, self._price = url, window, price
        self._extra = dict(extra or {})
        self._secrets = (key,) if key else ()
        self._headers = {"content-type": "application/json", "accept": "text/event-stream", **headers}
        self._advice = advice
        self._http = HttpClient(advice, timeout=timeout)

    @property
    def name(self) -> str:
        return self._advice.model

    @property
    def window(self) -> int:
        return self._window

    async def close(self) -> None:
        await self._http.close()

    async def _post(self, body: Mapping[str, Any], parser: Parser) -> AsyncGenerator[base.Delta, None]:
        """Send a request and yield the deltas of its reply."""
        events = self._http.post_stream(self._url, self._headers, bytes(request_common.encode(body)))
        async with aclosing(parse_stream(events, parser)) as deltas:
            async for delta in deltas:
                yield delta
