"""Signatures of webhooks, both ways. Pure.

Ours is over the time, the id of the delivery where it has one, and the body: `t=TIME,v1=HEX`. So what somebody
overheard is no use after some minutes, and until then it is the same delivery and no other. A sender that changes its
secret may give one signature for each.
"""

from __future__ import annotations

import hmac
import re
from hashlib import sha256

from holdfast.gateway.platforms.http import requests

HEADER, GITHUB = "x-holdfast-signature", "x-hub-signature-256"
WINDOW = 300.0
"""Seconds that a clock may be wrong, and a delivery under way."""
MOST = 10
SHORTEST = 16
"""Characters of a secret."""
ID = "^[A-Za-z0-9_-]{1,100}$"
"""An id of a delivery. No body begins so, which is an object: with an id or without, what is signed is one thing."""


def sign(secret: str, body: bytes, at: float, delivery: str = "") -> str:
    return f"t={int(at)},v1={_made(secret, signed(str(int(at)), delivery, body))}"


def signed(at: str, delivery: str, body: bytes) -> bytes:
    """TIME.ID.BODY, or TIME.BODY where the delivery has no id."""
    return f"{at}.{delivery}{'.' if delivery else ''}".encode() + body


def check(secret: str, given: str, body: bytes, now: float, delivery: str = "") -> str:
    """That whoever has the secret sent this, and lately; what it is known by, which nobody else can make. Refused."""
    if delivery and re.fullmatch(ID, delivery) is None:
        raise requests.Refused(400, "The id of a delivery is 1 to 100 letters, digits, - or _.", code="delivery_id")
    fields = [each.strip().partition("=")[::2] for each in given.split(",")[: MOST + 1]]
    times, made = ([value for name, value in fields if name == wanted] for wanted in ("t", "v1"))
    if len(times) != 1 or not made or len(fields) > MOST:
        raise refused("The signature is t=TIME,v1=HEX.")
    at = times[0]
    if not at.isascii() or not at.isdigit() or len(at) > 12 or abs(now - int(at)) > WINDOW:
        raise refused("The signature is too old, or from a time to come.")
    found = signed(at, delivery, body)
    _compare(secret, made, found)
    return delivery or _known_by(found)


def check_github(secret: str, given: str, body: bytes) -> str:
    """The same for what GitHub signs, which is the body alone: it has no time, and anybody could give it another id.
    So the same body is the same delivery, whenever it comes."""
    scheme, _, made = given.strip().partition("=")
    if scheme != "sha256":
        raise refused("The signature is sha256=HEX.")
    _compare(secret, [made], body)
    return _known_by(body)


def refused(why: str) -> requests.Refused:
    return requests.Refused(401, why, code="invalid_signature")


def _compare(secret: str, given: list[str], signed: bytes) -> None:
    wanted = _made(secret, signed).encode()
    # All of them are compared: how long that takes tells nothing.
    if not any([hmac.compare_digest(wanted, each.encode(errors="surrogatepass")) for each in given]):  # noqa: C419
        raise refused("The signature is wrong.")


def _known_by(signed: bytes) -> str:
    """No id of a delivery begins so."""
    return f"={sha256(signed).hexdigest()}"


def _made(secret: str, signed: bytes) -> str:
    return hmac.new(secret.encode(), signed, "sha256").hexdigest()
