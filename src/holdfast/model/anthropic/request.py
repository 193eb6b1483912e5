"""What Anthropic's Messages API is asked, made from a request. Pure.

The API is strict: it refuses empty text, a conversation that begins or ends with the assistant, a call without
its result in the very next message, ids and names with other characters than it likes. Whatever a context holds,
what is built here is valid. And it is stable: the same context always becomes the same bytes, and a longer one
begins with the bytes of the shorter, so that the provider's prompt cache hits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast import content_parts, types
from holdfast.model import base, request_common

PROVIDER = "anthropic"

_MARK = b',"cache_control":{"type":"ephemeral"}}'
_MARKED_TURNS = 2
_PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
# A schema may not have these at its top. Without them it allows more, and the tool checks its arguments anyway.
_NOT_AT_TOP = frozenset({"oneOf", "anyOf", "allOf"})

_OPEN = msgspec.Raw(b"null")


class Placed(NamedTuple):
    """Where the result of a call belongs: in these blocks, at this place, under this id."""

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
    """The body of the call. Encode it with msgspec: its blocks are encoded already.

    Reasoning goes back only to the provider that signed it. The API refuses a temperature, so none is sent.
    """
    first = _leading(request.messages)
    turns = _Turns(provider)
    for message in request.messages[first:]:
        turns.add(message)
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": max(1, max_output if request.max_output is None else request.max_output),
        "messages": turns.closed(),
        "stream": True,
    }
    system = [request.system, *(request_common.told(message.content) for message in request.messages[:first])]
    if blocks := [text_block(text) for text in system if text.strip()]:
        body["system"] = _marked_at_end(blocks)
    if request.tools:
        body["tools"] = _marked_at_end([_tool(tool) for tool in request_common.once(request.tools)])
    elif turns.called:
        # Calls of the past must have tools; without any in the request, none may be called again.
        body["tools"] = [
            request_common.encoded({"name": name, "input_schema": {"type": "object"}}) for name in sorted(turns.called)
        ]
        body["tool_choice"] = {"type": "none"}
    return {**body, **(extra or {})}


def text_block(text: str) -> msgspec.Raw:
    return request_common.encoded({"type": "text", "text": text})


class _Answer(NamedTuple):
    """An assistant's message in its encoded form, with the ids and the names of its calls as the API has them."""

    blocks: list[msgspec.Raw]
    ids: list[str]
    names: list[str]


class _Turns:
    """The messages of a request on their way: roles alternate, and a call's result stands right behind it."""

    def __init__(self, provider: str) -> None:
        self.called: set[str] = set()
        self._provider = provider
        self._form = f"_anthropic_{provider}"
        self._turns: list[tuple[str, list[msgspec.Raw]]] = []
        self._taken: dict[str, int] = {}
        self._places: list[Placed] = []
        self._waiting: dict[str, list[Placed]] = {}

    def add(self, message: types.Message) -> None:
        if message.role == "assistant":
            self._answer(message)
        elif message.role == "tool":
            self._result(message)
        else:
            self._say("user", _shown_once(message))

    def closed(self) -> list[dict[str, Any]]:
        """All of it, with the marks up to which the provider keeps what it has read."""
        for blocks, place, call_id in self._places:
            if blocks[place] is _OPEN:
                blocks[place] = _result_block(call_id, text_block(request_common.NO_RESULT))
        if not self._turns or self._turns[0][0] != "user":
            self._turns.insert(0, ("user", [text_block(request_common.OPENING)]))
        if self._turns[-1][0] != "user":
            self._say("user", [text_block(request_common.GO_ON)])
        for blocks in [blocks for role, blocks in self._turns if role == "user"][-_MARKED_TURNS:]:
            blocks[-1] = _marked(blocks[-1])
        return [{"role": role, "content": blocks} for role, blocks in self._turns]

    def _say(self, role: str, blocks: Sequence[msgspec.Raw]) -> list[msgspec.Raw]:
        if not blocks:
            return []
        if not self._turns or self._turns[-1][0] != role:
            self._turns.append((role, []))
        self._turns[-1][1].extend(blocks)
        return self._turns[-1][1]

    def _answer(self, message: types.Message) -> None:
        form: _Answer | None = message.__dict__.get(self._form)
        if form is None:
            form = message.__dict__[self._form] = _answer_of(message, self._provider, {})
        if form.ids and not self._taken.keys().isdisjoint(form.ids):
            form = _answer_of(message, self._provider, self._taken)
        self._say("assistant", form.blocks)
        if form.ids:
            self._taken.update({call_id: self._taken.get(call_id, 1) for call_id in form.ids})
            self.called.update(form.names)
            self._await(message.tool_calls, form.ids)

    def _await(self, calls: Sequence[types.ToolCall], ids: Sequence[str]) -> None:
        """Leave a place for each result, right behind the calls."""
        blocks = self._say("user", [_OPEN] * len(ids))
        waiting: dict[str, list[Placed]] = {}
        for place, (call, call_id) in enumerate(zip(calls, ids, strict=True)):
            waiting.setdefault(call.id, []).append(Placed(blocks, place, call_id))
            self._places.append(waiting[call.id][-1])
        self._waiting.update(waiting)

    def _result(self, message: types.Message) -> None:
        given = message.tool_call_id or ""
        waiting = self._waiting.get(given)
        if not waiting:
            # Its call is not in the context, or was answered: what it says may matter all the same.
            self._say("user", _shown_once(message))
            return
        blocks, place, call_id = waiting.pop(0)
        blocks[place] = _result_once(message) if call_id == given else _result_of(message, call_id)


