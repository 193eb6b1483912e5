"""What every request has to keep to, and how one is refused. The error object is OpenAI's, on every path.

Nothing of a request is believed before it was measured: its size, its time, its headers, its host, its JSON.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import ceil
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import errors
from holdfast.gateway import platform
from holdfast.store import message_codec

logger = logging.getLogger("holdfast.gateway")

MOST_HEADERS, LONGEST_HEADERS = 100, 16 * 1024
DEEPEST = 64
"""How deep JSON may be."""
READING, WRITING = 30.0, 60.0
"""Seconds a client may take to send a request, and to take a piece of the answer."""
LONGEST_ID = 200
HERE = frozenset({"localhost", "127.0.0.1", "::1"})

LATER = {"retry-after": "1", "connection": "close"}
"""Said by a gateway that takes nothing now: by another connection one comes to another gateway."""

CHAT = "/v1/chat/completions"
_ONCE = frozenset(
    {b"host", b"authorization", b"content-type", b"content-length", b"idempotency-key", b"transfer-encoding"}
    | {b"x-holdfast-signature", b"x-hub-signature-256", b"x-holdfast-delivery", b"x-github-delivery"}
)
_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_TOP = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class Refused(Exception):
    """A request that is not done, as whoever sent it is told."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = _KINDS.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return json(self.body, self.status, self.headers)


