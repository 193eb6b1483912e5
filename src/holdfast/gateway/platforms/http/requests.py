"""Check requests before they are handled, and build error responses. The error object is OpenAI's, on every path."""

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
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast import errors
from holdfast.gateway import platform

logger = logging.getLogger("holdfast.gateway")

READ_SECONDS, WRITE_SECONDS = 30.0, 60.0
"""How long a client may take to send a request, and to read one piece of the response."""
MAX_ID = 200
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})

RETRY_ELSEWHERE = {"retry-after": "1", "connection": "close"}
"""Sent by a gateway that is stopping: a new connection reaches another gateway that shares the port."""

CHAT = "/v1/chat/completions"
_ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_RESPONSE_HEADERS = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class HttpError(Exception):
    """A request that is answered with an error status."""

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
        kind = _ERROR_TYPES.get(self.status) or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return json_response(self.body, self.status, self.headers)


async def send_response(response: Response, send: Send) -> None:
    """Send a complete response; it needs neither the request nor its scope."""
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body})


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, "application/json")


class RequestFilter:
    """ASGI middleware: limits the size and duration of requests, checks the Host header, and formats errors."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_body: int,
        hosts: frozenset[str] | None,
        max_chat_body: int | None = None,
        read_seconds: float = READ_SECONDS,
        write_seconds: float = WRITE_SECONDS,
    ) -> None:
        self._app, self._read_seconds, self._write_seconds = app, read_seconds, write_seconds
        self._max_body, self._max_chat_body = max_body, max_chat_body or max_body
        self.hosts = hosts
        """The host names that are served; None: any."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def send_in_time(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message.get("headers", ()), *_RESPONSE_HEADERS]}
            async with asyncio.timeout(self._write_seconds):
                await send(message)

        max_body = self._max_chat_body if scope["path"] == CHAT else self._max_body
        try:
            self._check(Headers(scope=scope), max_body)
            scope["app"] = self  # The router then raises HTTPException for unknown paths, which is formatted below.
            await self._app(scope, self._limit_body(receive, max_body), send_in_time)
        except ClientDisconnect:
            logger.debug("a client disconnected in the middle of a request")
        except TimeoutError:
            logger.info("a client did not read its response within %.0f s", self._write_seconds)
        except Exception as error:
            # The border of one request: any error becomes a response and affects no other request.
            if not isinstance(error, HttpError | errors.HoldfastError | HTTPException):
                logger.exception("internal error in a request")
            if not started:
                await refusal_of(error).response()(scope, receive, send_in_time)

    def _check(self, headers: Headers, max_body: int) -> None:
        if self.hosts is not None and parse_host(headers.get("host", "")) not in self.hosts:
            message = "This host name is not served here. Behind a proxy, add it to `hosts` of [gateway.http]."
            raise HttpError(421, message, code="wrong_host")
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy may have used the other header to find the end of the request.
            message = "A request must not have both Content-Length and Transfer-Encoding."
            raise HttpError(400, message, headers={"connection": "close"})
        # The HTTP parser accepts up to 20 digits only.
        if int(headers.get("content-length", "0")) > max_body:
            raise body_too_large(max_body)

    def _limit_body(self, receive: Receive, max_body: int) -> Receive:
        """Wrap `receive` so that a body that is too large or too slow is refused."""
        size, complete = 0, False
        deadline = asyncio.get_running_loop().time() + self._read_seconds

        async def receive_limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()  # Only a disconnect can follow.
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HttpError(
                    408, "The request body did not arrive in time.", headers={"connection": "close"}
                ) from None
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > max_body:
                raise body_too_large(max_body)
            return message

        return receive_limited


def refusal_of(error: Exception) -> HttpError:
    """Return the response to an error. It never contains the message of a database."""
    if isinstance(error, HttpError):
        return error
    if isinstance(error, HTTPException):
        code = "method_not_allowed" if error.status_code == 405 else "not_found"
        return HttpError(error.status_code, f"{error.detail}.", code=code, headers=error.headers)
    if isinstance(error, errors.StoreError):
        logger.warning("a request failed because of the store: %s", error)
        return HttpError(503, "The store is not available. Try again.", code="store", headers={"retry-after": "5"})
    if isinstance(error, errors.InvalidArgument):
        return HttpError(400, str(error))
    if isinstance(error, errors.NoSuchSession):
        return HttpError(404, "No such conversation.", code="conversation_not_found")
    if isinstance(error, errors.HoldfastError):
        logger.warning("a request failed: %s", error)
        return HttpError(500, "The request failed.", code=type(error).__name__)
    return HttpError(500, "Internal error.", code="internal")


