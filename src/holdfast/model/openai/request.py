"""What a Chat Completions API is asked, made from a request. Pure.

Many servers speak this format, and each is strict elsewhere: some refuse two messages of one role in a row, a
system message in the midst, arguments that are no JSON, long ids. What is built here is valid for all of them.
It is stable, too: a longer context begins with the bytes of the shorter one, so that prompt caches hit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast import content_parts, types
from holdfast.model import base, request_common

PICTURES = "(What the tool shows.)"


Said = str | list[dict[str, Any]]
View = Literal["shown", "told", "pictures", "said"]

# The encoded form of a message never changes: it is made once, and kept with the message under these names.
_KEYS: dict[View, str] = {view: f"_openai {view}" for view in ("shown", "told", "pictures")}


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """What differs between the servers that speak this format."""

    provider: str
    """Reasoning, and what a provider added to a call, goes back to this provider only."""
    max_tokens: str = "max_tokens"
    """The field that limits the reply."""
    id_length: int = 40
    """How long the id of a call may be; up to 9, it is letters and digits only."""


def build(
    request: base.Request,
    dialect: Dialect,
    *,
    model: str,
    extra: Mapping[str, Any] | None = None,
    without: Iterable[str] = (),
) -> dict[str, Any]:
    """The body of the call. Encode it with `encoded`: its messages are encoded already."""
    first = _leading(request.messages)
    turns = _Turns(dialect)
    for message in request.messages[first:]:
        turns.add(message)
    body: dict[str, Any] = {
        "model": model,
        "messages": [*_system(request, first), *turns.closed()],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request_common.once(request.tools)]
    if request.max_output is not None:
        body[dialect.max_tokens] = max(1, request.max_output)
    if request.temperature is not None:
        body["temperature"] = request.temperature
    body.update(extra or {})
    for field in without:
        body.pop(field, None)
    return body


class _Turns:
    """The messages of a request on their way: roles alternate, and a call's result stands right behind it.

    A long conversation is sent anew with every step, so this makes next to no objects for what is kept already.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._said_key = f"_openai said {dialect.provider} {dialect.id_length}"
        self._ids_key = f"_openai ids {dialect.id_length}"
        self._sent: list[msgspec.Raw | None] = []
        self._role = ""
        # What goes out together as the last turn.
        self._together: list[tuple[View, types.Message]] = []
        # Where the result of a call belongs and under which id; and the places that wait for theirs.
        self._waiting: dict[str, list[tuple[int, str]]] = {}
        self._open: dict[int, str] = {}

    def add(self, message: types.Message) -> None:
        role = message.role
        if role == "assistant":
            self._answer(message)
        elif role == "tool":
            self._result(message)
        else:
            self._say("user", "told" if role == "system" else "shown", message)

    def closed(self) -> list[msgspec.Raw]:
        self._end_turn()
        for place, known in self._open.items():
            self._sent[place] = request_common.encoded(
                {"role": "tool", "tool_call_id": known, "content": request_common.NO_RESULT}
            )
        sent = [turn for turn in self._sent if turn is not None]
        if self._role == "assistant":
            sent.append(request_common.encoded({"role": "user", "content": request_common.GO_ON}))
        if not sent or not bytes(sent[0]).startswith(b'{"role":"user"'):
            sent.insert(0, request_common.encoded({"role": "user", "content": request_common.OPENING}))
        return sent

    def _say(self, role: str, view: View, message: types.Message) -> None:
        turn = self._alone(view, message)
        if turn is None:
            return
        if role != self._role:
            self._end_turn()
            self._role = role
            self._sent.append(turn)
        self._together.append((view, message))

    def _end_turn(self) -> None:
        if len(self._together) > 1:
            said = self._answers() if self._role == "assistant" else _user([_content(*one) for one in self._together])
            self._sent[-1] = request_common.encoded(said)
        self._together.clear()

    def _answer(self, message: types.Message) -> None:
        self._say("assistant", "said", message)
        if not message.tool_calls:
            return
        self._end_turn()
        self._role = "tool"
        waiting: dict[str, list[tuple[int, str]]] = {}
        for call, known in zip(message.tool_calls, self._ids(message), strict=True):
            waiting.setdefault(call.id, []).append((len(self._sent), known))
            self._open[len(self._sent)] = known
            self._sent.append(None)
        self._waiting.update(waiting)

    def _result(self, message: types.Message) -> None:
        waiting = self._waiting.get(message.tool_call_id or "")
        if not waiting:
            # Its call is not in the context, or was answered: what it says may matter all the same.
            self._say("user", "shown", message)
            return
        place, known = waiting.pop(0)
        if not waiting:
            del self._waiting[message.tool_call_id or ""]
        del self._open[place]
        self._sent[place] = _result_of(message, known)
        if not isinstance(message.content, str):
            self._say("user", "pictures", message)

    def _alone(self, view: View, message: types.Message) -> msgspec.Raw | None:
        """A message as a turn of its own, made once and kept with it; None when it says nothing."""
        key = self._said_key if view == "said" else _KEYS[view]
        kept = message.__dict__
        if key not in kept:
            if view == "said":
                answer = self._answer_of(message)
                kept[key] = request_common.encoded(answer) if len(answer) > 2 or answer["content"] else None
            else:
                content = _content(view, message)
                kept[key] = request_common.encoded(_user([content])) if content else None
        turn: msgspec.Raw | None = kept[key]
        return turn

    def _answers(self) -> dict[str, Any]:
        texts = [text for _, message in self._together if (text := request_common.told(message.content))]
        return {**self._answer_of(self._together[-1][1]), "content": "\n\n".join(texts) or None}

    def _answer_of(self, message: types.Message) -> dict[str, Any]:
        answer: dict[str, Any] = {"role": "assistant", "content": request_common.told(message.content) or None}
        if message.tool_calls:
            answer.update(_thoughts(message, self._dialect.provider))
            answer["tool_calls"] = [*map(self._call, message.tool_calls, self._ids(message))]
        return answer

    def _ids(self, message: types.Message) -> list[str]:
        """What the calls of a message are called here; no two of them the same."""
        kept = message.__dict__
        if self._ids_key not in kept:
            ids: list[str] = []
            for call in message.tool_calls:
                known = request_common.fitting(call.id, self._dialect.id_length)
                while known in ids:
                    known = request_common.fitting(f"{call.id}#{len(ids)}#{known}", self._dialect.id_length)
                ids.append(known)
            kept[self._ids_key] = ids
        found: list[str] = kept[self._ids_key]
        return found

    def _call(self, call: types.ToolCall, id: str) -> dict[str, Any]:
        function = {"name": request_common.fitting(call.name), "arguments": _arguments(call.arguments)}
        known = {"id": id, "type": "function", "function": function}
        theirs = call.extra.get(self._dialect.provider)
        return {**theirs, **known} if isinstance(theirs, dict) else known


