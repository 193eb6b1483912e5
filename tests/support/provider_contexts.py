"""Random contexts for providers, and the request that Anthropic gets for a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies

from holdfast import types
from holdfast.model import base
from holdfast.model.anthropic import request as anthropic_request
from tests.support.provider_calls import call, call_message, message, reasoning, result_message

IMAGE = {"type": "image", "media_type": "image/jpeg", "data": "aGk="}


def anthropic_body(messages: Sequence[types.Message], *, raw: bool = False, extra: Any = None, **more: Any) -> Any:
    """Return the request to Anthropic as the provider decodes it, or with `raw` before it is encoded."""
    request = base.Request(messages=messages, **more)
    body = anthropic_request.build(request, model="claude", max_output=100, extra=extra)
    return body if raw else msgspec.json.decode(msgspec.json.encode(body))


def any_message(provider: str) -> strategies.SearchStrategy[types.Message]:
    """Return a strategy for messages of every role, with valid and odd contents, calls and ids."""
    ids = strategies.sampled_from(["a", "b", "c d", "", "x" * 60])
    texts = strategies.sampled_from(["", " ", "hello", "ü 🌊"])
    part = strategies.sampled_from(
        [
            {"type": "text", "text": "t"},
            {"type": "text", "text": ""},
            {"type": "?"},
            {"type": "image", "blob": "b"},
            IMAGE,
            reasoning(provider, signature="S"),
        ]
    )
    contents = strategies.one_of(texts, strategies.lists(part, max_size=3))
    names, arguments = strategies.sampled_from(["f", "f.g", ""]), strategies.sampled_from(["{}", "{", {}])
    calls = strategies.lists(strategies.builds(call, ids, names, arguments), max_size=3)
    return strategies.one_of(
        strategies.builds(message, strategies.sampled_from(["user", "assistant", "system"]), contents),
        strategies.builds(lambda calls, content: call_message(*calls, content=content), calls, contents),
        strategies.builds(result_message, ids, contents),
    )
