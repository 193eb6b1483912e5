"""Build requests to Anthropic's Messages API. Pure.

The API refuses empty text, a conversation that begins or ends with the assistant, a call without its result in the next
message, and other characters in ids and names. Whatever the context holds, the result is valid. It is also stable: a
longer context begins with the bytes of the shorter one, so that the prompt cache hits.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast import content_parts, types
from holdfast.model import base, request_common

PROVIDER = "anthropic"

_CACHE_CONTROL = b',"cache_control":{"type":"ephemeral"}}'
_CACHED_TURNS = 2
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
# The API refuses these at the top of a schema. Tools validate their arguments anyway.
_UNSUPPORTED_AT_TOP = frozenset({"oneOf", "anyOf", "allOf"})


def build(
    request: base.Request,
    *,
    model: str,
    max_output: int,
    provider: str = PROVIDER,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the body of the request. Encode it with request_common.encode: its blocks are encoded already.

    Reasoning is sent back only to the provider that signed it. The API refuses a temperature, so none is sent.
    """
    system, messages = request_common.system_texts(request)
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max(1, max_output if request.max_output is None else request.max_output),
        "messages": _build_turns(messages, provider),
        "stream": True,
    }
    if system:
        body["system"] = _cache_last(list(map(text_block, system)))
    if request.tools:
        body["tools"] = _cache_last([_tool(tool) for tool in request.tools])
    elif called := {call.name for message in messages if message.role == "assistant" for call in message.tool_calls}:
        # The API requires the tools of earlier calls; none of them may be called again.
        body["tools"] = [_tool(types.ToolSpec(name, "", {})) for name in sorted(called)]
        body["tool_choice"] = {"type": "none"}
    return {**body, **(extra or {})}


def text_block(text: str) -> msgspec.Raw:
    return request_common.encode({"type": "text", "text": text})


def _build_turns(messages: Sequence[types.Message], provider: str) -> list[dict[str, Any]]:
    """Return all turns, with the marks up to which the provider caches the prompt."""
    key = f"_anthropic {provider}"

    def encode(message: types.Message) -> Any:
        # The encoded form of a message never changes, so it is cached in the message.
        cache = message.__dict__
        if key not in cache:
            is_reply = message.role == "assistant"
            blocks = _reply_blocks(message, provider) if is_reply else _user_blocks(message)
            cache[key] = blocks if blocks or (is_reply and message.tool_calls) else None
        return cache[key]

    sent: list[dict[str, Any]] = []
    used_ids: dict[str, int] = {}
    results: list[msgspec.Raw] = []
    turns, all_results = request_common.arrange(messages, encode)
    for place, turn in enumerate(turns):
        role, last = ("assistant" if turn[-1].role == "assistant" else "user"), turn[-1]
        if results and role == "assistant":
            sent.append({"role": "user", "content": results})
            results = []
        blocks = [*results, *itertools.chain.from_iterable(map(encode, turn))]
        sent.append({"role": role, "content": blocks})
        results = []
        if place in all_results:
            ids = request_common.choose_ids(last.tool_calls, used_ids)
            blocks += _encode_calls(last, ids)
            results = [*map(_encode_result, ids, all_results[place])]
    if results:
        sent.append({"role": "user", "content": results})
    for turn_sent in [each for each in sent if each["role"] == "user"][-_CACHED_TURNS:]:
        turn_sent["content"][-1] = _cache_here(turn_sent["content"][-1])
    return sent


def _encode_calls(message: types.Message, ids: list[str]) -> list[msgspec.Raw]:
    kept: tuple[list[str], list[msgspec.Raw]] | None = message.__dict__.get("_anthropic calls")
    if kept is None or kept[0] != ids:
        kept = message.__dict__["_anthropic calls"] = (ids, [*map(_call_block, message.tool_calls, ids)])
    return kept[1]


def _encode_result(call_id: str, result: types.Message | None) -> msgspec.Raw:
    kept: tuple[str, msgspec.Raw] | None = result.__dict__.get("_anthropic result") if result else None
    if kept is None or kept[0] != call_id:
        content = _user_blocks(result) if result else [text_block(request_common.NO_RESULT)]
        block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
        kept = (call_id, request_common.encode({**block, "content": content} if content else block))
        if result:
            result.__dict__["_anthropic result"] = kept
    return kept[1]


def _user_blocks(message: types.Message) -> list[msgspec.Raw]:
    if message.role == "system":
        text = request_common.wrap_system(message)
        return [text_block(text)] if text else []
    return list(_encode_parts(content_parts.parse(message.content)))


def _encode_parts(parts: Iterable[content_parts.Part]) -> Iterator[msgspec.Raw]:
    for part in parts:
        if isinstance(part, content_parts.Text) and part.text.strip():
            yield text_block(part.text)
        elif isinstance(part, content_parts.Image):
            yield _image_block(part)


def _image_block(image: content_parts.Image) -> msgspec.Raw:
    kind, data = image.media_type, image.data
    if image.url.startswith("data:"):
        head, _, data = image.url[5:].partition(",")
        kind = head.removesuffix(";base64") if head.endswith(";base64") else ""
    if data and kind in _IMAGE_TYPES:
        return request_common.encode({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}})
    if image.url.startswith("https://"):
        return request_common.encode({"type": "image", "source": {"type": "url", "url": image.url}})
    return text_block(request_common.NO_PICTURE)


def _reply_blocks(message: types.Message, provider: str) -> list[msgspec.Raw]:
    blocks: list[msgspec.Raw] = []
    reasoning: list[msgspec.Raw] = []
    for part in content_parts.parse(message.content):
        if isinstance(part, content_parts.Reasoning):
            reasoning += _reasoning_blocks(part) if part.provider == provider else []
            continue
        # The API accepts no images from the assistant.
        text = part if isinstance(part, content_parts.Text) else content_parts.Text(request_common.NO_PICTURE)
        if encoded := list(_encode_parts([text])):
            blocks += [*reasoning, *encoded]
            reasoning = []
    # The API refuses reasoning that no text or call follows.
    return [*blocks, *reasoning] if message.tool_calls else blocks


def _reasoning_blocks(part: content_parts.Reasoning) -> list[msgspec.Raw]:
    if part.hidden:
        return [request_common.encode({"type": "redacted_thinking", "data": part.hidden})]
    if part.signature:
        return [request_common.encode({"type": "thinking", "thinking": part.text, "signature": part.signature})]
    return []


def _call_block(call: types.ToolCall, call_id: str) -> msgspec.Raw:
    return request_common.encode(
        {
            "type": "tool_use",
            "id": call_id,
            "name": request_common.safe_name(call.name),
            "input": request_common.encode_arguments(call.arguments),
        }
    )


def _tool(tool: types.ToolSpec) -> msgspec.Raw:
    schema = {key: value for key, value in tool.parameters.items() if key not in _UNSUPPORTED_AT_TOP}
    description = {"description": tool.description} if tool.description.strip() else {}
    return request_common.encode(
        {"name": request_common.safe_name(tool.name), **description, "input_schema": {**schema, "type": "object"}}
    )


def _cache_last(blocks: list[msgspec.Raw]) -> list[msgspec.Raw]:
    return [*blocks[:-1], _cache_here(blocks[-1])]


def _cache_here(block: msgspec.Raw) -> msgspec.Raw:
    """Return the block with a mark: the provider caches the prompt up to here."""
    return msgspec.Raw(bytes(block)[:-1] + _CACHE_CONTROL)
