"""Parse the event stream of Anthropic's Messages API into deltas. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.model import base, provider_errors, stream_parser, surrogates

_FINISH: dict[str, base.Finish] = {
    "tool_use": "calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


class _Started(msgspec.Struct, frozen=True):
    id: str | None = None
    usage: dict[str, Any] | None = None


class _Block(msgspec.Struct, frozen=True):
    """A content block as it begins, or the next piece of one."""

    type: str = ""
    id: str | None = None
    name: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    input: Any = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, frozen=True):
    """Any event of the stream. Other fields and unknown types are ignored."""

    type: str = ""
    index: int = 0
    delta: _Block = _Block()
    content_block: _Block = _Block()
    message: _Started = _Started()
    usage: dict[str, Any] | None = None


_decoder = msgspec.json.Decoder(_Event)


class Parser(stream_parser.StreamParser):
    """The parser of the Messages API.

    The usage is reported with the first content, so that a request without content can still be retried.
    """

    def __init__(self, advice: provider_errors.Advice, **options: Any) -> None:
        super().__init__(advice, **options)
        self._message_id = "call"
        self._usage: dict[str, Any] = {}
        # By the index of their block: the numbers of open calls, the inputs that their first events had, signatures.
        self._calls: dict[int, int] = {}
        self._call_count = 0
        self._inputs: dict[int, Any] = {}
        self._signatures: dict[int, str] = {}

    def feed(self, name: str, data: str) -> list[base.Delta]:
        if name == "error":
            raise self._error(data)
        event = self._decode(data, _decoder) if data else _Event()
        deltas: list[base.Delta] = []
        match event.type:
            case "message_start":
                self._message_id = event.message.id or self._message_id
                self._update_usage(event.message.usage)
            case "message_delta":
                self._finish = event.delta.stop_reason or self._finish
                self._update_usage(event.usage)
                return [base.UsageDelta(self._total_usage())] if self._has_begun else []
            case "message_stop":
                return self._close()
            case "error":
                raise self._error(data)
            case "content_block_start":
                deltas = self._open_block(event.index, event.content_block)
            case "content_block_delta":
                deltas = self._continue_block(event.index, event.delta)
            case "content_block_stop":
                deltas = self._close_block(event.index)
        if deltas and not self._has_begun:
            self._has_begun = True
            return [base.UsageDelta(self._total_usage()), *deltas]
        return deltas

    def end(self) -> list[base.Delta]:
        """Return the last deltas. Raises ModelCut unless at most the last event is missing."""
        if not self.done and not self.complete:
            raise errors.ModelCut(f"{self._advice.model} {provider_errors.BROKE_OFF}.", model=self._advice.model)
        return [] if self.done else self._close()

    def _open_block(self, index: int, block: _Block) -> list[base.Delta]:
        match block.type:
            case "text":
                return self._add_text(index, block.text)
            case "tool_use":
                number = self._calls[index] = self._call_count
                self._call_count += 1
                self._inputs[index] = block.input
                # Compatible servers may send no id.
                call_id = surrogates.repair(block.id) or f"{self._message_id}_{number}"
                return [base.ToolCallDelta(number, call_id, self._tool_name(block.name))]
            case "thinking":
                self._signatures[index] = surrogates.repair(block.signature or "")
                return self._add_thinking(index, block.thinking)
            case "redacted_thinking" if block.data:
                return [base.ThinkingDelta(hidden=surrogates.repair(block.data))]
        return []

    def _continue_block(self, index: int, piece: _Block) -> list[base.Delta]:
        match piece.type:
            case "text_delta":
                return self._add_text(index, piece.text)
            case "input_json_delta" if piece.partial_json and index in self._calls:
                self._inputs.pop(index, None)
                arguments = self._texts.add(("input", index), piece.partial_json)
                return [base.ToolCallDelta(self._calls[index], arguments=arguments)] if arguments else []
            case "thinking_delta":
                return self._add_thinking(index, piece.thinking)
            case "signature_delta" if piece.signature:
                self._signatures[index] = surrogates.repair(piece.signature)
        return []

    def _add_text(self, index: int, piece: str | None) -> list[base.Delta]:
        text = self._texts.add(("text", index), piece or "")
        return [base.ContentDelta(text)] if text else []

    def _add_thinking(self, index: int, piece: str | None) -> list[base.Delta]:
        text = self._texts.add(("thinking", index), piece or "")
        return [base.ThinkingDelta(text)] if text else []

    def _close_block(self, index: int) -> list[base.Delta]:
        deltas: list[base.Delta] = []
        if rest := self._texts.rest(("text", index)):
            deltas.append(base.ContentDelta(rest))
        if rest := self._texts.rest(("thinking", index)):
            deltas.append(base.ThinkingDelta(rest))
        if signature := self._signatures.pop(index, ""):
            deltas.append(base.ThinkingDelta(signature=signature))
        number = self._calls.pop(index, None)
        if number is not None:
            # Without pieces, the first event had the whole input, or there is none.
            given = self._inputs.pop(index, None)
            whole = "" if given is None else msgspec.json.encode(surrogates.repair(given)).decode()
            if arguments := whole + self._texts.rest(("input", index)):
                deltas.append(base.ToolCallDelta(number, arguments=arguments))
        return deltas

    def _close(self) -> list[base.Delta]:
        if self._finish == "model_context_window_exceeded" and not self._has_begun:
            raise provider_errors.from_object({"error": {"type": self._finish}}, self._advice, has_begun=False)
        unclosed = dict.fromkeys((*self._calls, *(index for _, index in self._texts.waiting)))
        deltas = [delta for index in unclosed for delta in self._close_block(index)]
        reason = _FINISH.get(self._finish or "", "stop")
        if reason == "stop" and self._call_count:
            reason = "calls"
        self.done = True
        return [*deltas, base.UsageDelta(self._total_usage()), base.FinishDelta(reason)]

    def _update_usage(self, usage: dict[str, Any] | None) -> None:
        """Update the totals. Fields that a later event omits keep their value."""
        self._usage.update({name: value for name, value in (usage or {}).items() if value is not None})

    def _total_usage(self) -> types.Usage:
        count = stream_parser.get_count
        read = count(self._usage, "cache_read_input_tokens")
        write = count(self._usage, "cache_creation_input_tokens")
        reasoning = count(stream_parser.get_dict(self._usage, "output_tokens_details"), "thinking_tokens")
        total = count(self._usage, "input_tokens") + read + write
        return self._add_cost(types.Usage(total, count(self._usage, "output_tokens"), read, write, reasoning))
