"""Whatever words a provider has for it, the same thing is the same error, and no error has a key in it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast import errors
from holdfast.model import provider_errors

ASKED = provider_errors.Advice(model="some/model", key="Set SOME_KEY.", missing="Check the name of the model.")
NOW = 1_700_000_000.0


def refused(status: int, body: Any = b"", headers: dict[str, str] | None = None) -> errors.ModelError:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return provider_errors.from_status(status, headers or {}, content, ASKED, now=NOW, secrets=["hunter22-secret"])


def told(message: str, **more: Any) -> dict[str, Any]:
    return {"error": {"message": message, **more}}


OVERFLOWS: list[tuple[str, int, Any]] = [
    ("openai", 400, told("Too long.", type="invalid_request_error", code="context_length_exceeded")),
    (
        "openai, in words",
        400,
        told(
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 8545 tokens. "
            "Please reduce the length of the messages."
        ),
    ),
    ("openai, newer", 400, told("Your input exceeds the context window of this model. Please adjust your input.")),
    (
        "openai, more than a minute allows",
        429,
        told("Request too large for gpt-4 on tokens per min (TPM): Limit 10000, Requested 12000.", code="rate_limit"),
    ),
    (
        "anthropic",
        400,
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "prompt is too long: 213462 tokens > 200000 maximum"},
        },
    ),
    (
        "anthropic, with the reply",
        400,
        told("input length and `max_tokens` exceed context limit: 199000 + 8192 > 200000"),
    ),
    ("anthropic, bytes", 413, told("Request exceeds the maximum size", type="request_too_large")),
    (
        "llama.cpp",
        400,
        told("the request exceeds the available context size, try increasing it", type="exceed_context_size_error"),
    ),
    ("llama.cpp, older", 500, told("the request exceeds the available context size. try increasing the context size")),
    (
        "vllm",
        400,
        {
            "object": "error",
            "message": "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    ("ollama", 400, {"error": "prompt too long; exceeded max context length by 5000 tokens"}),
    ("ollama, as openai", 400, told("the input length exceeds the context length")),
    (
        "lm studio",
        400,
        {"error": "The number of tokens to keep from the initial prompt is greater than the context length"},
    ),
    (
        "openrouter",
        400,
        told("This endpoint's maximum context length is 131072 tokens. However, you requested about 150000 tokens"),
    ),
    (
        "openrouter, its provider's words",
        400,
        told("Provider returned error", code=400, metadata={"raw": '{"error":{"message":"prompt is too long"}}'}),
    ),
    (
        "gemini, in a list",
        400,
        [told("The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).", code=400)],
    ),
    ("groq", 400, told("Please reduce the length of the messages or completion.")),
    ("groq, by size", 413, told("Request too large for model `x` on tokens per minute (TPM): Limit 6000")),
    (
        "mistral",
        400,
        {
            "object": "error",
            "message": "Prompt contains 65673 tokens, too large for model with 32768 maximum context length",
        },
    ),
    ("deepseek", 400, told("This model's maximum context length is 65536 tokens.", type="invalid_request_error")),
    (
        "xai",
        400,
        {"code": "x", "error": "This model's maximum prompt length is 131072 but the request contains 537812"},
    ),
    ("together", 422, told("The input (140000 tokens) is longer than the model's context length (131072 tokens).")),
    ("bedrock", 400, {"message": "Input is too long for requested model."}),
    ("minimax", 400, told("invalid params, context window exceeds limit")),
    ("kimi", 400, told("Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)")),
    ("qwen", 400, told("Range of input length should be [1, 129024]")),
    ("copilot", 400, told("prompt token count of 130000 exceeds the limit of 128000")),
    ("fastapi", 422, {"detail": [{"msg": "maximum context length is 2048 tokens", "loc": []}]}),
    ("nobody knows", 413, b""),
    ("in few words", 400, told("Maximum context exceeded")),
    ("as a server error", 500, told("context length exceeded", type="server_error")),
    ("as text", 500, b"Internal error: too many tokens in the prompt"),
    ("beside words of limits", 400, told("context_length_exceeded. See also the page on rate limits.")),
    ("litellm", 400, told("litellm.ContextWindowExceededError: it is too long")),
    ("vllm, by its setting", 400, told("The decoder prompt (length 5000) is longer than the maximum model length")),
    ("tgi", 422, {"error": "`inputs` tokens + `max_new_tokens` must be <= 4096", "error_type": "validation"}),
    ("cohere", 400, {"message": "too many tokens: total number of tokens in the prompt cannot exceed 4081"}),
    ("lm studio, later", 400, {"error": "Context size has been exceeded."}),
    ("in an unknown shape", 400, {"errors": [{"title": "Bad", "description": "The prompt is too long"}]}),
]


@pytest.mark.parametrize(("status", "body"), [case[1:] for case in OVERFLOWS], ids=[case[0] for case in OVERFLOWS])
def test_overflow_is_one_error_whoever_says_it(status: int, body: Any) -> None:
    error = refused(status, body)
    assert isinstance(error, errors.ContextOverflow)
    assert not error.retryable
    assert "Type /compact" in str(error)


OTHERS: list[tuple[str, int, Any, type[errors.ModelError], bool]] = [
    ("a wrong key", 401, told("Incorrect API key provided: sk-abc123."), errors.KeyRefused, False),
    ("a forbidden model", 403, told("no access"), errors.KeyRefused, False),
    ("an unknown model", 404, told("The model `x` does not exist"), errors.RequestRefused, False),
    ("a wrong field", 400, told("Unsupported parameter: 'max_tokens'"), errors.RequestRefused, False),
    (
        "too long a reply",
        400,
        told("max_tokens is too large: 100000. This model supports at most 16384 completion tokens"),
        errors.RequestRefused,
        False,
    ),
    ("elsewhere", 307, b"", errors.RequestRefused, False),
    ("no credit", 402, told("Insufficient credits"), errors.RequestRefused, False),
    ("no quota", 429, told("You exceeded your current quota", code="insufficient_quota"), errors.RequestRefused, False),
    ("too often", 429, told("Rate limit reached"), errors.ModelBusy, True),
    ("too many tokens a minute", 429, told("Rate limit: too many tokens per minute"), errors.ModelBusy, True),
    ("throttled", 429, {"message": "Too many tokens, please wait before trying again."}, errors.ModelBusy, True),
    ("a large picture", 400, told("messages.0.content.1: image exceeds 5 MB maximum"), errors.RequestRefused, False),
    ("a long name", 400, told("'tools[0].name' is longer than 64 characters"), errors.RequestRefused, False),
    (
        "too often, with much",
        429,
        told("This would exceed your account's rate limit for long context requests"),
        errors.ModelBusy,
        True,
    ),
    ("too slow", 408, b"", errors.ModelBusy, True),
    ("in conflict", 409, b"", errors.ModelBusy, True),
    ("a web page", 502, b"<html><body>Bad gateway</body></html>", errors.ModelServerError, True),
    ("internal", 500, told("Internal server error", type="server_error"), errors.ModelServerError, True),
    ("loading", 503, told("Loading model", code=503, type="unavailable_error"), errors.ModelBusy, True),
    ("overloaded", 529, told("Overloaded", type="overloaded_error"), errors.ModelBusy, True),
]


@pytest.mark.parametrize(
    ("status", "body", "kind", "retryable"), [case[1:] for case in OTHERS], ids=[case[0] for case in OTHERS]
)
def test_status_tells_what_went_wrong(status: int, body: Any, kind: type[errors.ModelError], retryable: bool) -> None:
    error = refused(status, body)
    assert type(error) is kind
    assert error.retryable is retryable
    assert (error.status, error.model) == (status, "some/model")
    assert "some/model" in str(error)
    assert "<html" not in str(error)


def test_errors_say_what_to_do_next() -> None:
    assert str(refused(401, told("Nope."))) == "some/model refused the key (401): Nope. Set SOME_KEY."
    assert str(refused(404)) == "some/model refused the request (404). Check the name of the model."
    assert "Add credit" in str(refused(402))
    assert str(refused(500, told("Oops."))) == "some/model reported a server error (500): Oops. Try again later."


@pytest.mark.parametrize(
    ("headers", "reason", "then"),
    [
        ({}, "", "Try again later."),
        ({"retry-after": "0"}, "", "Try again later."),
        ({"retry-after": "0.2"}, "", "It asks to wait 1 s."),
        ({"retry-after": "100"}, "", "It asks to wait 100 s."),
        ({"retry-after": "101"}, "", "It asks to wait 2 min."),
        ({"retry-after": "6000"}, "", "It asks to wait 100 min."),
        ({"retry-after": "99999"}, "", "It asks to wait 28 h."),
        ({"retry-after": "900000000"}, "", "It asks to wait 250,000 h."),
        ({"retry-after": "90"}, "Please try again in 90s.", "Please try again in 90s. Try again later."),
    ],
)
def test_who_limits_requests_says_how_long_to_wait(headers: dict[str, str], reason: str, then: str) -> None:
    assert str(refused(429, told(reason), headers)).endswith(then)


IN_STREAM: list[tuple[str, Any, type[errors.ModelError], type[errors.ModelError]]] = [
    ("overloaded", told("Overloaded", type="overloaded_error"), errors.ModelBusy, errors.ModelCut),
    ("server error", told("The server had an error", type="server_error"), errors.ModelServerError, errors.ModelCut),
    ("a broker's fault", told("Provider disconnected", code=502), errors.ModelServerError, errors.ModelCut),
    ("a word", {"error": "llama runner has exited"}, errors.ModelServerError, errors.ModelCut),
    ("nothing known", {}, errors.ModelServerError, errors.ModelCut),
    ("too long", told("", code="context_length_exceeded"), errors.ContextOverflow, errors.ContextOverflow),
    ("too long, in words", told("Too many tokens."), errors.ContextOverflow, errors.ContextOverflow),
    ("too long, as text", "the prompt is too long", errors.ContextOverflow, errors.ContextOverflow),
    (
        "too long, with a status",
        told("Maximum context reached", code=500),
        errors.ContextOverflow,
        errors.ContextOverflow,
    ),
    ("a key", told("bad", type="authentication_error"), errors.KeyRefused, errors.KeyRefused),
    ("a request", told("bad", type="invalid_request_error"), errors.RequestRefused, errors.RequestRefused),
]


@pytest.mark.parametrize(("given", "before", "after"), [case[1:] for case in IN_STREAM], ids=[c[0] for c in IN_STREAM])
def test_error_in_the_stream_cuts_only_what_was_begun(
    given: Any, before: type[errors.ModelError], after: type[errors.ModelError]
) -> None:
    assert type(provider_errors.from_object(given, ASKED, has_begun=False)) is before
    assert type(provider_errors.from_object(given, ASKED, has_begun=True)) is after


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-AbCd1234efgh5678",
        "sk-ant-api03-x_y-z0123456789",
        "sk-or-v1-0123456789abcdef",
        "gsk_0123456789abcdefghij",
        "AIzaSyA0123456789abcdefghij",
        "hf_abcdefghijklmnop",
        "xai-abcdefghijklmnop",
        "Bearer abcdef0123456789",
        "hunter22-secret",
    ],
)
def test_no_error_repeats_a_key(secret: str) -> None:
    error = refused(401, told(f"Incorrect API key provided: {secret}. You can find your key at example.org."))
    assert secret.removeprefix("Bearer ") not in str(error)
    assert "Incorrect API key provided" in str(error)
    stream = provider_errors.from_object(told(f"bad {secret}"), ASKED, has_begun=True, secrets=["hunter22-secret"])
    assert secret.removeprefix("Bearer ") not in str(stream)


def test_what_is_quoted_is_short_and_on_one_line() -> None:
    error = refused(400, told("one\ntwo\x1b[31m" + "x" * 5000))
    assert "one two[31m" in str(error)
    assert len(str(error)) < provider_errors.MAX_QUOTATION + 80
    assert str(error).isprintable()


WAITS: list[tuple[str, dict[str, str], str, float | None]] = [
    ("seconds", {"retry-after": "7"}, "", 7.0),
    ("at once", {"retry-after": "0"}, "", 0.0),
    ("half seconds", {"retry-after": "0.5"}, "", 0.5),
    ("a date", {"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"}, "", 30.0),
    ("a date that has passed", {"retry-after": "Tue, 14 Nov 2023 22:00:00 GMT"}, "", 0.0),
    ("nonsense", {"retry-after": "soon"}, "", None),
    ("no number", {"retry-after": "nan"}, "", None),
    ("below nothing", {"retry-after": "-5"}, "", None),
    ("in words", {}, "Please try again in 1m2.5s.", 62.5),
    ("in few words", {}, "Please retry in 250ms", 0.25),
    ("not at all", {}, "Try again.", None),
]


@pytest.mark.parametrize(("headers", "reason", "wait"), [case[1:] for case in WAITS], ids=[case[0] for case in WAITS])
def test_wait_is_what_the_provider_asks_for(headers: dict[str, str], reason: str, wait: float | None) -> None:
    assert refused(429, told(reason), headers).retry_after == (pytest.approx(wait) if wait is not None else None)


def test_what_is_no_use_to_repeat_has_no_wait() -> None:
    assert refused(401, headers={"retry-after": "7"}).retry_after is None
