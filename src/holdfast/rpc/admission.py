"""Decide who may open a WebSocket connection: programs that know the token, and pages of listed origins. Pure.

A page in a browser can reach this machine by its address, or by a host name that resolves to it (DNS rebinding). So the
origin that a browser sends has to be listed, and the host of the request has to be one that is served.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

SUBPROTOCOL = "holdfast.rpc"
"""The WebSocket subprotocol. Pages, which cannot set headers, offer it together with one that contains the token."""
TOKEN_SUBPROTOCOL = "holdfast.token."  # noqa: S105
MIN_TOKEN_CHARACTERS = 16
INVALID_TOKEN = f"The token must have at least {MIN_TOKEN_CHARACTERS} ASCII characters, without spaces and commas."
_SINGLE_HEADERS = ("host", "origin", "authorization")


class HandshakeRejection(NamedTuple):
    """The HTTP response to a rejected request."""

    status: int
    reason: str


class AdmissionRules(msgspec.Struct, frozen=True):
    """Who may connect."""

    token: str
    host: str = "127.0.0.1"
    """The host that the server listens on."""
    origins: frozenset[str] = frozenset()
    """Origins of allowed pages, such as `https://example.org`."""


def check_request(rules: AdmissionRules, path: str, headers: Mapping[str, Sequence[str]]) -> HandshakeRejection | None:
    """Return why a request for a connection is rejected; None if it is accepted. Header names are in lower case."""
    given = {name: [each.strip() for each in values] for name, values in headers.items()}
    if any(len(given.get(name, ())) > 1 for name in _SINGLE_HEADERS):
        return HandshakeRejection(400, "Duplicate header.")
    if not is_served(rules.host, parse_host(_first(given, "host"))):
        return HandshakeRejection(421, "This host is not served here.")
    if "origin" in given and _first(given, "origin") not in rules.origins:
        return HandshakeRejection(403, "This origin is not allowed.")
    if path.partition("?")[0] != "/":
        return HandshakeRejection(404, "Not found.")
    if not has_token(rules.token, given):
        return HandshakeRejection(401, "The token is missing or wrong.")
    return None


def has_token(token: str, headers: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a request has the token, in constant time."""
    kind, _, bearer = _first(headers, "authorization").partition(" ")
    offered = [bearer.strip()] if kind.lower() == "bearer" else []
    protocols = (each.strip() for line in headers.get("sec-websocket-protocol", ()) for each in line.split(","))
    offered += [each.removeprefix(TOKEN_SUBPROTOCOL) for each in protocols if each.startswith(TOKEN_SUBPROTOCOL)]
    return any(hmac.compare_digest(each.encode(), token.encode()) for each in offered)


def is_served(listening: str, requested: str) -> bool:
    """Return whether a host is served. An unknown host name may resolve to this machine by DNS rebinding."""
    if not requested:
        return False
    if requested in ("localhost", listening.lower()) or is_loopback(requested):
        return True
    # Other machines use an IP address, which cannot be rebound.
    return not is_loopback(listening) and _parse_ip(requested) is not None


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached from this machine only."""
    found = _parse_ip(host)
    if found is None:
        return host.lower() == "localhost"
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def parse_host(text: str) -> str:
    """Return the host of a Host header without its port; empty if it is invalid."""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        return host.lower() if closed and (not port or (port[0] == ":" and port[1:].isdigit())) else ""
    host, colon, port = text.partition(":")
    return host.lower().rstrip(".") if not colon or port.isdigit() else ""


def parse_address(text: str) -> tuple[str, int]:
    """Parse `[HOST:]PORT`. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise ValueError("the port must be a number up to 65535.")
    if colon and not host:
        raise ValueError("the host is empty.")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address must be in brackets, as in [::1]:8643.")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_valid_token(text: str) -> bool:
    """Return whether a token is long enough and can be sent in a header."""
    return len(text) >= MIN_TOKEN_CHARACTERS and all("!" <= each <= "~" and each != "," for each in text)


_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(?:\[[0-9a-f:.]+\]|[^\s/?#@:\[\],*]+)(:[0-9]{1,5})?", re.ASCII)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}


def parse_origin(text: str) -> str:
    """Validate an origin as browsers send it. Raises ValueError."""
    found = _ORIGIN.fullmatch(text)
    if found is None or not text.isascii():
        raise ValueError("an origin is a scheme and a host with an optional port, such as https://example.org.")
    scheme, port = found.groups()
    if scheme in _DEFAULT_PORTS and text != text.lower():
        raise ValueError("an origin must be in lower case, as browsers send it.")
    if port is not None and port == _DEFAULT_PORTS.get(scheme):
        raise ValueError(f"browsers omit {port}, the default port of {scheme}.")
    return text


def _parse_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _first(headers: Mapping[str, Sequence[str]], name: str) -> str:
    values = headers.get(name, ())
    return values[0] if values else ""
