"""The one way out to providers: a request goes out, the events of its stream come in.

The only file of this room that knows httpx2. It knows nothing of any provider: adapters give it bytes and read
events, and whatever goes wrong on the way becomes one of our errors here. Bodies and headers are in no error and in
no log.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple, Protocol

import httpx2
import msgspec

from holdfast import errors
from holdfast.model import base, provider_errors

CONNECT = 10.0
READ = 300.0
GRACE = 0.2

# An event is one delta; but some servers send a whole call, or an image, in one.
LARGEST_EVENT = 64 * 1024 * 1024
LARGEST_REFUSAL = 64 * 1024
LARGEST_LIST = 4 * 1024 * 1024

_FAILURES = (httpx2.InvalidURL, httpx2.DecodingError, httpx2.TransportError)

# No proxy leads to this machine, whatever the environment says.
_HERE = ("all://localhost", "all://127.0.0.1", "all://[::1]")


class Event(NamedTuple):
    """One server-sent event: its name ("message", where it has none) and its data."""

    event: str
    data: str


class Wire:
    """The connections of one model. They are made when they are needed, and kept for the next call.

    Proxies and certificates are those of the environment. One Wire serves any number of calls at once.
    """

    def __init__(self, asked: provider_errors.Asked, *, timeout: float = READ) -> None:
        self._asked = asked
        self._timeout = timeout
        self._client: httpx2.AsyncClient | None = None
        self._made_for: tuple[asyncio.AbstractEventLoop, bool] | None = None

    async def post_stream(self, url: str, headers: Mapping[str, str], body: bytes) -> AsyncGenerator[Event, None]:
        """Send a request and yield the events of its stream until the server ends it.

        Raises errors.ModelError only: by what the server answered, ModelUnreachable before the first event,
        ModelCut after it. Close the iterator (`contextlib.aclosing`) to end the call at the provider.
        """
        client = self._connected(plain=url.startswith("http://"))
        begun = False
        try:
            request = client.build_request("POST", url, headers=_sendable(headers, self._asked), content=body)
            response = await client.send(request, stream=True)
            try:
                await self._refuse_other(response, _secrets(headers))
                async for event in httpx2.EventSource(response, max_event_size=LARGEST_EVENT):
                    begun = True
                    yield Event(event.event, event.data)
            finally:
                await response.aclose()
        except _FAILURES as problem:
            raise self._failure(problem, begun, url) from None

    async def get(self, url: str, headers: Mapping[str, str]) -> bytes:
        """Return the beginning of the body of a 200. Raises errors.ModelError only."""
        client = self._connected(plain=url.startswith("http://"))
        try:
            async with client.stream("GET", url, headers=_sendable(headers, self._asked)) as response:
                body = await _beginning(response, LARGEST_LIST)
                if response.status_code != 200:
                    raise self._refusal(response, body, _secrets(headers))
                return body
        except _FAILURES as problem:
            raise self._failure(problem, False, url) from None

    async def close(self) -> None:
        """Close what is open. The next call opens it anew."""
        client, self._client = self._client, None
        if client is not None and self._made_for and self._made_for[0] is asyncio.get_running_loop():
            await client.aclose()

    def _connected(self, plain: bool) -> httpx2.AsyncClient:
        # Connections belong to the loop they were made in; those of a loop that has ended are gone with it.
        wanted = (asyncio.get_running_loop(), plain)
        if self._client is None or self._made_for != wanted:
            self._client, self._made_for = self._opened(plain), wanted
        return self._client

    def _opened(self, plain: bool) -> httpx2.AsyncClient:
        try:
            return httpx2.AsyncClient(
                timeout=httpx2.Timeout(self._timeout, connect=CONNECT, pool=None),
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=8),
                headers={"user-agent": "holdfast"},
                # To read all certificates takes 50 ms, which a server without any need not cost; this trusts none.
                verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if plain else True,
                mounts=dict.fromkeys(_HERE),
                trust_env=True,
            )
        except (ImportError, ValueError, OSError, httpx2.InvalidURL):
            # A SOCKS proxy without its package, a proxy that is no address, certificates that are not there.
            raise self._error(
                errors.ModelUnreachable,
                "cannot be reached with this proxy or these certificates",
                "Check HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE; SOCKS needs `pip install httpx2[socks]`.",
            ) from None

    async def _refuse_other(self, response: httpx2.Response, secrets: Sequence[str]) -> None:
        """Let an event stream pass, whatever else it is called, and raise for everything that is not one."""
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.status_code == 200 and not kind.endswith(("json", "html")):
            # Some servers leave the type away or name another charset. An event stream is always UTF-8.
            response.headers["content-type"] = "text/event-stream; charset=utf-8"
            return
        body = await _beginning(response)
        if response.status_code != 200:
            raise self._refusal(response, body, secrets)
        raise self._not_a_stream(kind, body, secrets)

    def _refusal(self, response: httpx2.Response, body: bytes, secrets: Sequence[str]) -> errors.ModelError:
        headers = {name.lower(): value for name, value in response.headers.items()}
        return provider_errors.of_status(
            response.status_code, headers, body, self._asked, now=time.time(), secrets=secrets
        )

    def _not_a_stream(self, kind: str, body: bytes, secrets: Sequence[str]) -> errors.ModelError:
        if kind.endswith("json"):
            try:
                given = msgspec.json.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError):
                given = None
            if isinstance(given, dict) and given.get("error"):
                return provider_errors.of_object(given, self._asked, said=False, secrets=secrets)
            return self._error(errors.ModelServerError, "answered with JSON where a stream was asked for")
        return self._error(errors.ModelServerError, "answered with a web page", "Check the base URL.")

    def _failure(self, problem: Exception, begun: bool, url: str) -> errors.ModelError:
        if isinstance(problem, httpx2.InvalidURL | httpx2.UnsupportedProtocol):
            return self._error(errors.RequestRefused, "has no valid base URL", "One begins with https:// or http://.")
        if isinstance(problem, httpx2.DecodingError):
            return self._error(errors.ModelServerError, "sent a stream that cannot be unpacked")
        if isinstance(problem, httpx2.SSEError):
            return self._error(errors.ModelServerError, "sent an event that is too large")
        if begun:
            return self._error(errors.ModelCut, "broke off in the middle of its answer")
        what, then = self._out_of_reach(problem)
        return self._error(errors.ModelUnreachable, f"({_address(url)}) {what}", then)

    def _out_of_reach(self, problem: Exception) -> tuple[str, str]:
        """What is the matter, and what a person can do."""
        if isinstance(problem, httpx2.ConnectTimeout | httpx2.ReadTimeout):
            waited = CONNECT if isinstance(problem, httpx2.ConnectTimeout) else self._timeout
            return f"did not answer for {waited:g} seconds", self._asked.reach
        if isinstance(problem, httpx2.ProxyError):
            return "cannot be reached through the proxy", "Check HTTPS_PROXY."
        if isinstance(problem, httpx2.RemoteProtocolError):
            return "hung up without an answer", self._asked.reach
        if "certificate verify failed" in str(problem).lower():
            then = "Set SSL_CERT_FILE to a file with the certificates to trust."
            return "shows a certificate that is not trusted", then
        reason = _reason(problem)
        return f"cannot be reached: {reason}" if reason else "cannot be reached", self._asked.reach

    def _error(self, kind: type[errors.ModelError], what: str, then: str = "") -> errors.ModelError:
        return kind(f"{self._asked.model} {what}. {then}".strip(), model=self._asked.model)


class Parser(Protocol):
    """What an adapter makes of the events of one stream."""

    @property
    def done(self) -> bool:
        """Whether there is nothing more to come."""

    @property
    def complete(self) -> bool:
        """Whether the server has said why it ended, though the stream may go on."""

    def feed(self, name: str, data: str) -> list[base.Delta]: ...
    def end(self) -> list[base.Delta]:
        """The stream has ended: what is still to be said, or ModelCut where something is missing."""


async def parsed(events: AsyncGenerator[Event, None], parser: Parser) -> AsyncGenerator[base.Delta, None]:
    """The stream of a reply, as its parser reads it."""
    try:
        async with aclosing(events):
            async for event in events:
                for delta in parser.feed(event.event, event.data):
                    yield delta
                if parser.done:
                    await read_out(events)
                    break
    except errors.ModelCut:
        # A server may hang up as soon as it has said why it ended.
        if not parser.complete:
            raise
    for delta in parser.end():
        yield delta


async def read_out(events: AsyncIterator[Event]) -> None:
    """Read the end of a body, which is there by now: then the connection serves the next call too."""
    with suppress(errors.ModelError, TimeoutError):
        async with asyncio.timeout(GRACE):
            async for _ in events:
                pass


def _address(url: str) -> str:
    """Where it was asked: without what may be secret in an address."""
    asked = httpx2.URL(url)
    return f"{asked.scheme}://{asked.netloc.decode('ascii')}"


def _reason(problem: BaseException | None) -> str:
    """What the system said, in its words; it stands at the end of what led to the error at hand."""
    while problem is not None:
        match problem:
            case BaseExceptionGroup():
                # One attempt for each address of a name: the first is as good as any.
                problem = problem.exceptions[0]
                continue
            case ssl.SSLError():
                return (problem.reason or "").replace("_", " ").lower()
            case socket.gaierror():
                return (problem.strerror or "").lower()
            case OSError(errno=int() as number):
                return os.strerror(number).lower()
        problem = problem.__cause__ or problem.__context__
    return ""


def _sendable(headers: Mapping[str, str], asked: provider_errors.Asked) -> dict[str, str]:
    """The headers, once none of them holds what HTTP forbids; a library's own error would show the key."""
    for value in headers.values():
        if not (value.isascii() and value.isprintable() and value == value.strip()):
            raise errors.KeyRefused(
                f"The key or a header of {asked.model} has characters that cannot be sent. {asked.key}",
                model=asked.model,
            )
    return dict(headers)


def _secrets(headers: Mapping[str, str]) -> list[str]:
    """The keys in these headers, which no error may repeat though a provider did."""
    named = ("authorization", "x-api-key", "api-key")
    return [value.removeprefix("Bearer ") for name, value in headers.items() if name.lower() in named]


async def _beginning(response: httpx2.Response, most: int = LARGEST_REFUSAL) -> bytes:
    """Enough of a body to know what it says, however long it is."""
    got = b""
    async for chunk in response.aiter_bytes():
        got += chunk
        if len(got) >= most:
            break
    return got
