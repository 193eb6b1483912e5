"""Turn the error responses of providers into errors.ModelError. Pure.

Providers describe the same few problems in different words, so one table serves all of them: to support a new wording
of "too long", add it here. Quotations of a provider are short and contain no key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from email import utils as dates
from typing import Any

import msgspec

from holdfast import errors, redaction

MAX_QUOTATION = 300
BROKE_OFF = "broke off in the middle of its answer"
COMPACT = "Type /compact to shorten it, or use a model with a larger window."

# The conversation is too large for the context window.
_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window|size|limit)?[ _-]?(?:(?:is|was|has been) )?"
    r"(?:exceed|overflow|too (?:long|large|small))"
    r"|max(?:imum)?[ _](?:allowed[ _])?(?:context|prompt|sequence length|model[ _]len|input (?:length|size|tokens))"
    r"|exceed\w*[ _](?:(?!limit)[^.]){0,60}\bcontext|exceed_context|model'?s (?:maximum )?context (?:length|window)"
    r"|(?:greater|larger|longer) than the (?:model'?s )?(?:maximum )?(?:context|model length|number of tokens)"
    r"|(?:prompt|conversation) (?:is |was )?too (?:long|large)|input (?:is |was )?too (?:long|large)"
    r"|reach\w* (?:the |its )?context (?:length|limit|size|window)|configured context size|context length is only"
    r"|input token count.{0,40}exceed|prompt token count of \d+ exceeds|tokens in the prompt cannot exceed"
    r"|exceeded model token limit|input tokens exceed|total tokens .{0,40}exceed|string_above_max_length"
    r"|inputs` tokens|inputs` must have less than|reduce the length of (?:the|your) (?:messages|prompt|input)"
    r"|range of input length should be",
    re.IGNORECASE | re.DOTALL,
)
# Wordings that mean either that or a limit of tokens per minute, which is temporary; wordings of such a limit; and a
# request that is larger than the limit per minute, which will never succeed.
_MAY_BE_TOO_LONG = re.compile(
    r"request_too_large|(?:request|payload|entity) (?:entity )?too large|token limit exceeded"
    r"|too many (?:input )?tokens",
    re.IGNORECASE,
)
_RATE_LIMIT = re.compile(
    r"rate.?limit|too many requests|throttl|please wait|per.?(?:min|day|hour|second)", re.IGNORECASE
)
_NEVER_FITS = re.compile(r"request too large for", re.IGNORECASE)
_NO_CREDIT = re.compile(r"insufficient_quota|insufficient.{0,9}(?:credit|balance|funds)|credit balance", re.IGNORECASE)
_OVERLOAD = re.compile(r"overload|rate_?limit|timeout|unavailable", re.IGNORECASE)
_SERVER_ERROR = re.compile(r"server_?error|api_error|internal", re.IGNORECASE)
_NO_KEY = re.compile(r"authentication|permission_error|invalid_api_key|unauthori[sz]ed", re.IGNORECASE)
_KEYS = re.compile(
    r"(?i:bearer)\s+[^\s\"',]+|\b(?:sk|pk|rk|gsk|xai|hf|key|AIza)[-_][\w*.\-]{4,}|\bAIza[\w\-]{10,}|\beyJ[\w.\-]{20,}"
)
_RETRY_IN = re.compile(r"(?:try again|retry) in ((?:\d+(?:\.\d+)?(?:ms|h|m|s)\s*)+)", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BUSY_STATUS = frozenset({408, 409, 425, 429, 503, 529})
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a model, and one sentence for each problem that the user can solve."""

    model: str
    key: str = "Check the key."
    reach: str = "Check the network, and the proxy settings if there are any."
    missing: str = "Check the name of the model and the base URL."


class ErrorBody(msgspec.Struct, frozen=True):
    """The content of an error response: its message, its codes and its status."""

    reason: str = ""
    codes: str = ""
    status: int | None = None
    unknown: str = ""
    """An object of unknown shape, as text: searched for known words, never quoted."""

    @property
    def words(self) -> str:
        return f"{self.codes} {self.reason} {self.unknown}"


def from_status(
    status: int, headers: Mapping[str, str], body: bytes, advice: Advice, *, now: float, secrets: Sequence[str] = ()
) -> errors.ModelError:
    """Return the error for a response other than 200. Header names are in lower case; secrets are never quoted."""
    content = parse_body(body)
    kind = _classify(status, content)
    delay = parse_retry_after(headers, content.reason, now) if kind.retryable else None
    return _build(kind, status, content, advice, delay, secrets)


def from_object(given: object, advice: Advice, *, has_begun: bool, secrets: Sequence[str] = ()) -> errors.ModelError:
    """Return the error for an error object within a 200 response."""
    content = _parse(given)
    kind = _classify(content.status, content)
    delay = parse_retry_after({}, content.reason, 0.0) if kind.retryable else None
    if has_begun and kind.retryable:
        kind = errors.ModelCut
    return _build(kind, content.status, content, advice, delay, secrets)


def from_event(data: str, advice: Advice, *, has_begun: bool, secrets: Sequence[str] = ()) -> errors.ModelError:
    """Return the error for an error event of a stream."""
    try:
        given = msgspec.json.decode(data)
    except _UNREADABLE:
        given = data
    return from_object(given, advice, has_begun=has_begun, secrets=secrets)


def is_overflow(words: str) -> bool:
    """Whether these words of a provider mean that the conversation is too large."""
    if _NEVER_FITS.search(words) or _TOO_LONG.search(words):
        return True
    return bool(_MAY_BE_TOO_LONG.search(words)) and not _RATE_LIMIT.search(words)


