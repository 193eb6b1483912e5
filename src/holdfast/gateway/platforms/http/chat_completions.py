"""Parse requests and build responses of OpenAI's chat completions. Pure.

Fields without a meaning for an agent are ignored; fields whose effect the client would miss are refused by name.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from holdfast import types
from holdfast.agent import commands
from holdfast.gateway import platform
from holdfast.gateway.platforms.http import requests

MAX_MESSAGES = 10_000
_DATA_URL = re.compile(r"data:(image/(?:png|jpeg|gif|webp))(?:;[^;,]*)*;base64,", re.IGNORECASE)
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
T = TypeVar("T")


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

NO_TOOLS = "Client tools are not supported: the agent has its own tools."
TEXT_ONLY = "Only text answers are supported."
_UNSUPPORTED: tuple[tuple[str, tuple[object, ...], str], ...] = (
    ("tools", (None, []), NO_TOOLS),
    ("functions", (None, []), NO_TOOLS),
    ("tool_choice", (None, "none", "auto"), NO_TOOLS),
    ("function_call", (None, "none", "auto"), NO_TOOLS),
    ("response_format", (None, {"type": "text"}), TEXT_ONLY),
    ("audio", (None,), TEXT_ONLY),
    ("modalities", (None, ["text"]), TEXT_ONLY),
    ("logprobs", (None, False), "Log probabilities are not supported."),
)
"""Fields, the values that are accepted, and the error for any other value."""


class _Body(msgspec.Struct):
    model: str
    messages: Annotated[list[Any], msgspec.Meta(min_length=1, max_length=MAX_MESSAGES)]
    n: Literal[1] | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None
    max_completion_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The deprecated name of `max_completion_tokens`."""


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[Any] | None = None
    tool_calls: Any = None
    function_call: Any = None


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: dict[str, Any] | str | None = None


def parse(body: dict[str, Any], models: Sequence[str]) -> ChatRequest:
    """Parse a request. Raises HttpError, which names the invalid field."""
    for name, accepted, message in _UNSUPPORTED:
        if body.get(name) not in accepted:
            raise _invalid(name, message)
    found = _convert(body, _Body)
    if found.model not in models:
        raise requests.HttpError(404, f"Unknown model: {found.model[:80]!r}.", param="model", code="model_not_found")
    if found.stream_options and not found.stream:
        raise _invalid("stream_options", "`stream_options` requires `stream: true`.")
    before, now, instructions = _turns(found.messages)
    usage = bool((found.stream_options or {}).get("include_usage"))
    max_output = found.max_completion_tokens or found.max_tokens
    return ChatRequest(found.model, before, now, instructions, max_output, bool(found.stream), usage)


def is_side_request(request: ChatRequest, more: Sequence[str] = ()) -> bool:
    """Return whether a client asks for its own purpose, such as a title. `more` are further prefixes."""
    known = [*SIDE_REQUESTS, *((each, "") for each in more)]
    texts = [text.lstrip() for text in (request.now.text, request.instructions or "")]
    return not request.before and any(
        text.startswith(prefix) and contains in text for text in texts for prefix, contains in known
    )


def _turns(messages: Sequence[object]) -> tuple[tuple[Turn, ...], Turn, str | None]:
    """Return the history, the new message and the instructions."""
    turns, instructions = list[Turn](), list[str]()
    for number, each in enumerate(messages):
        where = f"messages[{number}]"
        message = _convert(each, _Message, where)
        if message.tool_calls or message.function_call:
            raise _invalid(f"{where}.tool_calls", NO_TOOLS)
        text, images = _content(message, f"{where}.content")
        if message.role in ("system", "developer"):
            instructions.append(text.strip())
        elif turns and turns[-1].role == message.role:
            joined = "\n\n".join(each for each in (turns[-1].text, text) if each)
            turns[-1] = Turn(turns[-1].role, joined, turns[-1].images + images)
        else:
            turns.append(Turn("user" if message.role == "user" else "assistant", text, images))
    if not turns or turns[-1].role != "user":
        raise _invalid("messages", "The last message must have the role user.")
    *before, now = turns
    if not now.text.strip() and not now.images:
        raise _invalid("messages", "The last message is empty.")
    return tuple(before), now, "\n\n".join(filter(None, instructions)) if instructions else None


def _content(message: _Message, where: str) -> tuple[str, tuple[platform.Attachment, ...]]:
    if message.content is None or isinstance(message.content, str):
        return message.content or "", ()
    texts, images = list[str](), list[platform.Attachment]()
    for number, each in enumerate(message.content):
        part = _convert(each, _Part, f"{where}[{number}]")
        text = {"text": part.text, "refusal": part.refusal}.get(part.type)
        if text is not None:
            texts.append(text)
        elif part.type == "image_url" and message.role == "user":
            images.append(_image(part.image_url, f"{where}[{number}].image_url"))
        else:
            raise _invalid(f"{where}[{number}]", "A part must be text or, in a user message, an image_url.")
    return "\n".join(texts), tuple(images)


def _image(given: dict[str, Any] | str | None, where: str) -> platform.Attachment:
    """Decode an embedded image. Addresses are not fetched, because they may lead anywhere."""
    url = str(given.get("url")) if isinstance(given, dict) else given or ""
    found = _DATA_URL.match(url)
    if found is None:
        raise _invalid(where, "An image must be a data: URL of a PNG, JPEG, GIF or WebP; addresses are not fetched.")
    try:
        data = base64.b64decode(url[found.end() :], validate=True)
    except ValueError:
        data = b""
    if not data:
        raise _invalid(where, "The image is empty or not base64.")
    return platform.Attachment(data, found[1].lower())


def _convert(value: object, kind: type[T], where: str = "") -> T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        raise _invalid(f"{where}{path.rstrip('`').split('[...]')[0]}".removeprefix("."), f"{problem}.") from None


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
