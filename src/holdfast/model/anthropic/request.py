"""Build requests to Anthropic's Messages API. Pure.

The API refuses empty text, a conversation that begins or ends with the assistant, a call without its result in the next
message, and other characters in ids and names. Whatever the context holds, the result is valid. It is also stable: a
longer context begins with the bytes of the shorter one, so that the prompt cache hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import content_parts, types
from holdfast.model import base, request_common

PROVIDER = "anthropic"

_CACHE_CONTROL = b',"cache_control":{"type":"ephemeral"}}'
_CACHED_TURNS = 2
_IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
# The API refuses these at the top of a schema. Tools validate their arguments anyway.
_UNSUPPORTED_AT_TOP = frozenset({"oneOf", "anyOf", "allOf"})

_PLACEHOLDER = msgspec.Raw(b"null")


class _ResultPlace(NamedTuple):
    """The place of the result of a call: the list of blocks, the index in it, and the id to send."""

    blocks: list[msgspec.Raw]
    place: int
    call_id: str


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
    turns = _Turns(provider)
    for message in messages:
        turns.add(message)
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max(1, max_output if request.max_output is None else request.max_output),
        "messages": turns.close(),
        "stream": True,
    }
    if system:
        body["system"] = _cache_last(list(map(text_block, system)))
    if request.tools:
        body["tools"] = _cache_last([_tool(tool) for tool in request_common.unique_tools(request.tools)])
    elif turns.called:
        # The API requires the tools of earlier calls; none of them may be called again.
        body["tools"] = [
            request_common.encode({"name": name, "input_schema": {"type": "object"}}) for name in sorted(turns.called)
        ]
        body["tool_choice"] = {"type": "none"}
    return {**body, **(extra or {})}


def text_block(text: str) -> msgspec.Raw:
    return request_common.encode({"type": "text", "text": text})


class _EncodedReply(NamedTuple):
    """An assistant message in encoded form, with the ids and names of its calls as they are sent."""

    blocks: list[msgspec.Raw]
    ids: list[str]
    names: list[str]


class _Turns:
    """The messages of a request: roles alternate, and results directly follow their calls."""

    def __init__(self, provider: str) -> None:
        self.called: set[str] = set()
        """The names of all tools that were called."""
        self._provider = provider
        self._cache_key = f"_anthropic_{provider}"
        self._turns: list[tuple[str, list[msgspec.Raw]]] = []
        self._used_ids: dict[str, int] = {}
        self._places: list[_ResultPlace] = []
        self._waiting: dict[str, list[_ResultPlace]] = {}

    def add(self, message: types.Message) -> None:
        if message.role == "assistant":
            self._add_reply(message)
        elif message.role == "tool":
            self._add_result(message)
        else:
            self._add("user", _cached_user_blocks(message))

    def close(self) -> list[dict[str, Any]]:
        """Return all turns, with the marks up to which the provider caches the prompt."""
        for blocks, place, call_id in self._places:
            if blocks[place] is _PLACEHOLDER:
                blocks[place] = _build_result(call_id, text_block(request_common.NO_RESULT))
        if not self._turns or self._turns[0][0] != "user":
            self._turns.insert(0, ("user", [text_block(request_common.OPENING)]))
        if self._turns[-1][0] != "user":
            self._add("user", [text_block(request_common.GO_ON)])
        for blocks in [blocks for role, blocks in self._turns if role == "user"][-_CACHED_TURNS:]:
            blocks[-1] = _cache_here(blocks[-1])
        return [{"role": role, "content": blocks} for role, blocks in self._turns]

    def _add(self, role: str, blocks: Sequence[msgspec.Raw]) -> list[msgspec.Raw]:
        if not blocks:
            return []
        if not self._turns or self._turns[-1][0] != role:
            self._turns.append((role, []))
        self._turns[-1][1].extend(blocks)
        return self._turns[-1][1]

    def _add_reply(self, message: types.Message) -> None:
        reply: _EncodedReply | None = message.__dict__.get(self._cache_key)
        if reply is None:
            reply = message.__dict__[self._cache_key] = _encode_reply(message, self._provider, {})
        if reply.ids and not self._used_ids.keys().isdisjoint(reply.ids):
            reply = _encode_reply(message, self._provider, self._used_ids)
        self._add("assistant", reply.blocks)
        if reply.ids:
            self._used_ids.update({call_id: self._used_ids.get(call_id, 1) for call_id in reply.ids})
            self.called.update(reply.names)
            self._reserve_results(message.tool_calls, reply.ids)

    def _reserve_results(self, calls: Sequence[types.ToolCall], ids: Sequence[str]) -> None:
        """Reserve a place for each result, directly after the calls."""
        blocks = self._add("user", [_PLACEHOLDER] * len(ids))
        waiting: dict[str, list[_ResultPlace]] = {}
        for place, (call, call_id) in enumerate(zip(calls, ids, strict=True)):
            waiting.setdefault(call.id, []).append(_ResultPlace(blocks, place, call_id))
            self._places.append(waiting[call.id][-1])
        self._waiting.update(waiting)

    def _add_result(self, message: types.Message) -> None:
        original_id = message.tool_call_id or ""
        waiting = self._waiting.get(original_id)
        if not waiting:
            # The call is not in the context, or has a result already.
            self._add("user", _cached_user_blocks(message))
            return
        blocks, place, call_id = waiting.pop(0)
        if call_id == original_id:
            blocks[place] = _cached_result(message)
        else:
            blocks[place] = _build_result(call_id, *_user_blocks(message))


# --- encoding: the encoded form of a message never changes, so it is cached in the message ---------------


def _cached_user_blocks(message: types.Message) -> Sequence[msgspec.Raw]:
    blocks: list[msgspec.Raw] | None = message.__dict__.get("_anthropic_user")
    if blocks is None:
        if message.role == "system":
            text = request_common.wrap_system(message)
            blocks = [text_block(text)] if text else []
        else:
            blocks = _user_blocks(message)
        message.__dict__["_anthropic_user"] = blocks
    return blocks


def _cached_result(message: types.Message) -> msgspec.Raw:
    block: msgspec.Raw | None = message.__dict__.get("_anthropic_result")
    if block is None:
        block = _build_result(message.tool_call_id or "", *_user_blocks(message))
        message.__dict__["_anthropic_result"] = block
    return block


def _encode_reply(message: types.Message, provider: str, used_ids: dict[str, int]) -> _EncodedReply:
    ids = [_choose_id(call.id, used_ids) for call in message.tool_calls]
    calls = [_call_block(call, call_id) for call, call_id in zip(message.tool_calls, ids, strict=True)]
    names = [request_common.safe_name(call.name) for call in message.tool_calls]
    return _EncodedReply([*_reply_blocks(message, provider), *calls], ids, names)


def _choose_id(original: str, used_ids: dict[str, int]) -> str:
    """Return an id that no other call of the request has: some servers number the calls of each reply from 0."""
    safe = free = request_common.safe_name(original)
    while free in used_ids:
        used_ids[safe] += 1
        free = f"{safe[:56]}_{used_ids[safe]}"
    used_ids[free] = 1
    return free


def _user_blocks(message: types.Message) -> list[msgspec.Raw]:
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
            "input": _input(call.arguments),
        }
    )


def _input(arguments: str | dict[str, Any]) -> Any:
    """Return the arguments as a JSON object; text that is none is sent back as `invalid_json`."""
    if isinstance(arguments, dict):
        return arguments
    if not arguments.strip():
        return {}
    try:
        if isinstance(msgspec.json.decode(arguments), dict):
            return msgspec.Raw(arguments.strip().encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    return {"invalid_json": arguments}


def _build_result(call_id: str, *content: msgspec.Raw) -> msgspec.Raw:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    return request_common.encode({**block, "content": content} if content else block)


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
