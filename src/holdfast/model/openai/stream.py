"""What the stream of a Chat Completions API says, as deltas. Pure: the same events always become the same deltas.

Not all who speak this format speak it well. Calls come without an index or an id, with arguments that are objects,
or all at index 0; streams end without saying so. The parser takes what can be understood in one way only.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.model import base, provider_errors, surrogates

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
    """Any event of the stream. What is not here says nothing to us."""

    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    object: str | None = None


class _Call:
    """A call that is being said, at its place among the calls."""

    __slots__ = ("arguments", "id", "name", "place")

    def __init__(self, place: int) -> None:
        self.place = place
        self.id = ""
        self.name = ""
        self.arguments = ""


_decode = msgspec.json.Decoder(_Chunk).decode


def _minted() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


class Parser:
    """The events of one stream, in order, become deltas. Raises errors.ModelError only."""

    def __init__(
        self,
        asked: provider_errors.Asked,
        *,
        provider: str = "",
        names: Mapping[str, str] | None = None,
        price: base.Price | None = None,
        secrets: tuple[str, ...] = (),
        mint: Callable[[], str] = _minted,
    ) -> None:
        self.done = False
        self._asked = asked
        self._provider = provider
        self._names = names or {}
        self._price = price
        self._secrets = tuple(secret for secret in secrets if secret)
        self._mint = mint
        self._finish: str | None = None
        self._said = False
        self._refused = False
        self._usage: dict[str, Any] = {}
        self._field = ""
        self._details: list[dict[str, Any]] = []
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        # What is said and what is thought, and the arguments of each call by its place.
        self._halves = surrogates.Joining[str | int]()

    @property
    def complete(self) -> bool:
        """Whether the server has said why it ended."""
        return self._finish is not None

    def feed(self, name: str, data: str) -> list[base.Delta]:
        """What an event says."""
        if data.startswith("[DONE]"):
            self.done = True
            return []
        if not data:
            return []
        try:
            chunk = surrogates.decoded(data, _decode, _Chunk)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._failure(data) if name == "error" else self._malformed() from None
        if chunk.error or name == "error" or chunk.object == "error":
            raise self._failure(data)
        if chunk.usage:
            self._usage = chunk.usage
        deltas: list[base.Delta] = []
        for choice in chunk.choices or ():
            if not choice.index:
                self._choose(choice, deltas)
        self._said = self._said or bool(deltas)
        return deltas

    def end(self) -> list[base.Delta]:
        """The stream has ended: complete, if it said why, and cut otherwise."""
        if self._finish in _BROKEN or (self._finish is None and not self._may_be_whole):
            kind = errors.ModelCut if self._said else errors.ModelServerError
            raise kind(f"{self._asked.model} broke off in the middle of its answer.", model=self._asked.model)
        deltas: list[base.Delta] = []
        self._close_said(deltas)
        self._close_thought(deltas)
        deltas += [
            base.Called(call.place, arguments=rest) for call in self._calls if (rest := self._halves.rest(call.place))
        ]
        # An id may come late, but a call without one cannot have a result.
        deltas += [base.Called(call.place, self._new_id(call)) for call in self._calls if not call.id]
        if self._usage:
            deltas.append(base.Counted(self._counted()))
        return [*deltas, base.Finished(self._reason())]

    @property
    def _may_be_whole(self) -> bool:
        # Some servers give no reason, only the mark of the end.
        return self.done and self._said

    def _choose(self, choice: _Choice, deltas: list[base.Delta]) -> None:
        given = choice.delta or choice.message
        if choice.finish_reason:
            self._finish = choice.finish_reason.lower()
        if given is None:
            return
        self._think(given, deltas)
        for text in (given.content, given.refusal):
            if text:
                self._say(text, deltas)
        self._refused = self._refused or bool(given.refusal)
        for piece in given.tool_calls or ():
            self._close_thought(deltas)
            self._call(piece, deltas)

    def _say(self, content: str | list[Any], deltas: list[base.Delta]) -> None:
        if isinstance(content, str):
            self._close_thought(deltas)
            if text := self._halves.add("said", content):
                deltas.append(base.Said(text))
            return
        for part in content:
            match part:
                case {"type": "text", "text": str() as text} if text:
                    self._say(text, deltas)
                case {"type": "thinking", "thinking": [*thoughts]}:
                    texts = [one["text"] for one in thoughts if isinstance(one, dict) and "text" in one]
                    self._thought("".join(text for text in texts if isinstance(text, str)), deltas)

    def _think(self, given: _Delta, deltas: list[base.Delta]) -> None:
        text = given.reasoning_content or given.reasoning
        if text:
            self._field = "reasoning_content" if given.reasoning_content else "reasoning"
        if given.reasoning_details:
            self._details += given.reasoning_details
            text = text or "".join(
                told for one in given.reasoning_details if isinstance(told := one.get("text", one.get("summary")), str)
            )
        if text:
            self._thought(text, deltas)

    def _thought(self, piece: str, deltas: list[base.Delta]) -> None:
        self._close_said(deltas)
        if text := self._halves.add("thought", piece):
            deltas.append(base.Thought(text))

    def _close_said(self, deltas: list[base.Delta]) -> None:
        if rest := self._halves.rest("said"):
            deltas.append(base.Said(rest))

    def _close_thought(self, deltas: list[base.Delta]) -> None:
        """A thought has ended: with it goes what its provider wants to see again, and in which field."""
        if rest := self._halves.rest("thought"):
            deltas.append(base.Thought(rest))
        if self._field or self._details:
            hidden = msgspec.json.encode(surrogates.mended(_merged(self._details))).decode() if self._details else ""
            deltas.append(base.Thought(signature="" if hidden else self._field, hidden=hidden))
            self._field, self._details = "", []

    def _call(self, piece: _Piece, deltas: list[base.Delta]) -> None:
        function = piece.function or _Function()
        given, asked = function.arguments or "", surrogates.mended(function.name or "")
        name = self._names.get(asked, asked)
        arguments = given if isinstance(given, str) else msgspec.json.encode(surrogates.mended(given)).decode()
        call = self._meant(piece, name, arguments)
        arguments = self._halves.add(call.place, arguments)
        new_id = new_name = ""
        if piece.id and not call.id:
            given_id = surrogates.mended(piece.id)
            new_id = call.id = given_id if all(given_id != other.id for other in self._calls) else self._mint()
        if name and not call.name:
            new_name = call.name = name
        call.arguments += arguments
        extra = (
            {self._provider: {"extra_content": surrogates.mended(piece.extra_content)}} if piece.extra_content else {}
        )
        if new_id or new_name or arguments or extra:
            deltas.append(base.Called(call.place, new_id, new_name, arguments, extra))

    def _meant(self, piece: _Piece, name: str, arguments: str) -> _Call:
        """The call a piece belongs to: by index, by id where there is no index, or to the last one."""
        if piece.index is None:
            known = next((call for call in self._calls if piece.id and call.id == piece.id), None)
            last = self._calls[-1] if self._calls else None
            known = known or (last if last and not piece.id and not (name and _begins(last, name, arguments)) else None)
        else:
            known = self._at.get(piece.index)
            if known and name and _other(known, piece.id, name, arguments):
                known = None
        if known is not None:
            return known
        call = _Call(len(self._calls))
        self._calls.append(call)
        if piece.index is not None:
            self._at[piece.index] = call
        return call

    def _new_id(self, call: _Call) -> str:
        call.id = self._mint()
        return call.id

    def _reason(self) -> base.Finish:
        reason = _FINISH.get(self._finish or "", "stop")
        if reason in ("stop", "calls"):
            reason = "calls" if self._calls else "stop"
        return "refused" if self._refused and reason == "stop" else reason

    def _counted(self) -> types.Usage:
        got = self._usage
        told, made = _inner(got, "prompt_tokens_details"), _inner(got, "completion_tokens_details")
        sent, total = _count(got, "prompt_tokens"), _count(got, "total_tokens")
        usage = types.Usage(
            sent,
            # Some count what was thought in the total only.
            max(_count(got, "completion_tokens"), total - sent),
            _count(told, "cached_tokens") or _count(got, "prompt_cache_hit_tokens"),
            _count(told, "cache_write_tokens"),
            _count(made, "reasoning_tokens"),
        )
        cost = got.get("cost")
        if not isinstance(cost, int | float):
            cost = self._price.of(usage) if self._price else None
        return msgspec.structs.replace(usage, cost=cost)

    def _failure(self, data: str) -> errors.ModelError:
        try:
            given = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            given = data
        return provider_errors.of_object(given, self._asked, said=self._said, secrets=self._secrets)

    def _malformed(self) -> errors.ModelError:
        kind = errors.ModelCut if self._said else errors.ModelServerError
        return kind(f"{self._asked.model} sent an event that cannot be read. Try again.", model=self._asked.model)


def _other(known: _Call, id: str | None, name: str, arguments: str) -> bool:
    """Whether a piece that has a name is another call at an index that was taken already."""
    if id and known.id:
        return id != known.id
    return _begins(known, name, arguments)


def _begins(known: _Call, name: str, arguments: str) -> bool:
    """Whether a name begins another call: not where it is only said again, with more of the arguments."""
    if not known.name:
        return False
    return known.name != name or (_whole(known.arguments) and bool(arguments))


def _whole(arguments: str) -> bool:
    try:
        msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return False
    return True


def _merged(details: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The pieces of hidden reasoning as whole ones: those of one index and type are one."""
    whole: list[dict[str, Any]] = []
    for piece in details:
        last = whole[-1] if whole else {}
        if last and all(last.get(key) == piece.get(key) for key in ("index", "type")) and "index" in piece:
            for key, value in piece.items():
                grows = key in ("text", "summary", "data") and isinstance(value, str)
                last[key] = (last.get(key) or "") + value if grows else (last.get(key) if value is None else value)
        else:
            whole.append(dict(piece))
    return whole


def _inner(given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = given.get(key)
    return found if isinstance(found, dict) else {}


def _count(given: Mapping[str, Any], key: str) -> int:
    found = given.get(key)
    return int(found) if isinstance(found, int | float) and found > 0 else 0
