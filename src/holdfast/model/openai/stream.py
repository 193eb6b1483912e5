"""Parse the event stream of a Chat Completions API into deltas. Pure.

Servers deviate from the format: tool calls come without index or id, with arguments as objects, or all at index 0;
streams end without a finish reason. The parser accepts everything that is unambiguous.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from holdfast import types
from holdfast.model import base, provider_errors, request_common, stream_parser, surrogates

_FINISH: dict[str, base.Finish] = {
    "tool_calls": "calls",
    "function_call": "calls",
    "tool_use": "calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "refused",
    "safety": "refused",
    "refusal": "refused",
}
_TEXT, _REASONING = ("text", 0), ("reasoning", 0)
_BROKEN = frozenset({"error", "network_error", "insufficient_system_resource", "abort"})


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class _Piece(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: dict[str, Any] | None = None


class _Delta(msgspec.Struct, frozen=True):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    reasoning_details: list[dict[str, Any]] | None = None
    tool_calls: list[_Piece] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int | None = None
    delta: _Delta | None = None
    message: _Delta | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct, frozen=True):
    """Any event of the stream. Other fields are ignored."""

    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    object: str | None = None


class _OpenCall:
    """A tool call in progress, at its index among the calls."""

    __slots__ = ("arguments", "id", "index", "name")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.arguments = ""


_decoder = msgspec.json.Decoder(_Chunk)


def _new_call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class Parser(stream_parser.StreamParser):
    """The parser of Chat Completions. `provider` is the key for fields of a call that are sent back to it."""

    def __init__(
        self,
        advice: provider_errors.Advice,
        *,
        provider: str = "",
        new_call_id: Callable[[], str] = _new_call_id,
        **options: Any,
    ) -> None:
        super().__init__(advice, **options)
        self._provider = provider
        self._new_call_id = new_call_id
        self._refused = False
        self._usage: dict[str, Any] = {}
        self._reasoning_field = ""
        self._details: list[dict[str, Any]] = []
        self._calls: list[_OpenCall] = []
        self._calls_by_index: dict[int, _OpenCall] = {}

    def feed(self, name: str, data: str) -> list[base.Delta]:
        if data.startswith("[DONE]"):
            self.done = True
            return []
        if not data:
            return []
        if name == "error":
            raise self._error(data)
        chunk = self._decode(data, _decoder)
        if chunk.error or chunk.object == "error":
            raise self._error(data)
        if chunk.usage:
            self._usage = chunk.usage
        deltas: list[base.Delta] = []
        for choice in chunk.choices or ():
            if not choice.index:
                self._add_choice(choice, deltas)
        self._has_begun = self._has_begun or bool(deltas)
        return deltas

    def end(self) -> list[base.Delta]:
        """Return the last deltas. Raises ModelCut, or ModelServerError before the first delta, if it is incomplete."""
        # Some servers send no finish reason, only [DONE].
        is_complete = self.complete or (self.done and self._has_begun)
        if self._finish in _BROKEN or not is_complete:
            raise self._malformed(provider_errors.BROKE_OFF)
        deltas: list[base.Delta] = []
        self._close_text(deltas)
        self._close_reasoning(deltas)
        deltas += [
            base.ToolCallDelta(call.index, arguments=rest)
            for call in self._calls
            if (rest := self._texts.rest(("arguments", call.index)))
        ]
        # A call needs an id for its result.
        deltas += [base.ToolCallDelta(call.index, self._new_call_id()) for call in self._calls if not call.id]
        if self._usage:
            deltas.append(base.UsageDelta(self._total_usage()))
        return [*deltas, base.FinishDelta(self._finish_reason())]

    def _add_choice(self, choice: _Choice, deltas: list[base.Delta]) -> None:
        given = choice.delta or choice.message
        if choice.finish_reason:
            self._finish = choice.finish_reason.lower()
        if given is None:
            return
        self._add_reasoning(given, deltas)
        for text in (given.content, given.refusal):
            if text:
                self._add_content(text, deltas)
        self._refused = self._refused or bool(given.refusal)
        for piece in given.tool_calls or ():
            self._close_reasoning(deltas)
            self._add_call(piece, deltas)

    def _add_content(self, content: str | list[Any], deltas: list[base.Delta]) -> None:
        if isinstance(content, str):
            self._close_reasoning(deltas)
            if text := self._texts.add(_TEXT, content):
                deltas.append(base.ContentDelta(text))
            return
        for part in content:
            match part:
                case {"type": "text", "text": str() as text} if text:
                    self._add_content(text, deltas)
                case {"type": "thinking", "thinking": [*blocks]}:
                    texts = [block["text"] for block in blocks if isinstance(block, dict) and "text" in block]
                    self._add_reasoning_text("".join(text for text in texts if isinstance(text, str)), deltas)

    def _add_reasoning(self, given: _Delta, deltas: list[base.Delta]) -> None:
        text = given.reasoning_content or given.reasoning
        if text:
            self._reasoning_field = "reasoning_content" if given.reasoning_content else "reasoning"
        if given.reasoning_details:
            self._details += given.reasoning_details
            texts = [detail.get("text", detail.get("summary")) for detail in given.reasoning_details]
            text = text or "".join(each for each in texts if isinstance(each, str))
        if text:
            self._add_reasoning_text(text, deltas)

    def _add_reasoning_text(self, piece: str, deltas: list[base.Delta]) -> None:
        self._close_text(deltas)
        if text := self._texts.add(_REASONING, piece):
            deltas.append(base.ThinkingDelta(text))

    def _close_text(self, deltas: list[base.Delta]) -> None:
        if rest := self._texts.rest(_TEXT):
            deltas.append(base.ContentDelta(rest))

    def _close_reasoning(self, deltas: list[base.Delta]) -> None:
        """End a block of reasoning, with the details or the field name that its provider expects back."""
        if rest := self._texts.rest(_REASONING):
            deltas.append(base.ThinkingDelta(rest))
        if self._reasoning_field or self._details:
            details = surrogates.repair(_merge_details(self._details))
            hidden = msgspec.json.encode(details).decode() if details else ""
            deltas.append(base.ThinkingDelta(signature="" if hidden else self._reasoning_field, hidden=hidden))
            self._reasoning_field, self._details = "", []

    def _add_call(self, piece: _Piece, deltas: list[base.Delta]) -> None:
        function = piece.function or _Function()
        given, name = function.arguments or "", self._tool_name(function.name)
        arguments = given if isinstance(given, str) else msgspec.json.encode(surrogates.repair(given)).decode()
        call = self._find_call(piece, name, arguments)
        arguments = self._texts.add(("arguments", call.index), arguments)
        new_id = new_name = ""
        if piece.id and not call.id:
            given_id = surrogates.repair(piece.id)
            is_unique = all(given_id != other.id for other in self._calls)
            new_id = call.id = given_id if is_unique else self._new_call_id()
        if name and not call.name:
            new_name = call.name = name
        call.arguments += arguments
        extra = (
            {self._provider: {"extra_content": surrogates.repair(piece.extra_content)}} if piece.extra_content else {}
        )
        if new_id or new_name or arguments or extra:
            deltas.append(base.ToolCallDelta(call.index, new_id, new_name, arguments, extra))

    def _find_call(self, piece: _Piece, name: str, arguments: str) -> _OpenCall:
        """Return the call that a piece belongs to: by its index, else by its id, else the last one."""
        if piece.index is not None:
            known = self._calls_by_index.get(piece.index)
        elif piece.id:
            known = next((call for call in self._calls if call.id == piece.id), None)
        else:
            known = self._calls[-1] if self._calls else None
        if known is None or (name and _is_other(known, piece.id, name, arguments)):
            known = _OpenCall(len(self._calls))
            self._calls.append(known)
            if piece.index is not None:
                self._calls_by_index[piece.index] = known
        return known

    def _finish_reason(self) -> base.Finish:
        reason = _FINISH.get(self._finish or "", "stop")
        if reason in ("stop", "calls"):
            reason = "calls" if self._calls else "stop"
        return "refused" if self._refused and reason == "stop" else reason

    def _total_usage(self) -> types.Usage:
        raw, count = self._usage, stream_parser.get_count
        prompt = stream_parser.get_dict(raw, "prompt_tokens_details")
        completion = stream_parser.get_dict(raw, "completion_tokens_details")
        usage = types.Usage(
            count(raw, "prompt_tokens"),
            # Some servers count reasoning in the total only.
            max(count(raw, "completion_tokens"), count(raw, "total_tokens") - count(raw, "prompt_tokens")),
            count(prompt, "cached_tokens") or count(raw, "prompt_cache_hit_tokens"),
            count(prompt, "cache_write_tokens"),
            count(completion, "reasoning_tokens"),
        )
        reported = raw.get("cost")
        if isinstance(reported, int | float):
            return msgspec.structs.replace(usage, cost=reported)
        return self._add_cost(usage)


def _is_other(known: _OpenCall, id: str | None, name: str, arguments: str) -> bool:
    """Whether a piece with a name begins another call; some servers repeat the name with each piece of arguments."""
    if (id and known.id) or not known.name:
        return bool(id and known.id) and id != known.id
    return known.name != name or (request_common.is_json_object(known.arguments) and bool(arguments))


def _merge_details(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join the pieces of hidden reasoning that have the same index and type."""
    merged: list[dict[str, Any]] = []
    for piece in details:
        last = merged[-1] if merged else {}
        if last and all(last.get(key) == piece.get(key) for key in ("index", "type")) and "index" in piece:
            for key, value in piece.items():
                grows = key in ("text", "summary", "data") and isinstance(value, str)
                last[key] = (last.get(key) or "") + value if grows else (last.get(key) if value is None else value)
        else:
            merged.append(dict(piece))
    return merged
