"""Who may open a connection: programs that know the token, and no page of somebody else's. Pure.

A page in a browser can reach this machine, by its address or by a name of its own that leads here. So what a browser
says of where a page comes from has to be named beforehand, and the host has to be one that is served.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec

SPOKEN = "holdfast.rpc"
"""The subprotocol. Who cannot set headers, as pages cannot, offers this one and the token after the next."""
BEARING = "holdfast.token."
SHORTEST = 16
"""Characters of a token."""
TOKENS = f"A token has at least {SHORTEST} characters, of ASCII and without spaces and commas."
"""What else there is cannot be said in a header, or ends it there."""
ONCE = ("host", "origin", "authorization")


class Refused(NamedTuple):
    """Why somebody is not let in, as a status of HTTP."""

    status: int
    reason: str


class Rules(msgspec.Struct, frozen=True):
    """Who is let in."""

    token: str
    host: str = "127.0.0.1"
    """The host it listens at."""
    origins: frozenset[str] = frozenset()
    """Where pages may come from, as browsers say it: `https://example.org`."""


def refused(rules: Rules, path: str, headers: Mapping[str, Sequence[str]]) -> Refused | None:
    """Why this request for a connection is refused; None where it is not. Names of headers are in small letters."""
    given = {name: [each.strip() for each in values] for name, values in headers.items()}
    if any(len(given.get(name, ())) > 1 for name in ONCE):
        return Refused(400, "A header came more than once that comes once.")
    if not is_served(rules.host, host_of(_one(given, "host"))):
        return Refused(421, "This host is not served here.")
    if "origin" in given and _one(given, "origin") not in rules.origins:
        return Refused(403, "Pages from there are not let in.")
    if path.partition("?")[0] != "/":
        return Refused(404, "There is nothing at this address.")
    if not knows(rules.token, given):
        return Refused(401, "The token is missing or wrong.")
    return None


def knows(token: str, headers: Mapping[str, Sequence[str]]) -> bool:
    """Whether a request has the token. How long that takes says nothing of how wrong it is."""
    kind, _, bearer = _one(headers, "authorization").partition(" ")
    offered = [bearer.strip()] if kind.lower() == "bearer" else []
    named = (each.strip() for line in headers.get("sec-websocket-protocol", ()) for each in line.split(","))
    offered += [each.removeprefix(BEARING) for each in named if each.startswith(BEARING)]
    # Digests have one length, and nothing is learnt from where two of them differ.
    wanted = sha256(token.encode()).digest()
    return any(hmac.compare_digest(sha256(each.encode()).digest(), wanted) for each in offered)


def is_served(listening: str, asked: str) -> bool:
    """Whether a host is one of those that are reached here. A name that is not known may lead here from anywhere."""
    if not asked:
        return False
    if asked in ("localhost", listening.lower()) or is_here(asked):
        return True
    # Others come by an address of this machine, which nobody can make lead elsewhere.
    return not is_here(listening) and _address(asked) is not None


def is_here(host: str) -> bool:
    """Whether a host is this machine itself, for itself only."""
    found = _address(host)
    if found is None:
        return host.lower() == "localhost"
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def host_of(text: str) -> str:
    """The host of a Host header, without its port; empty where it is none."""
    if text.startswith("["):
        host, closed, port = text[1:].partition("]")
        return host.lower() if closed and (not port or (port[0] == ":" and port[1:].isdigit())) else ""
    host, colon, port = text.partition(":")
    return host.lower().rstrip(".") if not colon or port.isdigit() else ""


def place(text: str) -> tuple[str, int]:
    """`[HOST:]PORT`, as host and port. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit()) or len(port) > 5 or int(port) > 65535:
        raise ValueError("a port is a number up to 65535.")
    if colon and not host:
        raise ValueError("the host is empty.")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError("an IPv6 address stands in brackets, as in [::1]:8643.")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_token(text: str) -> bool:
    """Whether this is a token that somebody can say and nobody guesses."""
    return len(text) >= SHORTEST and all("!" <= each <= "~" and each != "," for each in text)


_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(?:\[[0-9a-f:.]+\]|[^\s/?#@:\[\],*]+)(:[0-9]{1,5})?", re.ASCII)
_USUAL = {"http": ":80", "https": ":443"}


def origin(text: str) -> str:
    """Where pages come from, as browsers say it. Raises ValueError for what none of them ever says."""
    found = _ORIGIN.fullmatch(text)
    if found is None or not text.isascii():
        raise ValueError("an origin is a scheme and a host, with a port or without, as https://example.org.")
    scheme, port = found.groups()
    if scheme in _USUAL and text != text.lower():
        raise ValueError("browsers say an origin in small letters.")
    if port is not None and port == _USUAL.get(scheme):
        raise ValueError(f"browsers leave {port} out, which is where {scheme} is.")
    return text


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _one(headers: Mapping[str, Sequence[str]], name: str) -> str:
    values = headers.get(name, ())
    return values[0] if values else ""
