"""The wire format of OpenAI's chat completions, read and written. Pure.

What a client sends becomes what was said before and what is said now; what became of it goes back as a completion, or
as the chunks of one. Fields that change nothing here are ignored; what would be asked in vain is refused by name.
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

MOST_MESSAGES = 10_000
MOST_IMAGES = 50
PICTURES = ("image/png", "image/jpeg", "image/gif", "image/webp")
SIDE_REQUESTS = (
    # Open WebUI: title, tags, follow-up questions, queries, image prompts, completion; emoji, choice of tools, merging.
    ("### Task:", "<chat_history>"),
    ("Your task is to reflect the speaker's likely facial expression", ""),
    ("Available Tools:", "choose and return the correct tool(s)"),
    ("You have been provided with a set of responses from various models to the latest user query", ""),
    # LibreChat: the titles of its ways to make one.
    ("Provide a concise, 5-word-or-less title for the conversation", ""),
    ("Analyze this conversation and provide:", "title in the detected language"),
    ("Write a concise title for this conversation in the given language", ""),
    ("Please generate a concise title (max 40 characters) for a conversation that starts with", ""),
)
"""Requests that clients send for their own purposes: how each begins, and what else it contains."""

Finish = Literal["stop", "length"]


class Said(msgspec.Struct, frozen=True):
    """What one side said: the words and the pictures."""

    role: Literal["user", "assistant"]
    text: str = ""
    images: tuple[platform.Attachment, ...] = ()


class Asked(msgspec.Struct, frozen=True):
    """A request, read."""

    model: str
    before: tuple[Said, ...]
    """Everything up to the last answer."""
    now: Said
    """What came after it, as one message."""
    instructions: str | None = None
    """The system and developer messages; None where there are none."""
    max_output: int | None = None
    """The longest reply in tokens."""
    stream: bool = False
    usage: bool = False
    """Whether the stream is to end with what it used."""


class Answered(msgspec.Struct, frozen=True):
    """What became of a request, for the wire."""

    id: str
    created: int
    model: str
    text: str = ""
    finish: Finish = "stop"
    usage: types.Usage = types.Usage()


# --- reading -------------------------------------------------------------------------------------------


def read(body: dict[str, Any], models: Sequence[str]) -> Asked:
    """A request as it is meant; Refused names what it cannot be."""
    model = body.get("model")
    if not isinstance(model, str):
        raise _wrong("model", "Name a model: see /v1/models.")
    if model not in models:
        raise requests.Refused(404, f"There is no model {model[:80]!r} here.", param="model", code="model_not_found")
    _refuse_unable(body)
    stream, options = body.get("stream") or False, body.get("stream_options") or {}
    if not isinstance(stream, bool):
        raise _wrong("stream", "stream is true or false.")
    if not isinstance(options, dict) or not isinstance(options.get("include_usage") or False, bool):
        raise _wrong("stream_options", "stream_options has include_usage, which is true or false.")
    if options and not stream:
        raise _wrong("stream_options", "stream_options goes with stream: true.")
    before, now, instructions = _turns(body.get("messages"))
    usage = bool(options.get("include_usage"))
    return Asked(model, before, now, instructions, _max_output(body), stream, usage)


def _max_output(body: dict[str, Any]) -> int | None:
    """The longest reply that is wanted, by the field of today or the one before it."""
    for name in ("max_completion_tokens", "max_tokens"):
        if (found := body.get(name)) is not None:
            if not isinstance(found, int) or isinstance(found, bool) or found < 1:
                raise _wrong(name, f"{name} must be a whole number of 1 or more.")
            return found
    return None


def is_side_request(asked: Asked, more: Sequence[str] = ()) -> bool:
    """Return whether a client asks for a purpose of its own, such as a title. `more` are further beginnings."""
    known = [*SIDE_REQUESTS, *((each, "") for each in more)]
    texts = [text.lstrip() for text in (asked.now.text, asked.instructions or "")]
    return not asked.before and any(
        text.startswith(begins) and contains in text for text in texts for begins, contains in known
    )


def _refuse_unable(body: dict[str, Any]) -> None:
    count = body.get("n")
    if count is not None and (isinstance(count, bool) or count != 1):
        raise _wrong("n", "There is one answer: n is 1.")
    for name in ("tools", "functions"):
        if body.get(name):
            raise _wrong(name, "The agent has tools of its own; it calls none of the client's.")
    for name in ("tool_choice", "function_call"):
        if body.get(name) not in (None, "none", "auto"):
            raise _wrong(name, "The agent has tools of its own; it calls none of the client's.")
    shape = body.get("response_format")
    if shape is not None and not (isinstance(shape, dict) and shape.get("type") == "text"):
        raise _wrong("response_format", "Answers are text.")
    if body.get("audio") is not None or body.get("modalities") not in (None, ["text"]):
        raise _wrong("modalities", "Answers are text.")
    if body.get("logprobs"):
        raise _wrong("logprobs", "There are no log probabilities here.")


def _turns(messages: object) -> tuple[tuple[Said, ...], Said, str | None]:
    """What was said before, what is said now, and the instructions."""
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", "messages is a list of one or more.")
    if len(messages) > MOST_MESSAGES:
        raise _wrong("messages", f"At most {MOST_MESSAGES:,} messages.")
    turns = list[Said]()
    instructions = list[str]()
    for number, message in enumerate(messages):
        said = _said(message, f"messages[{number}]")
        if isinstance(said, str):
            instructions.append(said.strip())
            continue
        if turns and turns[-1].role == said.role:
            turns[-1] = _joined(turns[-1], said)
        else:
            turns.append(said)
    if not turns or turns[-1].role != "user":
        raise _wrong("messages", "The last message is one of the user.")
    now = turns[-1]
    if not now.text.strip() and not now.images:
        raise _wrong("messages", "The last message is empty.")
    told = "\n\n".join(each for each in instructions if each) if instructions else None
    return tuple(turns[:-1]), now, told


def _joined(one: Said, other: Said) -> Said:
    text = "\n\n".join(each for each in (one.text, other.text) if each)
    return Said(one.role, text, one.images + other.images)


def _said(message: object, where: str) -> Said | str:
    """A message; text alone where a program, and not a person, says it."""
    if not isinstance(message, dict):
        raise _wrong(where, "A message is an object.")
    role = message.get("role")
    if role in ("system", "developer"):
        return _content(message.get("content"), where, pictures=False)[0]
    if role not in ("user", "assistant"):
        raise _wrong(f"{where}.role", "A role is system, developer, user or assistant.")
    if message.get("tool_calls") or message.get("function_call"):
        raise _wrong(f"{where}.tool_calls", "The agent has tools of its own; calls of others cannot be given.")
    text, images = _content(message.get("content"), where, pictures=role == "user")
    return Said(role, text, images)


def _content(content: object, where: str, pictures: bool) -> tuple[str, tuple[platform.Attachment, ...]]:
    where = f"{where}.content"
    if content is None or isinstance(content, str):
        return content or "", ()
    if not isinstance(content, list):
        raise _wrong(where, "content is text, or a list of parts.")
    texts, images = list[str](), list[platform.Attachment]()
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("text", "refusal") and isinstance(part.get(kind), str):
            texts.append(part[kind])
        elif kind == "image_url" and pictures:
            images.append(_image(part.get("image_url"), f"{where}[{number}].image_url"))
        else:
            raise _wrong(f"{where}[{number}]", "A part is text, or of a user's message an image_url.")
    if len(images) > MOST_IMAGES:
        raise _wrong(where, f"At most {MOST_IMAGES} pictures.")
    return "\n".join(texts), tuple(images)


def _image(given: object, where: str) -> platform.Attachment:
    """A picture that the request brings along. None is fetched: an address may lead anywhere."""
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str) or not url[:5].lower() == "data:":
        raise _wrong(where, "A picture comes as a data: URL; none is fetched from elsewhere.")
    head, comma, data = url[5:].partition(",")
    media_type, *flags = head.lower().split(";")
    if not comma or media_type not in PICTURES or flags[-1:] != ["base64"]:
        raise _wrong(where, f"A picture is data:TYPE;base64,… of {', '.join(PICTURES)}.")
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(where, "The picture is not base64.") from None
    if not found:
        raise _wrong(where, "The picture is empty.")
    return platform.Attachment(found, media_type)


def _wrong(param: str, message: str) -> requests.Refused:
    return requests.Refused(400, message, param=param, code="invalid_value")


# --- what it becomes -------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """A text that is no command, whatever it begins with: what programs pass on is data."""
    if commands.is_escaped(text) or (commands.is_command(text) and "\n" not in text):
        return f"/{text}"
    return f"\n{text}" if commands.is_command(text) else text


def written(before: Sequence[Said], digests: Sequence[Sequence[str]]) -> list[types.NewMessage]:
    """What was said before, as messages of a log; `digests` are the blobs of each one's pictures."""
    made = []
    for said, blobs in zip(before, digests, strict=True):
        if not said.text.strip() and not blobs:
            continue
        content: types.Content = said.text
        if blobs:
            content = [
                *([{"type": "text", "text": said.text}] if said.text else []),
                *(
                    {"type": "image", "media_type": image.media_type, "blob": blob}
                    for image, blob in zip(said.images, blobs, strict=True)
                ),
            ]
        made.append(types.NewMessage(role=said.role, content=content))
    return made


