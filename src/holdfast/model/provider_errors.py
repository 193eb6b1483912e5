"""What providers say when they do not answer, as errors of ours. Pure: a status, its headers and a body go in.

Every provider has its own words for the same few things, so this is one table for all of them: who knows a
new way to say "too long" adds a line here. What is quoted of a provider is short and has no key in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from email import utils as dates
from typing import Any

import msgspec

from holdfast import errors
from holdfast import redaction as shapes

QUOTED = 300

# Ways to say that a conversation is too large for the context window.
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
# Words for that or for a limit on tokens per minute, which is temporary, and words that identify the latter.
# What asks for more in one go than a minute allows does not go away.
_MAY_BE_TOO_LONG = re.compile(
    r"request_too_large|(?:request|payload|entity) (?:entity )?too large|token limit exceeded"
    r"|too many (?:input )?tokens",
    re.IGNORECASE,
)
_PASSES = re.compile(r"rate.?limit|too many requests|throttl|please wait|per.?(?:min|day|hour|second)", re.IGNORECASE)
_NEVER_FITS = re.compile(r"request too large for", re.IGNORECASE)
_NO_CREDIT = re.compile(r"insufficient_quota|insufficient.{0,9}(?:credit|balance|funds)|credit balance", re.IGNORECASE)
_OVERLOAD = re.compile(r"overload|rate_?limit|timeout|unavailable", re.IGNORECASE)
_SERVER_ERROR = re.compile(r"server_?error|api_error|internal", re.IGNORECASE)
_NO_KEY = re.compile(r"authentication|permission_error|invalid_api_key|unauthori[sz]ed", re.IGNORECASE)
_KEYS = re.compile(
    r"(?i:bearer)\s+[^\s\"',]+|\b(?:sk|pk|rk|gsk|xai|hf|key|AIza)[-_][\w*.\-]{4,}|\bAIza[\w\-]{10,}|\beyJ[\w.\-]{20,}"
)
_AGAIN_IN = re.compile(r"(?:try again|retry) in ((?:\d+(?:\.\d+)?(?:ms|h|m|s)\s*)+)", re.IGNORECASE)
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
COMPACT = "Type /compact to shorten it, or use a model with a larger window."
_BUSY = frozenset({408, 409, 425, 429, 503, 529})


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Who was asked, and what a person can do when it fails, one sentence each."""

    model: str
    key: str = "Check the key."
    reach: str = "Check the network, and the proxy settings if there are any."
    missing: str = "Check the name of the model and the base URL."


class Answer(msgspec.Struct, frozen=True):
    """What is known of a refusal: the provider's words for people, its words for programs, its status."""

    reason: str = ""
    codes: str = ""
    status: int | None = None
    unread: str = ""
    """An object whose shape is not known, as text: searched for words, never quoted."""

    @property
    def words(self) -> str:
        return f"{self.codes} {self.reason} {self.unread}"


def of_status(
    status: int, headers: Mapping[str, str], body: bytes, asked: Asked, *, now: float, secrets: Sequence[str] = ()
) -> errors.ModelError:
    """The error for an answer that is not a 200; header names are in lower case, secrets are never quoted."""
    answer = read(body)
    error = _kind(status, answer)
    wait = retry_after(headers, answer.reason, now) if error.retryable else None
    return _made(error, status, _shown(answer, secrets), asked, wait)


def of_object(given: object, asked: Asked, *, said: bool, secrets: Sequence[str] = ()) -> errors.ModelError:
    """The error for an error object inside of a 200, in the stream or instead of it."""
    answer = _answer(given)
    error = _kind_by_words(answer) if answer.status is None else _kind(answer.status, answer)
    wait = retry_after({}, answer.reason, 0.0) if error.retryable else None
    if said and error.retryable:
        error = errors.ModelCut
    return _made(error, answer.status, _shown(answer, secrets), asked, wait)


def is_overflow(words: str) -> bool:
    """Whether these are a provider's words for a conversation that is too large."""
    if _NEVER_FITS.search(words) or _TOO_LONG.search(words):
        return True
    return bool(_MAY_BE_TOO_LONG.search(words)) and not _PASSES.search(words)


def redacted(text: str, secrets: Sequence[str] = ()) -> str:
    """A provider's words, on one line, short, without anything that looks like a key."""
    for secret in secrets:
        text = text.replace(secret, "[key]") if len(secret) >= 4 else text
    # Providers quote keys with stars in them and cut short, so that here even the beginning of one is enough.
    text = " ".join(_KEYS.sub("[key]", shapes.redact(text[: 4 * QUOTED], "[key]")).split())
    text = "".join(char for char in text if char.isprintable())
    return text if len(text) <= QUOTED else text[: QUOTED - 1] + "…"


def retry_after(headers: Mapping[str, str], reason: str, now: float) -> float | None:
    """After how many seconds the provider wants to be asked again, if it says so in any of the usual ways."""
    found = _number(headers.get("retry-after-ms"), 0.001)
    if found is None:
        found = _number(headers.get("retry-after"))
    if found is None:
        found = _until(headers.get("retry-after"), now)
    if found is None:
        spans = [
            _span(headers[name])
            for name in ("x-ratelimit-reset-requests", "x-ratelimit-reset-tokens")
            if name in headers and headers.get(name.replace("reset", "remaining")) == "0"
        ]
        found = max((span for span in spans if span is not None), default=None)
    if found is None and (said := _AGAIN_IN.search(reason)):
        found = _span(said[1])
    return found