def _user(contents: Sequence[Said]) -> dict[str, Any]:
    return {"role": "user", "content": _joined(contents)}


def _content(view: View, message: types.Message) -> Said:
    content = message.content
    if view == "told":
        # What the system says in the midst of a conversation, where many servers have no place for it.
        text = request_common.told(content)
        return f"<system>\n{text}\n</system>" if text else ""
    if isinstance(content, str):
        return content
    known = content_parts.parse(content)
    pictures = any(isinstance(part, content_parts.Image) for part in known)
    if view == "pictures":
        told = [{"type": "text", "text": PICTURES}]
        return told + [_picture(part) for part in known if isinstance(part, content_parts.Image)] if pictures else ""
    return _shown(known) if pictures and message.role != "assistant" else request_common.told(content)


def _shown(known: Sequence[content_parts.Part]) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = []
    for part in known:
        if isinstance(part, content_parts.Image):
            shown.append(_picture(part))
        elif isinstance(part, content_parts.Text) and part.text:
            shown.append({"type": "text", "text": part.text})
    return shown


def _picture(image: content_parts.Image) -> dict[str, Any]:
    url = f"data:{image.media_type};base64,{image.data}" if image.data else image.url
    if not url:
        return {"type": "text", "text": request_common.NO_PICTURE}
    return {"type": "image_url", "image_url": {"url": url}}


def _joined(contents: Sequence[Said]) -> Said:
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(content for content in contents if isinstance(content, str))
    listed: list[dict[str, Any]] = []
    for content in contents:
        listed += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return listed


def _result_of(message: types.Message, id: str) -> msgspec.Raw:
    kept, key = message.__dict__, f"_openai result {id}"
    if key not in kept:
        kept[key] = request_common.encoded(
            {"role": "tool", "tool_call_id": id, "content": request_common.told(message.content)}
        )
    result: msgspec.Raw = kept[key]
    return result


def _thoughts(message: types.Message, provider: str) -> dict[str, Any]:
    """What the model thought before it called, in the field it came in: some providers want it back.

    The parser has put the name of that field where a signature goes.
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
            fields.setdefault("reasoning_details", []).extend(_details(part.hidden))
    return fields


def _details(hidden: str) -> list[Any]:
    try:
        return msgspec.json.decode(hidden, type=list[Any])
    except msgspec.DecodeError:
        return []


def _arguments(arguments: str | dict[str, Any]) -> str:
    """Arguments as the JSON object they must be; what is none is shown to the model as it gave it."""
    if isinstance(arguments, dict):
        return bytes(request_common.encoded(arguments)).decode()
    if not arguments.strip():
        return "{}"
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return json.dumps({"invalid_json": arguments})
    return arguments


def _system(request: base.Request, first: int) -> list[dict[str, Any]]:
    told = [request.system, *(request_common.told(message.content) for message in request.messages[:first])]
    text = "\n\n".join(one for one in told if one.strip())
    return [{"role": "system", "content": text}] if text else []


def _leading(messages: Sequence[types.Message]) -> int:
    """How many messages of the system stand before all others."""
    return next((at for at, message in enumerate(messages) if message.role != "system"), len(messages))


def _tool(tool: types.ToolSpec) -> dict[str, Any]:
    function = {
        "name": request_common.fitting(tool.name),
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}
