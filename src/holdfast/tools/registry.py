"""The tools an agent has, and the border between what a model asked for and what a tool is given."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast import content_parts, errors, types
from holdfast.tools import base, long_output

logger = logging.getLogger("holdfast.tools")

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@asynccontextmanager
async def nobody_answers(_: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
    """The gate where nobody can be asked: to look is allowed, all else is not."""
    if act.kind != "look" or act.danger:
        raise errors.NotAllowed(f"Not allowed: {act.summary} Nobody is there to permit it.")
    yield


class Registry:
    """Tools by name. Two of one name are refused. What a tool plans to do passes the gate first.

    An output that is too long is kept whole by `keep`, if one of the tools can read it. What `more` offers is taken
    at the start of a turn, and stays the same to its end.
    """

    def __init__(
        self,
        tools: Iterable[base.Tool] = (),
        gate: base.Gate = nobody_answers,
        keep: long_output.Keep | None = None,
        more: base.Source | None = None,
    ) -> None:
        self._tools: dict[str, base.Tool] = {}
        self._gate = gate
        for tool in tools:
            if tool.spec.name in self._tools:
                raise errors.InvalidArgument(f"There are two tools called {errors.shown(tool.spec.name)}.")
            self._tools[tool.spec.name] = tool
        self.specs = tuple(tool.spec for tool in self._tools.values())
        self._keep = keep if long_output.NAME in self._tools else None
        self._own, self._more = dict(self._tools), more
        self._offered: tuple[base.Tool, ...] = ()
        self._told = set[str]()

    async def freshen(self) -> Sequence[str]:
        """Take what is offered now; what there is to tell of it. Nobody can offer what has the name of an own tool."""
        if self._more is None:
            return ()
        offer = await self._more()
        if offer.tools is not self._offered:
            self._offered = offer.tools
            self._tools = {tool.spec.name: tool for tool in offer.tools} | self._own
            names = [*self._own, *(name for name in self._tools if name not in self._own)]
            self.specs = tuple(self._tools[name].spec for name in names)
        untold = [remark for remark in offer.remarks if remark not in self._told]
        self._told.update(untold)
        return untold

    def parallel(self, call: types.ToolCall) -> bool:
        """Whether a call may run beside others; a call that will be refused may."""
        tool = self._tools.get(call.name)
        return tool is None or tool.parallel

    async def run(self, call: types.ToolCall) -> base.Result:
        """The result of a call; whatever goes wrong is a result too, for the model to read. None is too long."""
        result = await self._ran(call)
        content = await long_output.bounded(result.content, self._keep)
        if result.ok and not content_parts.is_success(call.name, content):
            # The words are somebody else's, such as a server's; whoever reads the log has only them.
            content = content_parts.mark_success(content)
        return result if content is result.content else base.Result(content, result.ok)

    async def _ran(self, call: types.ToolCall) -> base.Result:
        try:
            tool = self._tools.get(call.name)
            if tool is None:
                known = ", ".join(self._tools) or "none"
                raise errors.ToolFailed(f"There is no tool {errors.shown(call.name)}. There is: {known}.")
            made: object = await tool.run(checked(_arguments(call), tool.spec.parameters))
            if isinstance(made, base.Plan):
                async with self._gate(call, made.act):
                    made = await made.go()
            done = made if isinstance(made, base.Result) else None
            return base.Result(readable(done.content), done.ok) if done else base.Result(readable(made))
        except errors.HoldfastError as error:
            return base.Result(f"{content_parts.ERROR}{error}", ok=False)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return base.Result(f"{content_parts.ERROR}the tool stopped by itself.", ok=False)
        except Exception as error:
            logger.exception("the tool %s failed", call.name)
            return base.Result(f"{content_parts.ERROR}the tool failed ({type(error).__name__}).", ok=False)


def _arguments(call: types.ToolCall) -> base.Arguments:
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        given = msgspec.json.decode(call.arguments) if call.arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise errors.ToolFailed("The arguments are not valid JSON. Call the tool again with a JSON object.") from None
    if not isinstance(given, dict):
        raise errors.ToolFailed("The arguments are not a JSON object.")
    return given


def checked(given: base.Arguments, schema: dict[str, Any]) -> base.Arguments:
    """Arguments that fit the top level of their schema: nothing missing, nothing unknown, the right kinds."""
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in given]
    if missing:
        raise errors.ToolFailed(f"Missing: {', '.join(missing)}.")
    for name, value in given.items():
        if name not in properties:
            if schema.get("additionalProperties", False):
                continue
            raise errors.ToolFailed(f"Unknown: {errors.shown(name)}. Known: {', '.join(properties)}.")
        _check_kind(name, value, properties[name])
    return given


def _check_kind(name: str, value: object, said: dict[str, Any]) -> None:
    kind = said.get("type")
    wanted = _KINDS.get(kind) if isinstance(kind, str) else None
    if wanted is None:
        return
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise errors.ToolFailed(f"`{name}` must be of type {kind}.")
    if "enum" in said and value not in said["enum"]:
        raise errors.ToolFailed(f"`{name}` must be one of {', '.join(map(str, said['enum']))}.")


def readable(output: object) -> types.Content:
    """What a tool returned, if a message can hold it; text that is no Unicode is mended."""
    if isinstance(output, str):
        return output.encode("utf-8", "replace").decode()
    if isinstance(output, list) and all(isinstance(part, dict) for part in output):
        try:
            parts: list[dict[str, Any]] = json.loads(json.dumps(output, allow_nan=False).encode("utf-8", "replace"))
        except (TypeError, ValueError, RecursionError):
            raise errors.ToolFailed("The tool returned something that cannot be stored.") from None
        return [_mended(part) for part in parts]
    raise errors.ToolFailed(f"The tool returned {type(output).__name__} instead of text or parts.")


def _mended(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    return {**part, "text": text.encode("utf-8", "replace").decode()} if isinstance(text, str) else part