# --- writing ---------------------------------------------------------------------------------------------


def models(names: Sequence[str]) -> dict[str, Any]:
    return {"object": "list", "data": [model(name) for name in names]}


def model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "holdfast"}


def completion(answered: Answered) -> dict[str, Any]:
    message = {"role": "assistant", "content": answered.text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": answered.finish}
    return {**_head(answered, "chat.completion"), "choices": [choice], "usage": used(answered.usage)}


def first(answered: Answered, asks_usage: bool) -> dict[str, Any]:
    return _chunk(answered, {"role": "assistant", "content": "", "refusal": None}, None, asks_usage)


def delta(answered: Answered, text: str, asks_usage: bool) -> dict[str, Any]:
    return _chunk(answered, {"content": text}, None, asks_usage)


def last(answered: Answered, asks_usage: bool) -> list[dict[str, Any]]:
    """How a stream ends, before [DONE]."""
    ended = _chunk(answered, {}, answered.finish, asks_usage)
    if not asks_usage:
        return [ended]
    return [ended, {**_head(answered, "chat.completion.chunk"), "choices": [], "usage": used(answered.usage)}]


def used(usage: types.Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cache_read, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning, "audio_tokens": 0},
    }


def _chunk(answered: Answered, delta: dict[str, Any], finish: str | None, asks_usage: bool) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    made = {**_head(answered, "chat.completion.chunk"), "choices": [choice]}
    return {**made, "usage": None} if asks_usage else made


def _head(answered: Answered, kind: str) -> dict[str, Any]:
    return {
        "id": answered.id,
        "object": kind,
        "created": answered.created,
        "model": answered.model,
        "system_fingerprint": None,
    }