def read(body: bytes) -> Answer:
    """What a body says, in any of the shapes errors come in; a web page says nothing."""
    try:
        return _answer(msgspec.json.decode(body))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        text = body[: 4 * QUOTED].decode("utf-8", "replace").strip()
        return Answer("" if text.startswith("<") else text)


def _kind(status: int, answer: Answer) -> type[errors.ModelError]:
    if status in (401, 403):
        return errors.KeyRefused
    if status == 413 or is_overflow(answer.words):
        return errors.ContextOverflow
    if status == 402 or (status == 429 and _NO_CREDIT.search(answer.words)):
        return errors.RequestRefused
    if status in _BUSY:
        return errors.ModelBusy
    if status >= 500:
        return errors.ModelServerError
    return errors.RequestRefused if 300 <= status < 500 else _kind_by_words(answer)


def _kind_by_words(answer: Answer) -> type[errors.ModelError]:
    if is_overflow(answer.words):
        return errors.ContextOverflow
    if _NO_CREDIT.search(answer.words):
        return errors.RequestRefused
    if _NO_KEY.search(answer.codes):
        return errors.KeyRefused
    if _OVERLOAD.search(answer.words):
        return errors.ModelBusy
    if _SERVER_ERROR.search(answer.words) or not answer.codes:
        return errors.ModelServerError
    return errors.RequestRefused


def _made(
    kind: type[errors.ModelError], status: int | None, answer: Answer, asked: Asked, wait: float | None
) -> errors.ModelError:
    shown = f" ({status})" if status else ""
    if kind is errors.KeyRefused:
        what, then = f"{asked.model} refused the key{shown}", asked.key
    elif kind is errors.ContextOverflow:
        what, then = f"The conversation is too large for {asked.model}{shown}", COMPACT
    elif kind is errors.ModelBusy:
        what, then = f"{asked.model} is busy or limits requests{shown}", _later(answer, wait)
    elif kind is errors.ModelServerError:
        what, then = f"{asked.model} reported a server error{shown}", _later(answer, wait)
    elif kind is errors.ModelCut:
        what, then = f"{asked.model} broke off in the middle of its answer{shown}", "Try again."
    elif status == 402 or _NO_CREDIT.search(answer.words):
        what, then = f"The account at {asked.model} has no credit left{shown}", "Add credit, or use another model."
    else:
        what, then = f"{asked.model} refused the request{shown}", asked.missing if status in (404, 405) else ""
    message = f"{what}: {answer.reason.rstrip('.')}. {then}" if answer.reason else f"{what}. {then}"
    return kind(message.strip(), model=asked.model, status=status, retry_after=wait)


def _later(answer: Answer, wait: float | None) -> str:
    """When to try again, unless the provider's own words say it already."""
    return f"It asks to wait {lasting(wait)}." if wait and not _AGAIN_IN.search(answer.reason) else "Try again later."


def lasting(seconds: float) -> str:
    """A time to wait as people say it, never less than it is."""
    for unit, length, below in (("s", 1, 100), ("min", 60, 6_000), ("h", 3_600, 360_000)):
        if seconds <= below:
            return f"{math.ceil(seconds / length)} {unit}"
    return f"{math.ceil(seconds / 86_400):,} days"


def _shown(answer: Answer, secrets: Sequence[str]) -> Answer:
    return msgspec.structs.replace(answer, reason=redacted(answer.reason, secrets))


def _answer(given: Any) -> Answer:
    match given:
        case [first, *_]:
            return _answer(first)
        case {"error": dict() as error}:
            return _answer(error)
        case {"error": str() as reason}:
            return Answer(reason, _codes(given))
        case {"detail": str() as reason} | {"message": str() as reason}:
            return _of_message(reason, given)
        case {"detail": [{"msg": str() as reason}, *_]} | {"message": {"detail": [{"msg": str() as reason}, *_]}}:
            return Answer(reason)
        case dict():
            return Answer("", _codes(given), unread=msgspec.json.encode(given)[: 4 * QUOTED].decode("utf-8", "replace"))
        case str():
            return Answer(given)
    return Answer()


def _of_message(reason: str, given: Mapping[str, Any]) -> Answer:
    metadata = given.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    if isinstance(raw, str) and raw:
        # A broker says only that its provider failed; the provider's own words are what helps.
        reason = f"{reason}: {read(raw.encode()).reason or raw}"
    code = given.get("code", given.get("status_code"))
    status = code if isinstance(code, int) and 300 <= code < 600 else None
    return Answer(reason, _codes(given), status)


def _codes(given: Mapping[str, Any]) -> str:
    return " ".join(str(given[name]) for name in ("code", "type", "status") if isinstance(given.get(name), str))


def _number(text: str | None, unit: float = 1.0) -> float | None:
    try:
        found = float(text) * unit if text else None
    except ValueError:
        return None
    # Neither "nan" nor "inf" is a time to wait.
    return found if found is not None and 0 <= found < 1e9 else None


def _until(text: str | None, now: float) -> float | None:
    try:
        return max(dates.parsedate_to_datetime(text).timestamp() - now, 0.0) if text else None
    except (ValueError, TypeError, OverflowError):
        return None


def _span(text: str) -> float | None:
    found = _SPAN.findall(text)
    return sum(float(amount) * _SECONDS[unit] for amount, unit in found) if found else _number(text)