# --- the encoded form of a message never changes: it is made once, and kept with it ------------------


def _shown_once(message: types.Message) -> Sequence[msgspec.Raw]:
    form: list[msgspec.Raw] | None = message.__dict__.get("_anthropic_shown")
    if form is None:
        make = _told_blocks if message.role == "system" else _user_blocks
        form = message.__dict__["_anthropic_shown"] = make(message)
    return form


def _result_once(message: types.Message) -> msgspec.Raw:
    form: msgspec.Raw | None = message.__dict__.get("_anthropic_result")
    if form is None:
        form = message.__dict__["_anthropic_result"] = _result_of(message, message.tool_call_id or "")
    return form


def _answer_of(message: types.Message, provider: str, taken: dict[str, int]) -> _Answer:
    ids = [_free(call.id, taken) for call in message.tool_calls]
    asked = [_call_block(call, call_id) for call, call_id in zip(message.tool_calls, ids, strict=True)]
    names = [request_common.fitting(call.name) for call in message.tool_calls]
    return _Answer([*_said_blocks(message, provider), *asked], ids, names)


def _free(given: str, taken: dict[str, int]) -> str:
    """An id no other call of the request has: some servers begin to count anew with every reply."""
    fit = free = request_common.fitting(given)
    while free in taken:
        taken[fit] += 1
        free = f"{fit[:56]}_{taken[fit]}"
    taken[free] = 1
    return free


def _leading(messages: Sequence[types.Message]) -> int:
    """How many messages of the system stand before all others."""
    return next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))


def _told_blocks(message: types.Message) -> list[msgspec.Raw]:
    """What the system says in the midst of a conversation, where the API has no place for it."""
    text = request_common.told(message.content)
    return [text_block(f"<system>\n{text}\n</system>")] if text.strip() else []


def _user_blocks(message: types.Message) -> list[msgspec.Raw]:
    return list(_shown(content_parts.parse(message.content)))


def _shown(given: Iterable[content_parts.Part]) -> Iterator[msgspec.Raw]:
    for part in given:
        if isinstance(part, content_parts.Text) and part.text.strip():
            yield text_block(part.text)
        elif isinstance(part, content_parts.Image):
            yield _picture(part)


def _picture(image: content_parts.Image) -> msgspec.Raw:
    kind, data = image.media_type, image.data
    if image.url.startswith("data:"):
        head, _, data = image.url[5:].partition(",")
        kind = head.removesuffix(";base64") if head.endswith(";base64") else ""
    if data and kind in _PICTURES:
        return request_common.encoded({"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}})
    if image.url.startswith("https://"):
        return request_common.encoded({"type": "image", "source": {"type": "url", "url": image.url}})
    return text_block(request_common.NO_PICTURE)


def _said_blocks(message: types.Message, provider: str) -> list[msgspec.Raw]:
    blocks: list[msgspec.Raw] = []
    thoughts: list[msgspec.Raw] = []
    for part in content_parts.parse(message.content):
        if isinstance(part, content_parts.Reasoning):
            thoughts += _thought(part) if part.provider == provider else []
            continue
        # The assistant cannot show pictures, only tell of them.
        said = list(
            _shown([part if isinstance(part, content_parts.Text) else content_parts.Text(request_common.NO_PICTURE)])
        )
        if said:
            blocks += [*thoughts, *said]
            thoughts = []
    # A thought after which nothing was said or called may not be given back.
    return [*blocks, *thoughts] if message.tool_calls else blocks


def _thought(part: content_parts.Reasoning) -> list[msgspec.Raw]:
    if part.hidden:
        return [request_common.encoded({"type": "redacted_thinking", "data": part.hidden})]
    if part.signature:
        return [request_common.encoded({"type": "thinking", "thinking": part.text, "signature": part.signature})]
    return []


def _call_block(call: types.ToolCall, call_id: str) -> msgspec.Raw:
    return request_common.encoded(
        {"type": "tool_use", "id": call_id, "name": request_common.fitting(call.name), "input": _input(call.arguments)}
    )


def _input(arguments: str | dict[str, Any]) -> Any:
    """Arguments as the object they must be; what is none is shown to the model as it gave it."""
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


def _result_of(message: types.Message, call_id: str) -> msgspec.Raw:
    return _result_block(call_id, *_user_blocks(message))


def _result_block(call_id: str, *content: msgspec.Raw) -> msgspec.Raw:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": call_id}
    return request_common.encoded({**block, "content": content} if content else block)


def _tool(tool: types.ToolSpec) -> msgspec.Raw:
    schema = {key: value for key, value in tool.parameters.items() if key not in _NOT_AT_TOP}
    told = {"description": tool.description} if tool.description.strip() else {}
    return request_common.encoded(
        {"name": request_common.fitting(tool.name), **told, "input_schema": {**schema, "type": "object"}}
    )


def _marked_at_end(blocks: list[msgspec.Raw]) -> list[msgspec.Raw]:
    return [*blocks[:-1], _marked(blocks[-1])]


def _marked(block: msgspec.Raw) -> msgspec.Raw:
    """The block with a mark: what stands up to here is kept by the provider and read again for less."""
    return msgspec.Raw(bytes(block)[:-1] + _MARK)
