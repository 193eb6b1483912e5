"""The tools an agent has, and the border between what a model asked for and what a tool is given."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.tools import port

logger = logging.getLogger("holdfast.tools")

MAX_OUTPUT = 30_000
_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


class Registry:
    """Tools by name. Two of one name are refused."""

    def __init__(self, tools: Iterable[port.Tool] = ()) -> None:
        self._tools: dict[str, port.Tool] = {}
        for tool in tools:
            if tool.spec.name in self._tools:
                raise errors.OutOfRange(f"There are two tools called {errors.shown(tool.spec.name)}.")
            self._tools[tool.spec.name] = tool
        self.specs = tuple(tool.spec for tool in self._tools.values())

    def parallel(self, call: types.ToolCall) -> bool:
        """Whether a call may run beside others; a call that will be refused may."""
        tool = self._tools.get(call.name)
        return tool is None or tool.parallel

    async def run(self, call: types.ToolCall) -> port.Result:
        """The result of a call; whatever goes wrong is a result too, for the model to read."""
        try:
            tool = self._tools.get(call.name)
            if tool is None:
                known = ", ".join(self._tools) or "none"
                raise errors.ToolFailed(f"There is no tool {errors.shown(call.name)}. There is: {known}.")
            arguments = checked(_arguments(call), tool.spec.parameters)
            return port.Result(capped(readable(await tool.run(arguments))))
        except errors.HoldfastError as error:
            return port.Result(f"Error: {error}", ok=False)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return port.Result("Error: the tool stopped by itself.", ok=False)
        except Exception as error:
            logger.exception("the tool %s failed", call.name)
            return port.Result(f"Error: the tool failed ({type(error).__name__}).", ok=False)


def _arguments(call: types.ToolCall) -> port.Arguments:
    if isinstance(call.arguments, dict):
        return call.arguments
    try:
        given = msgspec.json.decode(call.arguments) if call.arguments.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise errors.ToolFailed("The arguments are not valid JSON. Call the tool again with a JSON object.") from None
    if not isinstance(given, dict):
        raise errors.ToolFailed("The arguments are not a JSON object.")
    return given


def checked(given: port.Arguments, schema: dict[str, Any]) -> port.Arguments:
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


def capped(content: types.Content, limit: int = MAX_OUTPUT) -> types.Content:
    """The beginning and the end of an output that is too long, and how much is missing between; each text of parts."""
    if not isinstance(content, str):
        return [
            {**part, "text": capped(part["text"], limit)} if isinstance(part.get("text"), str) else part
            for part in content
        ]
    if len(content) <= limit:
        return content
    head, tail = content[: limit * 2 // 3], content[-limit // 3 :]
    missing = len(content) - len(head) - len(tail)
    return f"{head}\n[… {missing:,} characters left out; ask for a smaller part to see them …]\n{tail}"