_REJECTIONS = {
    "person": (403, "not_allowed", "You don't have access to this agent."),
    "limit": (429, "rate_limit_exceeded", "Rate limit exceeded. Try again later."),
    "size": (413, "too_large", "The message is too large."),
    "empty": (400, "empty", "The message is empty."),
}


def refuse_rejected(rejection: platform.AdmissionResult) -> HttpError:
    """Return the response to a message that was not accepted."""
    status, code, default = _REJECTIONS[rejection.reason]
    headers = {"retry-after": str(ceil(rejection.retry_after))} if rejection.retry_after else None
    return HttpError(status, rejection.message or default, code=code, headers=headers)


def check_ready(handler: platform.Handler | None) -> platform.Handler:
    if handler is None:
        raise HttpError(503, "The gateway is not ready.", code="not_ready", headers=RETRY_ELSEWHERE)
    return handler


def body_too_large(max_body: int) -> HttpError:
    message = f"A request may have at most {max_body:,} bytes. Raise `body` of [gateway.http] to allow more."
    return HttpError(413, message, code="too_large", headers={"connection": "close"})


def parse_host(text: str) -> str:
    """Return the host of a Host header without its port; empty if the header is malformed."""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        port = port.removeprefix(":") if port.startswith(":") or not port else "?"
        return host.lower() if closed and (not port or port.isdigit()) else ""
    host, colon, port = text.partition(":")
    return host.lower().rstrip(".") if not colon or port.isdigit() else ""


def is_loopback(address: str) -> bool:
    """Return whether an address is a loopback address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address == "localhost"
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def served_hosts(host: str, address: str, more: Sequence[str] = ()) -> frozenset[str] | None:
    """Return the host names that requests may name; None: any, because the gateway listens for other machines.

    A foreign web page can use a host name that resolves to this machine. `more` are names of the settings.
    """
    if not is_loopback(address) and not more:
        return None
    return LOCAL_HOSTS | {host.lower(), address.partition("%")[0].lower(), *map(str.lower, more)}


class Tokens:
    """Bearer tokens and their owners. Only digests are kept; all of them are compared each time."""

    def __init__(self, owners: Mapping[str, str], origins: Sequence[str] = ()) -> None:
        for token, owner in owners.items():
            if len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token:
                raise errors.SettingInvalid(
                    f"The token of {owner} must have at least 16 printable ASCII characters without spaces. "
                    "Create one with `openssl rand -hex 24`."
                )
        self._origins = frozenset(origins)
        self._owners = [(sha256(token.encode()).digest(), owner) for token, owner in owners.items()]

    def __bool__(self) -> bool:
        return bool(self._owners)

    def authenticate(self, request: Request) -> str:
        """Return the owner of a request; without configured tokens, every local client is `local`."""
        if not self._owners:
            if request.headers.get("origin", "") not in {"", *self._origins}:
                message = "Without a token, only web pages of `origins` in [gateway.http] may send requests."
                raise HttpError(403, message, code="origin")
            return "local"
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        owner = self._owner(token.strip()) if scheme.lower() == "bearer" else None
        if owner is None:
            raise HttpError(
                401,
                "Missing or unknown token. Send Authorization: Bearer TOKEN.",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return owner

    def _owner(self, token: str) -> str | None:
        digest = sha256(token.encode(errors="surrogatepass")).digest()
        matches = [owner for known, owner in self._owners if hmac.compare_digest(known, digest)]
        return matches[0] if matches else None


async def read_body(request: Request) -> bytes:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HttpError(415, "Content-Encoding is not supported.", code="content_encoding")
    return await request.body()


async def read_object(request: Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request."""
    kind, _, rest = request.headers.get("content-type", "").partition(";")
    charset = rest.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() != "application/json" or charset not in ("", "utf-8"):
        raise HttpError(415, "The body must be JSON: Content-Type: application/json.", code="content_type")
    return decode_object(await read_body(request))


def decode_object(body: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"The body is not JSON: {errors.quote(str(error))}", code="invalid_json") from None
    if not isinstance(found, dict):
        raise HttpError(400, "The body must be a JSON object.", code="invalid_json")
    return found


def check_id(text: str | None, name: str) -> str | None:
    """Validate an id from a header; None if there is none."""
    if text is None:
        return None
    if not 0 < len(text) <= MAX_ID or not text.isprintable() or text != text.strip():
        raise HttpError(400, f"{name} must be 1 to {MAX_ID} printable characters.", param=name)
    return text
