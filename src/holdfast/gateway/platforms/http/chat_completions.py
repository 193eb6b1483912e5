"""Parse requests and build responses of OpenAI's chat completions. Pure.

Fields without a meaning for an agent are ignored; fields whose effect the client would miss are refused by name.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from holdfast import types
from holdfast.agent import commands
from holdfast.gateway import platform
from holdfast.gateway.platforms.http import requests

MAX_MESSAGES = 10_000
MAX_IMAGES = 50
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SIDE_REQUESTS = (
    # Open WebUI: title, tags, follow-up questions, queries, image prompts, completion; emoji, choice of tools, merging.
    ("### Task:", "<chat_history>"),
    ("Your task is to reflect the speaker's likely facial expression", ""),
    ("Available Tools:", "choose and return the correct tool(s)"),
    ("You have been provided with a set of responses from various models to the latest user query", ""),
    # LibreChat: title prompts.
    ("Provide a concise, 5-word-or-less title for the conversation", ""),
    ("Analyze this conversation and provide:", "title in the detected language"),
    ("Write a concise title for this conversation in the given language", ""),
    ("Please generate a concise title (max 40 characters) for a conversation that starts with", ""),
)
"""Requests that clients send for their own purposes: a prefix, and a text that must follow."""

Finish = Literal["stop", "length"]


class Turn(msgspec.Struct, frozen=True):
    """Consecutive messages of one role."""

    role: Literal["user", "assistant"]
    text: str = ""
    images: tuple[platform.Attachment, ...] = ()


class ChatRequest(msgspec.Struct, frozen=True):
    """A parsed request."""

    model: str
    before: tuple[Turn, ...]
    """The history up to the last answer."""
    now: Turn
    """The new message."""
    instructions: str | None = None
    """The system and developer messages; None if there are none."""
    max_output: int | None = None
    """The longest reply in tokens."""
    stream: bool = False
    usage: bool = False
    """Whether the stream ends with the token usage."""


class ChatResponse(msgspec.Struct, frozen=True):
    """The answer to a request."""

    id: str
    created: int
    model: str
    text: str = ""
    finish: Finish = "stop"
    usage: types.Usage = types.Usage()


# --- reading -------------------------------------------------------------------------------------------


def parse(body: dict[str, Any], models: Sequence[str]) -> ChatRequest:
    """Parse a request. Raises HttpError, which names the invalid field."""
    model = body.get("model")
    if not isinstance(model, str):
        raise _invalid("model", "`model` is required: see /v1/models.")
    if model not in models:
        raise requests.HttpError(404, f"Unknown model: {model[:80]!r}.", param="model", code="model_not_found")
    _refuse_unsupported(body)
    stream, options = body.get("stream") or False, body.get("stream_options") or {}
    if not isinstance(stream, bool):
        raise _invalid("stream", "`stream` must be a boolean.")
    if not isinstance(options, dict) or not isinstance(options.get("include_usage") or False, bool):
        raise _invalid("stream_options", "`stream_options.include_usage` must be a boolean.")
    if options and not stream:
        raise _invalid("stream_options", "`stream_options` requires `stream: true`.")
    before, now, instructions = _turns(body.get("messages"))
    usage = bool(options.get("include_usage"))
    return ChatRequest(model, before, now, instructions, _max_output(body), stream, usage)


def _max_output(body: dict[str, Any]) -> int | None:
    """Return the longest reply: the current field, or its deprecated name."""
    for name in ("max_completion_tokens", "max_tokens"):
        if (found := body.get(name)) is not None:
            if not isinstance(found, int) or isinstance(found, bool) or found < 1:
                raise _invalid(name, f"`{name}` must be an integer of at least 1.")
            return found
    return None


def is_side_request(request: ChatRequest, more: Sequence[str] = ()) -> bool:
    """Return whether a client asks for its own purpose, such as a title. `more` are further prefixes."""
    known = [*SIDE_REQUESTS, *((each, "") for each in more)]
    texts = [text.lstrip() for text in (request.now.text, request.instructions or "")]
    return not request.before and any(
        text.startswith(prefix) and contains in text for text in texts for prefix, contains in known
    )


def _refuse_unsupported(body: dict[str, Any]) -> None:
    count = body.get("n")
    if count is not None and (isinstance(count, bool) or count != 1):
        raise _invalid("n", "Only one answer is supported: `n` must be 1.")
    for name in ("tools", "functions"):
        if body.get(name):
            raise _invalid(name, "Client tools are not supported: the agent has its own tools.")
    for name in ("tool_choice", "function_call"):
        if body.get(name) not in (None, "none", "auto"):
            raise _invalid(name, "Client tools are not supported: the agent has its own tools.")
    shape = body.get("response_format")
    if shape is not None and not (isinstance(shape, dict) and shape.get("type") == "text"):
        raise _invalid("response_format", "Only text answers are supported.")
    if body.get("audio") is not None or body.get("modalities") not in (None, ["text"]):
        raise _invalid("modalities", "Only text answers are supported.")
    if body.get("logprobs"):
        raise _invalid("logprobs", "Log probabilities are not supported.")


def _turns(messages: object) -> tuple[tuple[Turn, ...], Turn, str | None]:
    """Return the history, the new message and the instructions."""
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages", "`messages` must be a non-empty list.")
    if len(messages) > MAX_MESSAGES:
        raise _invalid("messages", f"`messages` may have at most {MAX_MESSAGES:,} entries.")
    turns = list[Turn]()
    instructions = list[str]()
    for number, message in enumerate(messages):
        turn = _parse_message(message, f"messages[{number}]")
        if isinstance(turn, str):
            instructions.append(turn.strip())
        elif turns and turns[-1].role == turn.role:
            turns[-1] = _join(turns[-1], turn)
        else:
            turns.append(turn)
    if not turns or turns[-1].role != "user":
        raise _invalid("messages", "The last message must have the role user.")
    now = turns[-1]
    if not now.text.strip() and not now.images:
        raise _invalid("messages", "The last message is empty.")
    joined = "\n\n".join(each for each in instructions if each) if instructions else None
    return tuple(turns[:-1]), now, joined


def _join(one: Turn, other: Turn) -> Turn:
    text = "\n\n".join(each for each in (one.text, other.text) if each)
    return Turn(one.role, text, one.images + other.images)


def _parse_message(message: object, where: str) -> Turn | str:
    """Parse a message; a system or developer message is returned as text."""
    if not isinstance(message, dict):
        raise _invalid(where, "A message must be an object.")
    role = message.get("role")
    if role in ("system", "developer"):
        return _content(message.get("content"), where, images=False)[0]
    if role not in ("user", "assistant"):
        raise _invalid(f"{where}.role", "`role` must be system, developer, user or assistant.")
    if message.get("tool_calls") or message.get("function_call"):
        raise _invalid(f"{where}.tool_calls", "Tool calls are not supported: the agent has its own tools.")
    text, found = _content(message.get("content"), where, images=role == "user")
    return Turn(role, text, found)


def _content(content: object, where: str, images: bool) -> tuple[str, tuple[platform.Attachment, ...]]:
    where = f"{where}.content"
    if content is None or isinstance(content, str):
        return content or "", ()
    if not isinstance(content, list):
        raise _invalid(where, "`content` must be text or a list of parts.")
    texts, found = list[str](), list[platform.Attachment]()
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal") and isinstance(part.get(kind), str):
            texts.append(part[kind])
        elif kind == "image_url" and images:
            found.append(_image(part.get("image_url"), f"{where}[{number}].image_url"))
        else:
            raise _invalid(f"{where}[{number}]", "A part must be text or, in a user message, an image_url.")
    if len(found) > MAX_IMAGES:
        raise _invalid(where, f"A message may have at most {MAX_IMAGES} images.")
    return "\n".join(texts), tuple(found)


def _image(given: object, where: str) -> platform.Attachment:
    """Decode an embedded image. Addresses are not fetched, because they may lead anywhere."""
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url[:5].lower() == "data:":
        raise _invalid(where, "An image must be a data: URL; other addresses are not fetched.")
    head, comma, data = url[5:].partition(",")
    media_type, *flags = head.lower().split(";")
    if not comma or media_type not in IMAGE_TYPES or flags[-1:] != ["base64"]:
        raise _invalid(where, f"An image must be data:TYPE;base64,… of {', '.join(IMAGE_TYPES)}.")
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(where, "The image is not base64.") from None
    if not found:
        raise _invalid(where, "The image is empty.")
    return platform.Attachment(found, media_type)


def _invalid(param: str, message: str) -> requests.HttpError:
    return requests.HttpError(400, message, param=param, code="invalid_value")


# --- messages --------------------------------------------------------------------------------------------


def escape_command(text: str) -> str:
    """Escape a text that would be a command: texts from programs are data."""
    if commands.is_escaped(text) or (commands.is_command(text) and "\n" not in text):
        return f"/{text}"
    return f"\n{text}" if commands.is_command(text) else text


def history_messages(before: Sequence[Turn], digests: Sequence[Sequence[str]]) -> list[types.NewMessage]:
    """Return a history as messages of a log; `digests` are the blobs of the images of each turn."""
    messages = []
    for turn, blobs in zip(before, digests, strict=True):
        if not turn.text.strip() and not blobs:
            continue
        content: types.Content = turn.text
        if blobs:
            content = [
                *([{"type": "text", "text": turn.text}] if turn.text else []),
                *(
                    {"type": "image", "media_type": image.media_type, "blob": blob}
                    for image, blob in zip(turn.images, blobs, strict=True)
                ),
            ]
        messages.append(types.NewMessage(role=turn.role, content=content))
    return messages


# --- responses -------------------------------------------------------------------------------------------


def model_list(names: Sequence[str]) -> dict[str, Any]:
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "holdfast"}


def completion(response: ChatResponse) -> dict[str, Any]:
    message = {"role": "assistant", "content": response.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": response.finish}
    return {**_head(response, "chat.completion"), "choices": [choice], "usage": usage_object(response.usage)}


def first_chunk(response: ChatResponse, with_usage: bool) -> dict[str, Any]:
    return _chunk(response, {"role": "assistant", "content": "", "refusal": None}, None, with_usage)


def delta_chunk(response: ChatResponse, text: str, with_usage: bool) -> dict[str, Any]:
    return _chunk(response, {"content": text}, None, with_usage)


def last_chunks(response: ChatResponse, with_usage: bool) -> list[dict[str, Any]]:
    """Return the end of a stream before [DONE]."""
    ended = _chunk(response, {}, response.finish, with_usage)
    if not with_usage:
        return [ended]
    return [ended, {**_head(response, "chat.completion.chunk"), "choices": [], "usage": usage_object(response.usage)}]


def usage_object(usage: types.Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }


def _chunk(response: ChatResponse, delta: dict[str, Any], finish: str | None, with_usage: bool) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    made = {**_head(response, "chat.completion.chunk"), "choices": [choice]}
    return {**made, "usage": None} if with_usage else made


def _head(response: ChatResponse, kind: str) -> dict[str, Any]:
    return {
        "id": response.id,
        "object": kind,
        "created": response.created,
        "model": response.model,
        "system_fingerprint": None,
    }