def redact(text: str, secrets: Sequence[str] = ()) -> str:
    """Return a provider's message as one short line without keys."""
    for secret in secrets:
        text = text.replace(secret, "[key]") if len(secret) >= 4 else text
    # Providers quote keys shortened and with stars, so even the beginning of a key is redacted.
    text = " ".join(_KEYS.sub("[key]", redaction.redact(text[: 4 * MAX_QUOTATION], "[key]")).split())
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= MAX_QUOTATION else text[: MAX_QUOTATION - 1] + "…"


def parse_retry_after(headers: Mapping[str, str], reason: str, now: float) -> float | None:
    """Return the seconds after which the provider wants to be asked again, from a header or its words."""
    given = headers.get("retry-after", "")
    match = _RETRY_IN.search(reason)
    try:
        delay = float(given)
    except ValueError:
        try:
            return max(dates.parsedate_to_datetime(given).timestamp() - now, 0.0)
        except (ValueError, TypeError, OverflowError):
            parts = _DURATION.findall(match[1]) if match else ()
            return sum(float(amount) * _SECONDS[unit] for amount, unit in parts) if parts else None
    # Refuse "nan" and "inf".
    return delay if 0 <= delay < 1e9 else None


def parse_body(body: bytes) -> ErrorBody:
    """Return the content of an error response in any known shape; an HTML page has none."""
    try:
        return _parse(msgspec.json.decode(body))
    except _UNREADABLE:
        text = body[: 4 * MAX_QUOTATION].decode("utf-8", "replace").strip()
        return ErrorBody("" if text.startswith("<") else text)


def _classify(status: int | None, content: ErrorBody) -> type[errors.ModelError]:
    if status is None or status < 300:
        return _classify_words(content)
    if status in (401, 403):
        return errors.KeyRefused
    if status == 413 or is_overflow(content.words):
        return errors.ContextOverflow
    if status == 402 or (status == 429 and _NO_CREDIT.search(content.words)):
        return errors.RequestRefused
    if status in _BUSY_STATUS:
        return errors.ModelBusy
    if status >= 500:
        return errors.ModelServerError
    return errors.RequestRefused


def _classify_words(content: ErrorBody) -> type[errors.ModelError]:
    if is_overflow(content.words):
        return errors.ContextOverflow
    if _NO_CREDIT.search(content.words):
        return errors.RequestRefused
    if _NO_KEY.search(content.codes):
        return errors.KeyRefused
    if _OVERLOAD.search(content.words):
        return errors.ModelBusy
    if _SERVER_ERROR.search(content.words) or not content.codes:
        return errors.ModelServerError
    return errors.RequestRefused


def _build(
    kind: type[errors.ModelError],
    status: int | None,
    content: ErrorBody,
    advice: Advice,
    delay: float | None,
    secrets: Sequence[str],
) -> errors.ModelError:
    reason = redact(content.reason, secrets)
    code = f" ({status})" if status else ""
    later = "Try again later."
    if delay and not _RETRY_IN.search(reason):
        later = f"It asks to wait {format_delay(delay)}."
    if kind is errors.KeyRefused:
        what, then = f"{advice.model} refused the key{code}", advice.key
    elif kind is errors.ContextOverflow:
        what, then = f"The conversation is too large for {advice.model}{code}", COMPACT
    elif kind is errors.ModelBusy:
        what, then = f"{advice.model} is busy or limits requests{code}", later
    elif kind is errors.ModelServerError:
        what, then = f"{advice.model} reported a server error{code}", later
    elif kind is errors.ModelCut:
        what, then = f"{advice.model} {BROKE_OFF}{code}", "Try again."
    elif status == 402 or _NO_CREDIT.search(content.words):
        what, then = f"The account at {advice.model} has no credit left{code}", "Add credit, or use another model."
    else:
        what, then = f"{advice.model} refused the request{code}", advice.missing if status in (404, 405) else ""
    message = f"{what}: {reason.rstrip('.')}. {then}" if reason else f"{what}. {then}"
    return kind(message.strip(), model=advice.model, status=status, retry_after=delay)


def format_delay(seconds: float) -> str:
    """Format a delay for people, rounded up."""
    for unit, length, below in (("s", 1, 100), ("min", 60, 6_000)):
        if seconds <= below:
            return f"{math.ceil(seconds / length)} {unit}"
    return f"{math.ceil(seconds / 3_600):,} h"


def _parse(given: Any) -> ErrorBody:
    match given:
        case [first, *_]:
            return _parse(first)
        case {"error": dict() as error}:
            return _parse(error)
        case {"error": str() as reason}:
            return ErrorBody(reason, _find_codes(given))
        case {"detail": str() as reason} | {"message": str() as reason}:
            return _parse_message(reason, given)
        case {"detail": [{"msg": str() as reason}, *_]} | {"message": {"detail": [{"msg": str() as reason}, *_]}}:
            return ErrorBody(reason)
        case dict():
            text = msgspec.json.encode(given)[: 4 * MAX_QUOTATION].decode("utf-8", "replace")
            return ErrorBody("", _find_codes(given), unknown=text)
        case str():
            return ErrorBody(given)
    return ErrorBody()


def _parse_message(reason: str, given: Mapping[str, Any]) -> ErrorBody:
    metadata = given.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, str) and raw:
        # A broker only reports that its provider failed; the provider's message is the useful one.
        reason = f"{reason}: {parse_body(raw.encode()).reason or raw}"
    code = given.get("code", given.get("status_code"))
    status = code if isinstance(code, int) and 300 <= code < 600 else None
    return ErrorBody(reason, _find_codes(given), status)


def _find_codes(given: Mapping[str, Any]) -> str:
    return " ".join(str(given[name]) for name in ("code", "type", "status") if isinstance(given.get(name), str))
