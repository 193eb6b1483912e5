"""The tools of an agent: validates the arguments of a call, asks for approval, and turns errors into results."""

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

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


@asynccontextmanager
async def allow_reads_only(_: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
    """The gate without a person to ask: allow what only reads, refuse everything else."""
    if act.kind != "look" or act.danger:
        raise errors.NotAllowed(f"Not allowed: {act.summary} There is no one to approve it.")
    yield


class Registry:
    """Tools by name; duplicate names are refused. Plans pass the gate before they are executed.

    `keep` stores outputs that are too long, if one of the tools can read them. `more` returns further tools at the
    start of a turn, which do not change during the turn.
    """

    def __init__(
        self,
        tools: Iterable[base.Tool] = (),
        gate: base.Gate = allow_reads_only,
        keep: long_output.Keep | None = None,
        more: base.Source | None = None,
    ) -> None:
        self._tools: dict[str, base.Tool] = {}
        self._gate = gate
        for tool in tools:
            if tool.spec.name in self._tools:
                raise errors.InvalidArgument(f"There are two tools called {errors.quote(tool.spec.name)}.")
            self._tools[tool.spec.name] = tool
        self.specs = tuple(tool.spec for tool in self._tools.values())
        self._keep = keep if long_output.NAME in self._tools else None
        self._own, self._more = dict(self._tools), more
        self._offered: tuple[base.Tool, ...] = ()
        self._reported = set[str]()

    async def update(self) -> Sequence[str]:
        """Update the tools from `more`, and return new remarks. Own tools win over others of the same name."""
        if self._more is None:
            return ()
        offer = await self._more()
        if offer.tools is not self._offered:
            self._offered = offer.tools
            self._tools = {tool.spec.name: tool for tool in offer.tools} | self._own
            names = [*self._own, *(name for name in self._tools if name not in self._own)]
            self.specs = tuple(self._tools[name].spec for name in names)
        fresh = [remark for remark in offer.remarks if remark not in self._reported]
        self._reported.update(fresh)
        return fresh

    def parallel(self, call: types.ToolCall) -> bool:
        """Return whether a call may run concurrently with others; a call that will be refused may."""
        tool = self._tools.get(call.name)
        return tool is None or tool.parallel

    async def run(self, call: types.ToolCall) -> base.Result:
        """Run a call. Errors become results for the model; long results are cut."""
        result = await self._run(call)
        content = await long_output.limit_content(result.content, self._keep)
        if result.ok and not content_parts.is_success(call.name, content):
            # A successful text that looks like an error, such as a server's, is marked as a success in the log.
            content = content_parts.mark_success(content)
        return result if content is result.content else base.Result(content, result.ok)

    async def _run(self, call: types.ToolCall) -> base.Result:
        try:
            tool = self._tools.get(call.name)
            if tool is None:
                known = ", ".join(self._tools) or "none"
                raise errors.ToolFailed(f"There is no tool {errors.quote(call.name)}. There is: {known}.")
            made: object = await tool.run(check_arguments(_parse_arguments(call), tool.spec.parameters))
            if isinstance(made, base.Plan):
                async with self._gate(call, made.act):
                    made = await made.go()
            done = made if isinstance(made, base.Result) else None
            return base.Result(to_content(done.content), done.ok) if done else base.Result(to_content(made))
        except errors.HoldfastError as error:
            return base.Result(f"{content_parts.ERROR}{error}", ok=False)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return base.Result(f"{content_parts.ERROR}the tool cancelled itself.", ok=False)
        except Exception as error:
            logger.exception("the tool %s failed", call.name)
            return base.Result(f"{content_parts.ERROR}the tool failed ({type(error).__name__}).", ok=False)


def _parse_arguments(call: types.ToolCall) -> base.Arguments:
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        given = msgspec.json.decode(call.arguments) if call.arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise errors.ToolFailed("The arguments are not valid JSON. Call the tool again with a JSON object.") from None
    if not isinstance(given, dict):
        raise errors.ToolFailed("The arguments are not a JSON object.")
    return given


def check_arguments(given: base.Arguments, schema: dict[str, Any]) -> base.Arguments:
    """Check arguments against the top level of a schema: required and known names, types and enums."""
    properties: dict[str, dict[str, Any]] = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in given]
    if missing:
        raise errors.ToolFailed(f"Missing arguments: {', '.join(missing)}.")
    for name, value in given.items():
        if name not in properties:
            if schema.get("additionalProperties", False):
                continue
            raise errors.ToolFailed(f"Unknown argument: {errors.quote(name)}. Known: {', '.join(properties)}.")
        _check_type(name, value, properties[name])
    return given


def _check_type(name: str, value: object, schema: dict[str, Any]) -> None:
    kind = schema.get("type")
    wanted = _TYPES.get(kind) if isinstance(kind, str) else None
    if wanted is None:
        return
    if not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted):
        raise errors.ToolFailed(f"`{name}` must be of type {kind}.")
    if "enum" in schema and value not in schema["enum"]:
        raise errors.ToolFailed(f"`{name}` must be one of {', '.join(map(str, schema['enum']))}.")


def to_content(output: object) -> types.Content:
    """Return a tool's output as message content, with unpaired surrogates replaced."""
    if isinstance(output, str):
        return output.encode("utf-8", "replace").decode()
    if isinstance(output, list) and all(isinstance(part, dict) for part in output):
        try:
            parts: list[dict[str, Any]] = json.loads(json.dumps(output, allow_nan=False).encode("utf-8", "replace"))
        except (TypeError, ValueError, RecursionError):
            raise errors.ToolFailed("The tool returned something that cannot be stored.") from None
        return [_repair(part) for part in parts]
    raise errors.ToolFailed(f"The tool returned {type(output).__name__} instead of text or parts.")


def _repair(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    return {**part, "text": text.encode("utf-8", "replace").decode()} if isinstance(text, str) else part
