"""Build requests to a Chat Completions API. Pure.

Servers differ in what they refuse: two messages of one role in a row, a system message within the conversation,
arguments that are not JSON, long ids. The result is valid for all of them. It is also stable: a longer context begins
with the bytes of the shorter one, so that prompt caches hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import content_parts, types
from holdfast.model import base, request_common

IMAGES = "(Images in the tool result.)"

Content = str | list[dict[str, Any]]


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between servers that speak this format."""

    provider: str
    """Reasoning and extra fields of calls are sent back to this provider only."""
    max_tokens: str = "max_tokens"
    """The name of the field that limits the reply."""
    id_length: int = 40
    """The maximum length of the id of a call; up to 9, it has exactly that many letters and digits."""


def build(
    request: base.Request,
    dialect: Dialect,
    *,
    model: str,
    extra: Mapping[str, Any] | None = None,
    without: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the body of the request. Encode it with request_common.encode: its messages are encoded already."""
    system, messages = request_common.system_texts(request)
    body: dict[str, Any] = {
        "model": model,
        "messages": [
            *([{"role": "system", "content": "\n\n".join(system)}] if system else []),
            *_encode_messages(messages, dialect),
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.max_output is not None:
        body[dialect.max_tokens] = max(1, request.max_output)
    if request.temperature is not None:
        body["temperature"] = request.temperature
    body.update(extra or {})
    for field in without:
        body.pop(field, None)
    return body


# --- encoding: the encoded form of a message never changes, so it is cached in the message ---------------


class _EncodedMessage(NamedTuple):
    raw: msgspec.Raw
    ids: Sequence[str] = ()
    """The ids of its calls as they are sent."""


class _EncodedResult(NamedTuple):
    call_id: str
    raw: msgspec.Raw
    images: Content


def _encode_messages(messages: Sequence[types.Message], dialect: Dialect) -> list[msgspec.Raw]:
    key = f"_openai {dialect.provider} {dialect.id_length}"

    def encode(message: types.Message) -> Any:
        cache = message.__dict__
        if key not in cache:
            cache[key] = _encode_message(message, dialect)
        return cache[key]

    sent: list[msgspec.Raw] = []
    images: list[Content] = []  # Only a message of the user can have them.
    turns, all_results = request_common.arrange(messages, encode)
    for place, turn in enumerate(turns):
        last = turn[-1]
        if images and last.role == "assistant":
            sent.append(_encode_user(images))
            images = []
        if len(turn) == 1 and not images:
            sent.append(encode(last).raw)
        elif last.role != "assistant":
            sent.append(_encode_user([*images, *map(_build_content, turn)]))
            images = []
        else:
            texts = [text for message in turn if (text := request_common.content_text(message.content))]
            reply = {**_build_reply(last, dialect), "content": "\n\n".join(texts) or None}
            sent.append(request_common.encode(reply))
        if place in all_results:
            results = [*map(_encode_result, encode(last).ids, all_results[place])]
            sent += [result.raw for result in results]
            images = [result.images for result in results if result.images]
    return [*sent, _encode_user(images)] if images else sent


def _encode_user(contents: Sequence[Content]) -> msgspec.Raw:
    return request_common.encode({"role": "user", "content": _join(contents)})


def _encode_message(message: types.Message, dialect: Dialect) -> _EncodedMessage | None:
    """Encode a message as a turn of its own; None if it is empty."""
    if message.role != "assistant":
        content = _build_content(message)
        return _EncodedMessage(_encode_user([content])) if content else None
    reply = _build_reply(message, dialect)
    ids = [call["id"] for call in reply.get("tool_calls", ())]
    return _EncodedMessage(request_common.encode(reply), ids) if ids or reply["content"] else None


def _encode_result(call_id: str, result: types.Message | None) -> _EncodedResult:
    kept: _EncodedResult | None = result.__dict__.get("_openai result") if result else None
    if kept is None or kept.call_id != call_id:
        text = request_common.content_text(result.content) if result else request_common.NO_RESULT
        raw = request_common.encode({"role": "tool", "tool_call_id": call_id, "content": text})
        images = [*map(_build_image, _images(result))] if result else []
        kept = _EncodedResult(call_id, raw, [{"type": "text", "text": IMAGES}, *images] if images else "")
        if result:
            result.__dict__["_openai result"] = kept
    return kept


def _build_reply(message: types.Message, dialect: Dialect) -> dict[str, Any]:
    reply: dict[str, Any] = {"role": "assistant", "content": request_common.content_text(message.content) or None}
    if message.tool_calls:
        reply.update(_build_reasoning(message, dialect.provider))
        ids = request_common.choose_ids(message.tool_calls, {}, dialect.id_length)
        calls = zip(message.tool_calls, ids, strict=True)
        reply["tool_calls"] = [_build_call(call, call_id, dialect.provider) for call, call_id in calls]
    return reply


def _build_call(call: types.ToolCall, call_id: str, provider: str) -> dict[str, Any]:
    arguments = bytes(request_common.encode_arguments(call.arguments)).decode()
    function = {"name": request_common.safe_name(call.name), "arguments": arguments}
    extra = call.extra.get(provider)
    return {**(extra if isinstance(extra, dict) else {}), "id": call_id, "type": "function", "function": function}


def _build_content(message: types.Message) -> Content:
    if message.role == "system":
        return request_common.wrap_system(message)
    if not _images(message):
        return request_common.content_text(message.content)
    shown: list[dict[str, Any]] = []
    for part in content_parts.parse(message.content):
        if isinstance(part, content_parts.Image):
            shown.append(_build_image(part))
        elif isinstance(part, content_parts.Text) and part.text:
            shown.append({"type": "text", "text": part.text})
    return shown


def _images(message: types.Message) -> list[content_parts.Image]:
    if isinstance(message.content, str):
        return []
    return [part for part in content_parts.parse(message.content) if isinstance(part, content_parts.Image)]


def _build_image(image: content_parts.Image) -> dict[str, Any]:
    url = f"data:{image.media_type};base64,{image.data}" if image.data else image.url
    if not url:
        return {"type": "text", "text": request_common.NO_PICTURE}
    return {"type": "image_url", "image_url": {"url": url}}


def _join(contents: Sequence[Content]) -> Content:
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(content for content in contents if isinstance(content, str))
    listed: list[dict[str, Any]] = []
    for content in contents:
        listed += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return listed


def _build_reasoning(message: types.Message, provider: str) -> dict[str, Any]:
    """Return the reasoning before a call in the field that it came in: some providers expect it back.

    The parser stores the name of the field as the signature.
    """
    fields: dict[str, Any] = {}
    if isinstance(message.content, str):
        return fields
    for part in content_parts.parse(message.content):
        if not isinstance(part, content_parts.Reasoning) or part.provider != provider:
            continue
        if part.signature in ("reasoning", "reasoning_content") and part.text:
            fields[part.signature] = fields.get(part.signature, "") + part.text
        if part.hidden:
            fields.setdefault("reasoning_details", []).extend(_decode_details(part.hidden))
    return fields


def _decode_details(hidden: str) -> list[Any]:
    try:
        return msgspec.json.decode(hidden, type=list[Any])
    except msgspec.DecodeError:
        return []


def _tool(tool: types.ToolSpec) -> dict[str, Any]:
    function = {
        "name": request_common.safe_name(tool.name),
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}
