"""Build requests to a Chat Completions API. Pure.

Servers differ in what they refuse: two messages of one role in a row, a system message within the conversation,
arguments that are not JSON, long ids. The result is valid for all of them. It is also stable: a longer context begins
with the bytes of the shorter one, so that prompt caches hit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast import content_parts, types
from holdfast.model import base, request_common

IMAGES = "(Images in the tool result.)"

Content = str | list[dict[str, Any]]
View = Literal["user", "system", "images", "assistant"]
"""How a message is shown: as a user message, a wrapped system message, the images of a tool result, or a reply."""

# The encoded form of a message never changes, so it is cached in the message under these keys.
_CACHE_KEYS: dict[View, str] = {view: f"_openai {view}" for view in ("user", "system", "images")}


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
    turns = _Turns(dialect)
    for message in messages:
        turns.add(message)
    body: dict[str, Any] = {
        "model": model,
        "messages": [*([{"role": "system", "content": "\n\n".join(system)}] if system else []), *turns.close()],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request_common.unique_tools(request.tools)]
    if request.max_output is not None:
        body[dialect.max_tokens] = max(1, request.max_output)
    if request.temperature is not None:
        body["temperature"] = request.temperature
    body.update(extra or {})
    for field in without:
        body.pop(field, None)
    return body


class _Turns:
    """The messages of a request: roles alternate, and results directly follow their calls.

    A long conversation is built again for every request, so hardly any objects are created for cached messages.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._reply_key = f"_openai assistant {dialect.provider} {dialect.id_length}"
        self._ids_key = f"_openai ids {dialect.id_length}"
        self._sent: list[msgspec.Raw | None] = []
        self._role = ""
        # The messages of the last turn, which are sent as one.
        self._turn: list[tuple[View, types.Message]] = []
        # The places of the results of each call, with the id to send; and the places without a result so far.
        self._waiting: dict[str, list[tuple[int, str]]] = {}
        self._open: dict[int, str] = {}

    def add(self, message: types.Message) -> None:
        role = message.role
        if role == "assistant":
            self._add_reply(message)
        elif role == "tool":
            self._add_result(message)
        else:
            self._add("user", "system" if role == "system" else "user", message)

    def close(self) -> list[msgspec.Raw]:
        self._end_turn()
        for place, call_id in self._open.items():
            self._sent[place] = _encode_result(call_id, request_common.NO_RESULT)
        sent = [turn for turn in self._sent if turn is not None]
        if self._role == "assistant":
            sent.append(request_common.encode(_user([request_common.GO_ON])))
        if not sent or not bytes(sent[0]).startswith(b'{"role":"user"'):
            sent.insert(0, request_common.encode(_user([request_common.OPENING])))
        return sent

    def _add(self, role: str, view: View, message: types.Message) -> None:
        turn = self._encode_alone(view, message)
        if turn is None:
            return
        if role != self._role:
            self._end_turn()
            self._role = role
            self._sent.append(turn)
        self._turn.append((view, message))

    def _end_turn(self) -> None:
        if len(self._turn) > 1:
            if self._role == "assistant":
                self._sent[-1] = request_common.encode(self._join_replies())
            else:
                self._sent[-1] = request_common.encode(_user([_content(*each) for each in self._turn]))
        self._turn.clear()

    def _add_reply(self, message: types.Message) -> None:
        self._add("assistant", "assistant", message)
        if not message.tool_calls:
            return
        self._end_turn()
        self._role = "tool"
        waiting: dict[str, list[tuple[int, str]]] = {}
        for call, call_id in zip(message.tool_calls, self._call_ids(message), strict=True):
            waiting.setdefault(call.id, []).append((len(self._sent), call_id))
            self._open[len(self._sent)] = call_id
            self._sent.append(None)
        self._waiting.update(waiting)

    def _add_result(self, message: types.Message) -> None:
        waiting = self._waiting.get(message.tool_call_id or "")
        if not waiting:
            # The call is not in the context, or has a result already.
            self._add("user", "user", message)
            return
        place, call_id = waiting.pop(0)
        if not waiting:
            del self._waiting[message.tool_call_id or ""]
        del self._open[place]
        self._sent[place] = _cached_result(message, call_id)
        if not isinstance(message.content, str):
            self._add("user", "images", message)

    def _encode_alone(self, view: View, message: types.Message) -> msgspec.Raw | None:
        """Return a message as a turn of its own, cached in the message; None if it is empty."""
        key = self._reply_key if view == "assistant" else _CACHE_KEYS[view]
        cache = message.__dict__
        if key not in cache:
            if view == "assistant":
                reply = self._build_reply(message)
                cache[key] = request_common.encode(reply) if len(reply) > 2 or reply["content"] else None
            else:
                content = _content(view, message)
                cache[key] = request_common.encode(_user([content])) if content else None
        turn: msgspec.Raw | None = cache[key]
        return turn

    def _join_replies(self) -> dict[str, Any]:
        texts = [text for _, message in self._turn if (text := request_common.content_text(message.content))]
        return {**self._build_reply(self._turn[-1][1]), "content": "\n\n".join(texts) or None}

    def _build_reply(self, message: types.Message) -> dict[str, Any]:
        reply: dict[str, Any] = {"role": "assistant", "content": request_common.content_text(message.content) or None}
        if message.tool_calls:
            reply.update(_build_reasoning(message, self._dialect.provider))
            reply["tool_calls"] = [*map(self._build_call, message.tool_calls, self._call_ids(message))]
        return reply

    def _call_ids(self, message: types.Message) -> list[str]:
        """Return the ids to send for the calls of a message, all different, cached in the message."""
        cache = message.__dict__
        if self._ids_key not in cache:
            ids: list[str] = []
            for call in message.tool_calls:
                call_id = request_common.safe_name(call.id, self._dialect.id_length)
                while call_id in ids:
                    call_id = request_common.safe_name(f"{call.id}#{len(ids)}#{call_id}", self._dialect.id_length)
                ids.append(call_id)
            cache[self._ids_key] = ids
        found: list[str] = cache[self._ids_key]
        return found

    def _build_call(self, call: types.ToolCall, id: str) -> dict[str, Any]:
        function = {"name": request_common.safe_name(call.name), "arguments": _arguments(call.arguments)}
        built = {"id": id, "type": "function", "function": function}
        extra = call.extra.get(self._dialect.provider)
        return {**extra, **built} if isinstance(extra, dict) else built


