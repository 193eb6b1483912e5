"""A provider of models that plays given answers, beside the program under test: it streams, hangs and refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.support import replay_server

MODEL = "openai/played"


class Playing(NamedTuple):
    """A provider at work."""

    url: str
    asked: list[replay_server.Asked]

    @property
    def env(self) -> dict[str, str]:
        """What makes the program ask this provider."""
        return {"OPENAI_BASE_URL": f"{self.url}/v1", "OPENAI_API_KEY": "key", "HOLDFAST_MODEL": MODEL}


@contextmanager
def playing(*answers: replay_server.Answer) -> Iterator[Playing]:
    """A provider in a thread of its own, for as long as the block lasts."""
    ready, ended = threading.Event(), asyncio.Event()
    loop, found = asyncio.new_event_loop(), list[Playing]()

    async def serve() -> None:
        async with replay_server.Server(*answers) as played:
            found.append(Playing(played.url, played.asked))
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    assert ready.wait(60)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(60)
        loop.close()


def said(*words: str) -> replay_server.Answer:
    """A whole reply, in these pieces."""
    return replay_server.Answer([*map(_delta, words), _finish("stop"), replay_server.events("[DONE]")])


def said_and_cut(*words: str) -> replay_server.Answer:
    """A reply that reached the longest one the model may give."""
    return replay_server.Answer([*map(_delta, words), _finish("length"), replay_server.events("[DONE]")])


def said_and_hung(*words: str) -> replay_server.Answer:
    """The beginning of a reply, and then silence until the other side hangs up."""
    return replay_server.Answer([*map(_delta, words)], hang=True)


def called(name: str, arguments: str, *words: str, tokens: int = 0) -> replay_server.Answer:
    """A reply that calls a tool; `tokens` is what the request is said to have taken."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    used = {"prompt_tokens": tokens, "completion_tokens": 0, "total_tokens": tokens}
    counted = replay_server.events({"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": used})
    return replay_server.Answer(
        [
            *map(_delta, words),
            _chunk({"tool_calls": [call]}),
            _finish("tool_calls"),
            counted,
            replay_server.events("[DONE]"),
        ]
    )


def refused(status: int, message: str) -> replay_server.Answer:
    return replay_server.refusal(status, {"error": {"message": message, "type": "invalid_request_error"}})


def _delta(words: str) -> bytes:
    return _chunk({"content": words})


def _chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return replay_server.events({"id": "x", "object": "chat.completion.chunk", "model": "played", "choices": [choice]})


def _finish(reason: str) -> bytes:
    return _chunk({}, reason)