def json(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


def of_error(error: errors.HoldfastError) -> Refused:
    """What somebody is told of an error of ours; never what a database said."""
    if isinstance(error, errors.StoreError):
        logger.warning("a request met the store failing: %s", error)
        return Refused(503, "The store cannot be reached now. Try again.", code="store", headers={"retry-after": "5"})
    if isinstance(error, errors.InvalidArgument):
        return Refused(400, str(error))
    if isinstance(error, errors.NoSuchSession):
        return Refused(404, "There is no such conversation.", code="conversation_not_found")
    logger.warning("a request failed: %s", error)
    return Refused(500, "That failed.", code=type(error).__name__)


class Gate:
    """Stands before the application: what it lets through is small enough, quick enough and meant for this host."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        longest: int,
        hosts: frozenset[str] | None,
        longest_chat: int | None = None,
        conversation_header: str = "",
        reading: float = READING,
    ) -> None:
        self._app, self._longest, self._longest_chat, self._reading = app, longest, longest_chat or longest, reading
        self._once = _ONCE | {conversation_header.lower().encode()}
        self.hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def timed(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message = {**message, "headers": [*message.get("headers", ()), *_TOP]}
            async with asyncio.timeout(WRITING):
                await send(message)

        longest = self._longest_chat if scope["path"] == CHAT else self._longest
        try:
            check(scope, self.hosts, longest, self._once)
            scope["app"] = self  # So that the router raises what is not there, and it is told as everything is.
            await self._app(scope, self._measured(receive, longest), timed)
        except ClientDisconnect:
            logger.debug("a client went away in the middle of a request")
        except TimeoutError:
            logger.info("a client did not take its answer within %.0f s", WRITING)
        except Exception as error:
            # The border of one request: whatever goes wrong with it is told, and stops no other.
            if not isinstance(error, Refused | errors.HoldfastError | HTTPException):
                logger.exception("a request failed in a way that nobody expected")
            if not begun:
                await told(error).response()(scope, receive, timed)

    def _measured(self, receive: Receive, longest: int) -> Receive:
        """The body, as long as it is not too long and does not take too long."""
        size, whole = 0, False
        until = asyncio.get_running_loop().time() + self._reading

        async def measured() -> Message:
            nonlocal size, whole
            if whole:
                return await receive()  # Nothing but that the client goes away.
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Refused(408, "The request took too long to come.", headers={"connection": "close"}) from None
            size += len(message.get("body", b""))
            whole = not message.get("more_body", False)
            if size > longest:
                raise too_long(longest)
            return message

        return measured


def told(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, errors.HoldfastError):
        return of_error(error)
    if isinstance(error, HTTPException):
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        return Refused(error.status_code, f"{error.detail}.", code=code, headers=error.headers)
    return Refused(500, "That failed.", code="internal")


_NOT_TAKEN = {
    "person": (403, "not_allowed", "You may not speak here."),
    "limit": (429, "rate_limit_exceeded", "That is too much at once. Try again later."),
    "size": (413, "too_large", "That is too large."),
    "empty": (400, "empty", "There is nothing in it to answer."),
}


def not_taken(found: platform.NotTaken) -> Refused:
    """What somebody is told whose message was not taken."""
    status, code, said = _NOT_TAKEN[found.why]
    later = {"retry-after": str(ceil(found.retry_after))} if found.retry_after else None
    return Refused(status, found.say or said, code=code, headers=later)


def too_long(most: int) -> Refused:
    message = f"A request has at most {most:,} bytes here. Raise `body` of [gateway.http] for larger ones."
    return Refused(413, message, code="too_large", headers={"connection": "close"})


def check(scope: Scope, hosts: frozenset[str] | None, longest: int, once: frozenset[bytes] = _ONCE) -> None:
    """Whatever can be said of a request before its body."""
    headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > LONGEST_HEADERS:
        raise Refused(431, "The headers are too many or too long.")
    names = [name.lower() for name, _ in headers]
    for name in once:
        if names.count(name) > 1:
            raise Refused(400, f"The header {name.decode()} came more than once.")
    given = {name.lower(): value.decode("latin-1").strip() for name, value in headers}
    if hosts is not None and host_of(given.get(b"host", "")) not in hosts:
        message = "This host name is not served here. Behind a proxy, add it to `hosts` of [gateway.http]."
        raise Refused(421, message, code="wrong_host")
    # Two ways to tell where a request ends: whoever stands before this may have read it by the other one.
    coding = given.get(b"transfer-encoding", "chunked")
    if coding.lower() != "chunked" or (b"transfer-encoding" in given and b"content-length" in given):
        raise Refused(400, "A request has a Content-Length, or comes in chunks.", headers={"connection": "close"})
    length = given.get(b"content-length", "0")
    if not (length.isascii() and length.isdigit()):
        raise Refused(400, "Content-Length is a number.")
    # Only digits: a number with very many of them is not made.
    if len(length) > 18 or int(length) > longest:
        raise too_long(longest)
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    # No address here needs any of these, so that no way of writing one leads to another.
    if b"%" in raw or b"\\" in raw or b"//" in raw or b"/." in raw or not raw.isascii():
        raise Refused(404, "There is nothing at this address.", code="not_found")


def host_of(text: str) -> str:
    """The host of a Host header, without its port; empty where it is none."""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        port = port.removeprefix(":") if port.startswith(":") or not port else "?"
        return host.lower() if closed and (not port or port.isdigit()) else ""
    host, colon, port = text.partition(":")
    return host.lower().rstrip(".") if not colon or port.isdigit() else ""


def is_here(address: str) -> bool:
    """Whether an address is one of this machine itself."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address == "localhost"
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def served(host: str, address: str, more: Sequence[str] = ()) -> frozenset[str] | None:
    """The hosts that requests to this address may be for; None: any, as others reach it by names nobody knows here.

    A foreign web page can have a host name that resolves to this machine. `more` are names of the settings.
    """
    if not is_here(address) and not more:
        return None
    return HERE | {host_of(host) or host.lower(), address.partition("%")[0].lower(), *map(str.lower, more)}


class Tokens:
    """Bearer tokens, each somebody's. They are kept and compared as digests, all of them each time."""

    def __init__(self, owners: Mapping[str, str], origins: Sequence[str] = ()) -> None:
        for token, owner in owners.items():
            if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
                raise errors.SettingInvalid(
                    f"The token of {owner} is no token: it is 16 or more printable characters. "
                    "Make one with `openssl rand -hex 24`."
                )
        self._origins = frozenset(origins)
        self._owners = [(sha256(token.encode()).digest(), owner) for token, owner in owners.items()]

    def __bool__(self) -> bool:
        return bool(self._owners)

    def owner(self, token: str) -> str | None:
        asked, found = sha256(token.encode(errors="surrogatepass")).digest(), None
        for digest, owner in self._owners:
            if hmac.compare_digest(digest, asked):
                found = owner
        return found

    def of(self, request: Request) -> str:
        """Whose request it is; where no token is set, that of whoever is at this machine."""
        if not self._owners:
            if request.headers.get("origin", "") not in {"", *self._origins}:
                message = "Without a token only web pages of `origins` in [gateway.http] are answered."
                raise Refused(403, message, code="origin")
            return "local"
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        owner = self.owner(token.strip()) if scheme.lower() == "bearer" else None
        if owner is None:
            raise Refused(401, "Say who you are: Authorization: Bearer TOKEN.", code="invalid_api_key", headers=ASKS)
        return owner


ASKS = {"www-authenticate": "Bearer"}


async def body_of(request: Request) -> bytes:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "The body comes as it is, without an encoding.", code="content_encoding")
    return await request.body()


async def object_of(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings."""
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    charset = rest.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != "application/json" or charset not in ("", "utf-8"):
        raise Refused(415, "The body is JSON: Content-Type: application/json.", code="content_type")
    return decoded(await body_of(request))


def decoded(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(400, f"The body is no JSON: {errors.shown(str(error))}", code="invalid_json") from None
    except RecursionError:
        raise Refused(400, f"JSON is at most {DEEPEST} deep here.", code="is_too_deep") from None
    if not isinstance(found, dict):
        raise Refused(400, "The body is an object.", code="invalid_json")
    if message_codec.is_too_deep(found, DEEPEST):
        raise Refused(400, f"JSON is at most {DEEPEST} deep here.", code="is_too_deep")
    return found


def id_of(text: str | None, name: str) -> str | None:
    """An id that somebody chose, from a header or a field; None where there is none."""
    if text is None:
        return None
    if not 0 < len(text) <= LONGEST_ID or not text.isprintable() or text != text.strip():
        raise Refused(400, f"{name} is 1 to {LONGEST_ID} printable characters.", param=name)
    return text