def _user(contents: Sequence[Content]) -> dict[str, Any]:
    return {"role": "user", "content": _join(contents)}


def _content(view: View, message: types.Message) -> Content:
    content = message.content
    if view == "system":
        return request_common.wrap_system(message)
    if isinstance(content, str):
        return content
    parts = content_parts.parse(content)
    images = [part for part in parts if isinstance(part, content_parts.Image)]
    if view == "images":
        return [{"type": "text", "text": IMAGES}, *map(_build_image, images)] if images else ""
    if not images or message.role == "assistant":
        return request_common.content_text(content)
    shown: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, content_parts.Image):
            shown.append(_build_image(part))
        elif isinstance(part, content_parts.Text) and part.text:
            shown.append({"type": "text", "text": part.text})
    return shown


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


def _cached_result(message: types.Message, call_id: str) -> msgspec.Raw:
    cache, key = message.__dict__, f"_openai result {call_id}"
    if key not in cache:
        cache[key] = _encode_result(call_id, request_common.content_text(message.content))
    result: msgspec.Raw = cache[key]
    return result


def _encode_result(call_id: str, text: str) -> msgspec.Raw:
    return request_common.encode({"role": "tool", "tool_call_id": call_id, "content": text})


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


def _arguments(arguments: str | dict[str, Any]) -> str:
    """Return the arguments as a JSON object; text that is none is sent back as `invalid_json`."""
    if isinstance(arguments, str) and not arguments.strip():
        return "{}"
    if isinstance(arguments, str) and request_common.is_json_object(arguments):
        return arguments
    value = arguments if isinstance(arguments, dict) else {"invalid_json": arguments}
    return bytes(request_common.encode(value)).decode()


def _tool(tool: types.ToolSpec) -> dict[str, Any]:
    function = {
        "name": request_common.safe_name(tool.name),
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}
