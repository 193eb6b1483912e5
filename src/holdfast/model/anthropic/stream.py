"""Parse the event stream of Anthropic's Messages API into deltas. Pure."""

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


class _Started(msgspec.Struct, frozen=True):
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
    """Any event of the stream. Other fields and unknown types are ignored."""

    type: str = ""
    index: int = 0
    delta: _Piece = _Piece()
    content_block: _Block = _Block()
    message: _Started = _Started()
    usage: _Usage | None = None


class _Call:
    """A tool call in progress: its index, and the input of its first event until the first piece comes."""

    __slots__ = ("index", "input")

    def __init__(self, index: int, input: Any) -> None:
        self.index = index
        self.input = input


_decoder = msgspec.json.Decoder(_Event).decode


class Parser:
    """Turns the events of one stream into deltas. Raises errors.ModelError only.

    The usage is reported with the first content, so that a request without content can still be retried.
    """

    def __init__(
        self,
        advice: provider_errors.Advice,
        *,
        names: Mapping[str, str] | None = None,
        price: base.Price | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self.done = False
        self._advice = advice
        self._names = names or {}
        self._price = price
        self._secrets = tuple(secret for secret in secrets if secret)
        self._has_begun = False
        self._message_id = "call"
        self._stop: str | None = None
        self._usage = _Usage()
        self._calls: dict[int, _Call] = {}
        self._call_count = 0
        self._signatures: dict[int, str] = {}
        # The keys are the kind of text and the index of the block.
        self._texts = surrogates.SurrogateJoiner[tuple[str, int]]()

    @property
    def complete(self) -> bool:
        """Whether the server has sent the reason why the reply ended."""
        return self._stop is not None

    def feed(self, name: str, data: str) -> list[base.Delta]:
        """Return the deltas of an event."""
        if name == "error":
            raise self._error(data)
        try:
            event = surrogates.decode(data, _decoder, _Event) if data else _Event()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            what = "sent an event that cannot be decoded"
            raise provider_errors.malformed(self._advice, what, has_begun=self._has_begun) from None
        match event.type:
            case "message_start":
                self._message_id = event.message.id or self._message_id
                self._update_usage(event.message.usage)
            case "message_delta":
                self._stop = event.delta.stop_reason or self._stop
                self._update_usage(event.usage)
                return [base.UsageDelta(self._total_usage())] if self._has_begun else []
            case "message_stop":
                return self._finish()
            case "error":
                raise self._error(data)
        deltas = self._feed_block(event)
        if deltas and not self._has_begun:
            self._has_begun = True
            return [base.UsageDelta(self._total_usage()), *deltas]
        return deltas

    def _feed_block(self, event: _Event) -> list[base.Delta]:
        match event.type:
            case "content_block_start":
                return self._open_block(event.index, event.content_block)
            case "content_block_delta":
                return self._continue_block(event.index, event.delta)
            case "content_block_stop":
                return self._close_block(event.index)
        return []

    def end(self) -> list[base.Delta]:
        """Return the last deltas. Raises ModelCut unless at most the last event is missing."""
        if self.done:
            return []
        if self.complete:
            return self._finish()
        raise provider_errors.malformed(self._advice, provider_errors.BROKE_OFF, has_begun=True)

    def _open_block(self, index: int, block: _Block) -> list[base.Delta]:
        match block.type:
            case "text":
                return self._add_text(index, block.text)
            case "tool_use":
                call = self._calls[index] = _Call(self._call_count, block.input)
                self._call_count += 1
                # Compatible servers may send no id.
                call_id = surrogates.repair(block.id) or f"{self._message_id}_{call.index}"
                name = surrogates.repair(block.name or "")
                return [base.ToolCallDelta(call.index, call_id, self._names.get(name, name))]
            case "thinking":
                self._signatures[index] = surrogates.repair(block.signature or "")
                return self._add_reasoning(index, block.thinking)
            case "redacted_thinking" if block.data:
                return [base.ThinkingDelta(hidden=surrogates.repair(block.data))]
        return []

    def _continue_block(self, index: int, piece: _Piece) -> list[base.Delta]:
        match piece.type:
            case "text_delta":
                return self._add_text(index, piece.text)
            case "input_json_delta" if piece.partial_json and (call := self._calls.get(index)):
                call.input = None
                arguments = self._texts.add(("input", index), piece.partial_json)
                return [base.ToolCallDelta(call.index, arguments=arguments)] if arguments else []
            case "thinking_delta":
                return self._add_reasoning(index, piece.thinking)
            case "signature_delta" if piece.signature:
                self._signatures[index] = surrogates.repair(piece.signature)
        return []

    def _add_text(self, index: int, piece: str | None) -> list[base.Delta]:
        text = self._texts.add(("text", index), piece) if piece else ""
        return [base.ContentDelta(text)] if text else []

    def _add_reasoning(self, index: int, piece: str | None) -> list[base.Delta]:
        text = self._texts.add(("thinking", index), piece) if piece else ""
        return [base.ThinkingDelta(text)] if text else []

    def _close_block(self, index: int) -> list[base.Delta]:
        deltas: list[base.Delta] = []
        if rest := self._texts.rest(("text", index)):
            deltas.append(base.ContentDelta(rest))
        if rest := self._texts.rest(("thinking", index)):
            deltas.append(base.ThinkingDelta(rest))
        if signature := self._signatures.pop(index, ""):
            return [*deltas, base.ThinkingDelta(signature=signature)]
        call = self._calls.pop(index, None)
        if call is not None:
            rest = self._texts.rest(("input", index))
            # Without pieces, the first event had the whole input, or there is none.
            whole = "" if call.input is None else msgspec.json.encode(surrogates.repair(call.input)).decode()
            if whole or rest:
                deltas.append(base.ToolCallDelta(call.index, arguments=whole + rest))
        return deltas

    def _finish(self) -> list[base.Delta]:
        if self._stop == "model_context_window_exceeded" and not self._has_begun:
            raise provider_errors.from_object({"error": {"type": self._stop}}, self._advice, has_begun=False)
        unclosed = dict.fromkeys((*self._calls, *(index for _, index in self._texts.waiting)))
        deltas = [delta for index in unclosed for delta in self._close_block(index)]
        reason = _FINISH.get(self._stop or "end_turn", "stop")
        if reason == "stop" and self._call_count:
            reason = "calls"
        self.done = True
        return [*deltas, base.UsageDelta(self._total_usage()), base.FinishDelta(reason)]

    def _update_usage(self, usage: _Usage | None) -> None:
        """Update the totals. Fields that a later event omits keep their value."""
        if usage is None:
            return
        known = {name: value for name in usage.__struct_fields__ if (value := getattr(usage, name)) is not None}
        self._usage = msgspec.structs.replace(self._usage, **known)

    def _total_usage(self) -> types.Usage:
        usage = self._usage
        read, write = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
        reasoning = usage.output_tokens_details.thinking_tokens if usage.output_tokens_details else 0
        total = types.Usage((usage.input_tokens or 0) + read + write, usage.output_tokens or 0, read, write, reasoning)
        return msgspec.structs.replace(total, cost=self._price.of(total)) if self._price else total

    def _error(self, data: str) -> errors.ModelError:
        return provider_errors.from_event(data, self._advice, has_begun=self._has_begun, secrets=self._secrets)
