"""What the stream of Anthropic's Messages API says, as deltas. Pure: the same events become the same deltas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.model import base, provider_errors, surrogates

_FINISH: dict[str, base.Finish] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class _Details(msgspec.Struct, frozen=True):
    thinking_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens_details: _Details | None = None


class _Begun(msgspec.Struct, frozen=True):
    id: str | None = None
    usage: _Usage | None = None


class _Block(msgspec.Struct, frozen=True):
    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    input: Any = None


class _Piece(msgspec.Struct, frozen=True):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    """Any event of the stream. What is not here, or has an unknown type, says nothing to us."""

    type: str = ""
    index: int = 0
    delta: _Piece = _Piece()
    content_block: _Block = _Block()
    message: _Begun = _Begun()
    usage: _Usage | None = None


class _Call:
    """A call that is being said: its place among the calls, and the input it began with until a piece comes."""

    __slots__ = ("index", "input")

    def __init__(self, index: int, input: Any) -> None:
        self.index = index
        self.input = input


_decode = msgspec.json.Decoder(_Event).decode


class Parser:
    """The events of one stream, in order, become deltas. Raises errors.ModelError only.

    Usage is told with the first thing that is said, so that a call which said nothing can still be made again.
    """

    def __init__(
        self,
        asked: provider_errors.Asked,
        *,
        names: Mapping[str, str] | None = None,
        price: base.Price | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.done = False
        self._asked = asked
        self._names = names or {}
        self._price = price
        self._secrets = tuple(secret for secret in secrets if secret)
        self._said = False
        self._id = "call"
        self._stop: str | None = None
        self._usage = _Usage()
        self._calls: dict[int, _Call] = {}
        self._called = 0
        self._signatures: dict[int, str] = {}
        # By kind and block.
        self._halves = surrogates.Joining[tuple[str, int]]()

    @property
    def complete(self) -> bool:
        """Whether the reply is all there, though the stream may not have ended."""
        return self._stop is not None

    def feed(self, name: str, data: str) -> list[base.Delta]:
        """What an event says; nothing, more often than not."""
        if name == "error":
            raise self._failure(data)
        try:
            event = surrogates.decoded(data, _decode, _Event) if data else _Event()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._malformed("sent an event that cannot be read") from None
        match event.type:
            case "content_block_delta":
                deltas = self._piece(event.index, event.delta)
            case "content_block_start":
                deltas = self._begin(event.index, event.content_block)
            case "content_block_stop":
                deltas = self._close(event.index)
            case "message_start":
                self._id = event.message.id or self._id
                self._count(event.message.usage)
                return []
            case "message_delta":
                return self._tell(event)
            case "message_stop":
                return self._finish()
            case "error":
                raise self._failure(data)
            case _:
                return []
        return self._first(deltas) if deltas and not self._said else deltas

    def end(self) -> list[base.Delta]:
        """The stream has ended: complete, if at most its last event is missing, and cut otherwise."""
        if self.done:
            return []
        if self.complete:
            return self._finish()
        raise errors.ModelCut(f"{self._asked.model} broke off in the middle of its answer.", model=self._asked.model)

    def _begin(self, index: int, block: _Block) -> list[base.Delta]:
        match block.type:
            case "text":
                return self._say(index, block.text)
            case "tool_use":
                call = self._calls[index] = _Call(self._called, block.input)
                self._called += 1
                name, given_id = surrogates.mended(block.name or ""), surrogates.mended(block.id)
                # Real ones have an id; servers that only speak this API may not.
                return [base.Called(call.index, given_id or f"{self._id}_{call.index}", self._names.get(name, name))]
            case "thinking":
                self._signatures[index] = surrogates.mended(block.signature or "")
                return self._think(index, block.thinking)
            case "redacted_thinking" if block.data:
                return [base.Thought(hidden=surrogates.mended(block.data))]
        return []

    def _piece(self, index: int, piece: _Piece) -> list[base.Delta]:
        match piece.type:
            case "text_delta":
                return self._say(index, piece.text)
            case "input_json_delta" if piece.partial_json and (call := self._calls.get(index)):
                call.input = None
                arguments = self._halves.add(("input", index), piece.partial_json)
                return [base.Called(call.index, arguments=arguments)] if arguments else []
            case "thinking_delta":
                return self._think(index, piece.thinking)
            case "signature_delta" if piece.signature:
                self._signatures[index] = surrogates.mended(piece.signature)
        return []

    def _say(self, index: int, piece: str | None) -> list[base.Delta]:
        text = self._halves.add(("text", index), piece) if piece else ""
        return [base.Said(text)] if text else []

    def _think(self, index: int, piece: str | None) -> list[base.Delta]:
        text = self._halves.add(("thinking", index), piece) if piece else ""
        return [base.Thought(text)] if text else []

    def _close(self, index: int) -> list[base.Delta]:
        deltas: list[base.Delta] = []
        if rest := self._halves.rest(("text", index)):
            deltas.append(base.Said(rest))
        if rest := self._halves.rest(("thinking", index)):
            deltas.append(base.Thought(rest))
        if signature := self._signatures.pop(index, ""):
            return [*deltas, base.Thought(signature=signature)]
        call = self._calls.pop(index, None)
        if call is not None:
            rest = self._halves.rest(("input", index))
            # Without pieces it came whole, or has no arguments at all.
            whole = "" if call.input is None else msgspec.json.encode(surrogates.mended(call.input)).decode()
            if whole or rest:
                deltas.append(base.Called(call.index, arguments=whole + rest))
        return deltas

    def _tell(self, event: _Event) -> list[base.Delta]:
        self._stop = event.delta.stop_reason or self._stop
        self._count(event.usage)
        return [base.Counted(self._counted())] if self._said else []

    def _finish(self) -> list[base.Delta]:
        if self._stop == "model_context_window_exceeded" and not self._said:
            raise provider_errors.of_object({"error": {"type": self._stop}}, self._asked, said=False)
        unclosed = dict.fromkeys((*self._calls, *(index for _, index in self._halves.waiting)))
        deltas = [delta for index in unclosed for delta in self._close(index)]
        reason = _FINISH.get(self._stop or "end_turn", "stop")
        if reason == "stop" and self._called:
            reason = "calls"
        self.done = True
        return [*deltas, base.Counted(self._counted()), base.Finished(reason)]

    def _first(self, deltas: list[base.Delta]) -> list[base.Delta]:
        self._said = True
        return [base.Counted(self._counted()), *deltas]

    def _count(self, usage: _Usage | None) -> None:
        """Counts are totals so far: a later one stands for an earlier one, and what it leaves out stays."""
        if usage is None:
            return
        known = {name: value for name in usage.__struct_fields__ if (value := getattr(usage, name)) is not None}
        self._usage = msgspec.structs.replace(self._usage, **known)

    def _counted(self) -> types.Usage:
        got = self._usage
        read, write = got.cache_read_input_tokens or 0, got.cache_creation_input_tokens or 0
        thought = got.output_tokens_details.thinking_tokens if got.output_tokens_details else 0
        usage = types.Usage((got.input_tokens or 0) + read + write, got.output_tokens or 0, read, write, thought)
        return msgspec.structs.replace(usage, cost=self._price.of(usage)) if self._price else usage

    def _failure(self, data: str) -> errors.ModelError:
        try:
            given = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            given = data
        return provider_errors.of_object(given, self._asked, said=self._said, secrets=self._secrets)

    def _malformed(self, what: str) -> errors.ModelError:
        kind = errors.ModelCut if self._said else errors.ModelServerError
        return kind(f"{self._asked.model} {what}. Try again.", model=self._asked.model)
