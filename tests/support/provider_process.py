"""A model provider with scripted replies, served by a thread: it streams, hangs and refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from anyio import from_thread

from tests.support import replay_server

MODEL = "openai/played"


class Provider(NamedTuple):
    """The address of a running provider, and the requests it received."""

    url: str
    asked: list[replay_server.Asked]

    @property
    def env(self) -> dict[str, str]:
        """The variables that make the program use this provider."""
        return {"OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": "key", "HOLDFAST_MODEL": MODEL}


@contextmanager
def serve(*answers: replay_server.Answer) -> Iterator[Provider]:
    """Give these answers in their order, the last one again and again."""
    opening = replay_server.Server(*answers)
    with from_thread.start_blocking_portal() as portal, portal.wrap_async_context_manager(opening) as server:
        yield Provider(server.url, server.asked)


def reply(*words: str, finish: str = "stop") -> replay_server.Answer:
    """Stream a complete reply in these pieces."""
    return replay_server.Answer([*map(_delta, words), _chunk({}, finish), replay_server.events("[DONE]")])


def hanging_reply(*words: str) -> replay_server.Answer:
    """Stream the beginning of a reply, then nothing until the client disconnects."""
    return replay_server.Answer([*map(_delta, words)], hang=True)


def tool_call(name: str, arguments: str, *words: str, tokens: int = 0) -> replay_server.Answer:
    """Stream a reply that calls a tool; `tokens` is the reported size of the request."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    used = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    usage = replay_server.events({"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": used})
    calls = [_chunk({"tool_calls": [call]}), _chunk({}, "tool_calls"), usage]
    return replay_server.Answer([*map(_delta, words), *calls, replay_server.events("[DONE]")])


def refusal(status: int, message: str) -> replay_server.Answer:
    return replay_server.refusal(status, {"error": {"message": message, "type": "invalid_request_error"}})


def _delta(words: str) -> bytes:
    return _chunk({"content": words})


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return replay_server.events({"id": "x", "object": "chat.completion.chunk", "model": "played", "choices": [choice]})
