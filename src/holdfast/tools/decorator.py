"""Build a tool from a typed function: its signature gives the schema, its docstring the description.

The arguments are validated against the types of the signature before the function is called; the model gets the
validation error. The function returns text, a list of parts, or any value that JSON can represent.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import re
import typing
from collections.abc import Awaitable, Callable
from typing import Any, Literal, overload

import msgspec

from holdfast import errors, types
from holdfast.tools import base

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)
"""Tool names that every provider accepts."""
MAX_SUMMARY = 200
DONE = "Done."

Approval = Literal["run", "change", "reach"]
Function = Callable[..., Any]
_TYPE_NAMES: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "integer"), (str, "string"))


@overload
def tool(function: Function, /) -> base.Tool: ...


@overload
def tool(
    *, name: str | None = None, parallel: bool = False, approval: Approval | None = None
) -> Callable[[Function], base.Tool]: ...


def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    parallel: bool = False,
    approval: Approval | None = None,
) -> base.Tool | Callable[[Function], base.Tool]:
    """Build a tool from a function, async or not: `@tool`, `@tool(parallel=True)` or `@tool(approval="run")`.

    With `approval`, each call needs an approval, as an act that runs a program, changes files or contacts something
    outside. A function that is not async runs in a thread, which cannot be stopped: long work should be async. Raises
    InvalidArgument if no tool can be built from the function.
    """

    def build(given: Function) -> base.Tool:
        return _build(given, name or str(getattr(given, "__name__", "")), parallel, approval)

    return build if function is None else build(function)


def _build(function: Function, name: str, parallel: bool, approval: Approval | None) -> base.Tool:
    if not NAME.fullmatch(name):
        raise errors.InvalidArgument(
            f"{errors.quote(name)} is not a valid tool name: use letters, digits, _ and -, at most 64."
        )
    description = inspect.getdoc(function)
    if not description:
        raise errors.InvalidArgument(f"The tool {name} needs a docstring, which is its description for the model.")
    form = _build_struct(function, name)

    async def run(arguments: base.Arguments) -> types.Content | base.Plan:
        given = _convert_arguments(arguments, form)

        async def go() -> types.Content:
            return _to_content(await _call(function, given))

        if approval is not None:
            return base.Plan(_describe_call(name, approval, arguments), go)
        result = await _call(function, given)
        return result if isinstance(result, base.Plan) else _to_content(result)

    return base.Tool(types.ToolSpec(name, description, build_schema(form)), run, parallel)


# --- the signature -------------------------------------------------------------------------------------


def _build_struct(function: Function, name: str) -> type[msgspec.Struct]:
    """Return a struct whose fields are the parameters of the function."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise errors.InvalidArgument(f"The types of {name} cannot be read: {error}.") from None
    fields: list[tuple[str, Any, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise errors.InvalidArgument(f"The tool {name} has `{parameter}`, which a model cannot pass by name.")
        if parameter.name not in hints:
            raise errors.InvalidArgument(f"The parameter `{parameter.name}` of the tool {name} needs a type.")
        fields.append((parameter.name, _with_description(hints[parameter.name]), _default(parameter)))
    try:
        return msgspec.defstruct(name.replace("-", "_"), fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise errors.InvalidArgument(f"No tool can be built from {name}: {error}.") from None


def _with_description(hint: Any) -> Any:
    """Convert the text in `Annotated[str, "description"]` to the form of msgspec."""
    if typing.get_origin(hint) is not typing.Annotated:
        return hint
    kind, *notes = typing.get_args(hint)
    text = " ".join(each for each in notes if isinstance(each, str))
    metas = [each for each in notes if isinstance(each, msgspec.Meta)]
    for meta in [*metas, *([msgspec.Meta(description=text)] if text else [])]:
        kind = typing.Annotated[kind, meta]
    return kind


def _default(parameter: inspect.Parameter) -> Any:
    given = parameter.default
    if given is parameter.empty:
        return msgspec.NODEFAULT
    if isinstance(given, list | dict | set):
        return msgspec.field(default_factory=lambda: copy.deepcopy(given))
    return given


def build_schema(form: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a struct without references, which many providers do not resolve."""
    try:
        (whole,), parts = msgspec.json.schema_components([form])
        schema: dict[str, Any] = _inline(whole, parts, ())
    except TypeError as error:
        raise errors.InvalidArgument(f"A type of {form.__name__} cannot be described to a model: {error}.") from None
    schema.pop("title", None)
    return {"properties": {}, **schema}


def _inline(schema: Any, parts: dict[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(schema, list):
        return [_inline(each, parts, inside) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in inside:
            raise TypeError(f"{name} contains itself")
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**_inline(parts[name], parts, (*inside, name)), **rest}
    made = {key: _inline(value, parts, inside) for key, value in schema.items()}
    if isinstance(made.get("enum"), list) and "type" not in made:
        # Some providers require the type of an enum.
        found = {next((name for kind, name in _TYPE_NAMES if isinstance(each, kind)), "") for each in made["enum"]}
        made |= {"type": found.pop()} if len(found) == 1 and "" not in found else {}
    return made


# --- a call --------------------------------------------------------------------------------------------


def _convert_arguments(arguments: base.Arguments, form: type[msgspec.Struct]) -> dict[str, Any]:
    try:
        made = msgspec.convert(arguments, form)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        place = where.strip("`").removeprefix("$").lstrip(".")
        raise errors.ToolFailed(f"`{place}`: {what}." if place else f"{what}.") from None
    return {name: getattr(made, name) for name in made.__struct_fields__}


async def _call(function: Function, given: dict[str, Any]) -> object:
    if inspect.iscoroutinefunction(function):
        return await function(**given)

    def call() -> object:
        try:
            return function(**given)
        except StopIteration as error:
            # A future cannot carry StopIteration, and the caller would wait without end.
            raise RuntimeError("the function raised StopIteration") from error

    result = await asyncio.to_thread(call)
    return await result if isinstance(result, Awaitable) else result


def _to_content(result: object) -> types.Content:
    """Return text and parts unchanged, any other value as JSON."""
    if result is None:
        return DONE
    if isinstance(result, str):
        return result
    if isinstance(result, list) and result and all(isinstance(part, dict) and "type" in part for part in result):
        return result
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError, RecursionError):
        raise errors.ToolFailed(f"The tool returned {type(result).__name__}, which is neither text nor JSON.") from None


def _describe_call(name: str, kind: Approval, arguments: base.Arguments) -> base.Act:
    """Describe a call for approval, on one line: unprintable characters in arguments are escaped."""
    values = {each: msgspec.json.encode(value).decode() for each, value in arguments.items()}
    given = ", ".join(f"{each}={text}" for each, text in values.items())
    line = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in f"{name}({given})")
    short = line if len(line) <= MAX_SUMMARY else f"{line[:MAX_SUMMARY]}…"
    return base.Act(tool=name, kind=kind, summary=short, detail="" if short == line else line)
