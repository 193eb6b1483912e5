"""Sign and verify webhooks: Standard Webhooks (https://www.standardwebhooks.com), and GitHub's scheme. Pure.

The signature covers the id, the time and the body of a delivery. A captured delivery is useless after a few minutes,
and until then it has the same id and is stored once.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from hashlib import sha256

from holdfast.gateway.platforms.http import requests

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
GITHUB_SIGNATURE = "x-hub-signature-256"
PREFIX = "whsec_"
TOLERANCE_SECONDS = 300.0
MIN_SECRET = 16
"""The shortest secret, in bytes."""
MAX_SIGNATURES = 10
ID_PATTERN = "^[A-Za-z0-9_-]{1,100}$"


def secret_key(secret: str) -> bytes:
    """Return the key of a secret: base64 after `whsec_`, or the text itself. Raises ValueError."""
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"a secret that begins with {PREFIX} must be base64") from None


def sign(secret: str, delivery: str, body: bytes, at: float) -> dict[str, str]:
    """Return the headers of a delivery."""
    timestamp = str(int(at))
    return {ID: delivery, TIMESTAMP: timestamp, SIGNATURE: f"v1,{_sign(secret, delivery, timestamp, body)}"}


def verify(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> str:
    """Verify a delivery and return its id. Raises HttpError."""
    delivery, timestamp, given = (headers.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not delivery:
        raise refuse(f"The headers {ID}, {TIMESTAMP} and {SIGNATURE} are required.")
    if re.fullmatch(ID_PATTERN, delivery) is None:
        raise requests.HttpError(
            400, f"{ID} must be 1 to 100 letters, digits, hyphens or underscores.", code="delivery_id"
        )
    if not re.fullmatch("[0-9]{1,12}", timestamp) or abs(now - int(timestamp)) > TOLERANCE_SECONDS:
        raise refuse(f"{TIMESTAMP} is missing, too old or in the future.")
    expected = _sign(secret, delivery, timestamp, body).encode()
    # A sender that rotates its secret sends a signature for each.
    signatures = [each.removeprefix("v1,") for each in given.split(" ")[:MAX_SIGNATURES] if each.startswith("v1,")]
    if not any([hmac.compare_digest(expected, each.encode(errors="surrogatepass")) for each in signatures]):  # noqa: C419
        raise refuse("The signature is wrong.")
    return delivery


def verify_github(secret: str, headers: Mapping[str, str], body: bytes) -> str:
    """Verify a delivery of GitHub and return an id for it. Raises HttpError.

    GitHub signs neither the time nor its delivery id. The id is a digest of the body, so a repeated body is always
    the same delivery.
    """
    given = headers.get(GITHUB_SIGNATURE, "").strip()
    expected = "sha256=" + hmac.new(secret_key(secret), body, "sha256").hexdigest()
    if not hmac.compare_digest(expected.encode(), given.encode(errors="surrogatepass")):
        raise refuse("The signature is wrong.")
    return f"={sha256(body).hexdigest()}"


def refuse(message: str) -> requests.HttpError:
    return requests.HttpError(401, message, code="invalid_signature")


def _sign(secret: str, delivery: str, timestamp: str, body: bytes) -> str:
    signed = f"{delivery}.{timestamp}.".encode() + body
    return base64.b64encode(hmac.new(secret_key(secret), signed, "sha256").digest()).decode()
