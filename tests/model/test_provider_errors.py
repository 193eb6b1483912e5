"""Errors of providers: the same problem is the same error in any wording, and no error contains a key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import errors
from holdfast.model import provider_errors

ADVICE = provider_errors.Advice(model="some/model", key="Set SOME_KEY.", missing="Check the name of the model.")
NOW = 1_700_000_000.0


def from_status(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> errors.ModelError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return provider_errors.from_status(status, headers or {}, content, ADVICE, now=NOW, secrets=["hunter22-secret"])


def error(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


OVERFLOWS = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens.",
    "Your input exceeds the context window of this model. Please adjust your input.",
    "prompt is too long: 213462 tokens > 200000 maximum",
    "The number of tokens to keep from the initial prompt is greater than the context length",
    "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "Please reduce the length of the messages or completion.",
    "Input is too long for requested model.",
    "invalid params, context window exceeds limit",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
    "Range of input length should be [1, 129024]",
    "prompt token count of 130000 exceeds the limit of 128000",
    "context_length_exceeded. See also the page on rate limits.",
    "`inputs` tokens + `max_new_tokens` must be <= 4096",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081",
]
OVERFLOW_BODIES: dict[str, tuple[int, Any]] = {
    "code": (400, error("Too long.", type="invalid_request_error", code="context_length_exceeded")),
    "type": (400, error("Sorry", type="exceed_context_size_error")),
    "more than a minute allows": (429, error("Request too large for gpt-4 on tokens per min (TPM): Limit 10000")),
    "bytes": (413, error("Request exceeds the maximum size", type="request_too_large")),
    "plain": (400, {"object": "error", "message": "maximum context length is 4096 tokens", "code": 400}),
    "text": (400, {"error": "the prompt is too long"}),
    "list": (400, [error("The input token count exceeds the maximum", code=400)]),
    "unknown shape": (400, {"errors": [{"title": "Bad", "description": "The prompt is too long"}]}),
    "broker": (400, error("Provider returned error", metadata={"raw": '{"error":{"message":"prompt is too long"}}'})),
    "details": (422, {"detail": [{"msg": "maximum context length is 2048 tokens", "loc": []}]}),
    "status only": (413, b""),
    "no JSON": (500, b"Internal error: too many tokens in the prompt"),
}


@pytest.mark.parametrize(("status", "body"), [*((400, error(text)) for text in OVERFLOWS), *OVERFLOW_BODIES.values()])
def test_overflow_is_one_error_in_any_wording(status: int, body: Any) -> None:
    found = from_status(status, body)
    assert isinstance(found, errors.ContextOverflow)
    assert not found.retryable
    assert "Type /compact" in str(found)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, error("Incorrect API key provided: sk-abc123."), errors.KeyRefused),
        (404, error("The model `x` does not exist"), errors.RequestRefused),
        (400, error("Unsupported parameter: 'max_tokens'"), errors.RequestRefused),
        (400, error("max_tokens is too large: 100000. This model supports at most 16384"), errors.RequestRefused),
        (307, b"", errors.RequestRefused),
        (429, error("You exceeded your current quota", code="insufficient_quota"), errors.RequestRefused),
        (429, error("Rate limit: too many tokens per minute"), errors.ModelBusy),
        (429, {"message": "Too many tokens, please wait before trying again."}, errors.ModelBusy),
        (429, error("This would exceed your account's rate limit for long context requests"), errors.ModelBusy),
        (408, b"", errors.ModelBusy),
        (503, error("Loading model", code=503, type="unavailable_error"), errors.ModelBusy),
        (502, b"<html><body>Bad gateway</body></html>", errors.ModelServerError),
    ],
)
def test_status_and_words_give_the_error(status: int, body: Any, kind: type[errors.ModelError]) -> None:
    found = from_status(status, body)
    assert type(found) is kind
    assert found.retryable is (kind in (errors.ModelBusy, errors.ModelServerError))
    assert (found.status, found.model) == (status, "some/model")
    assert "some/model" in str(found)
    assert "<html" not in str(found)


def test_errors_give_advice() -> None:
    assert str(from_status(401, error("Nope."))) == "some/model refused the key (401): Nope. Set SOME_KEY."
    assert str(from_status(404)) == "some/model refused the request (404). Check the name of the model."
    assert "Add credit" in str(from_status(402))
    assert str(from_status(500, error("Oops."))) == "some/model reported a server error (500): Oops. Try again later."


Kind = type[errors.ModelError]


@pytest.mark.parametrize(
    ("given", "before", "after"),
    [
        (error("Overloaded", type="overloaded_error"), errors.ModelBusy, errors.ModelCut),
        (error("Provider disconnected", code=502), errors.ModelServerError, errors.ModelCut),
        ({"error": "llama runner has exited"}, errors.ModelServerError, errors.ModelCut),
        (error("Too many tokens."), errors.ContextOverflow, errors.ContextOverflow),
        (error("Maximum context reached", code=500), errors.ContextOverflow, errors.ContextOverflow),
        (error("bad", type="authentication_error"), errors.KeyRefused, errors.KeyRefused),
        (error("bad", type="invalid_request_error"), errors.RequestRefused, errors.RequestRefused),
        ("the prompt is too long", errors.ContextOverflow, errors.ContextOverflow),
        (error("insufficient credit"), errors.RequestRefused, errors.RequestRefused),
    ],
)
def test_temporary_error_is_a_cut_after_the_reply_has_begun(given: Any, before: Kind, after: Kind) -> None:
    assert type(provider_errors.from_object(given, ADVICE, has_begun=False)) is before
    assert type(provider_errors.from_object(given, ADVICE, has_begun=True)) is after


@pytest.mark.parametrize("secret", ["sk-proj-AbCd1234efgh5678", "Bearer abcdef0123456789", "hunter22-secret"])
def test_error_never_repeats_a_key(secret: str) -> None:
    found = from_status(401, error(f"Incorrect API key provided: {secret}. You can find your key at example.org."))
    assert secret.removeprefix("Bearer ") not in str(found)
    assert "Incorrect API key provided" in str(found)
    found = provider_errors.from_object(error(f"bad {secret}"), ADVICE, has_begun=True, secrets=["hunter22-secret"])
    assert secret.removeprefix("Bearer ") not in str(found)


def test_quotation_is_short_and_on_one_line() -> None:
    text = str(from_status(400, error("one\ntwo\x1b[31m" + "x" * 5000)))
    assert "one two[31m" in text
    assert len(text) < provider_errors.MAX_QUOTATION + 80
    assert text.isprintable()


@pytest.mark.parametrize(
    ("header", "reason", "delay", "advice"),
    [
        ("7", "", 7.0, "It asks to wait 7 s."),
        ("0.5", "", 0.5, "It asks to wait 1 s."),
        ("99999", "", 99_999.0, "It asks to wait 28 h."),
        ("Tue, 14 Nov 2023 22:13:50 GMT", "", 30.0, "It asks to wait 30 s."),
        ("soon", "", None, "Try again later."),
        ("nan", "", None, "Try again later."),
        ("", "Please try again in 1m2.5s.", 62.5, "Please try again in 1m2.5s. Try again later."),
        ("", "Please retry in 250ms", 0.25, "Try again later."),
    ],
)
def test_delay_comes_from_the_header_or_the_words(header: str, reason: str, delay: float | None, advice: str) -> None:
    found = from_status(429, error(reason), {"retry-after": header} if header else {})
    assert found.retry_after == (pytest.approx(delay) if delay is not None else None)
    assert str(found).endswith(advice)
    assert from_status(401, error(reason), {"retry-after": header}).retry_after is None
