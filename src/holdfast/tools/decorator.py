"""A tool from a typed function: its signature says what a model may give, its docstring what it is for.

The arguments are checked against the types of the signature before the function sees them; what does not fit is
told to the model. What the function returns is text, a list of parts, or any value JSON can hold.
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
"""What every provider takes as the name of a tool."""
SUMMARY = 200
DONE = "Done."

Approval = Literal["run", "change", "reach"]
Function = Callable[..., Any]
_KINDS: tuple[tuple[type, str], ...] = ((bool, "boolean"), (int, "integer"), (str, "string"))


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
    """A tool made from a function, async or not: `@tool`, or `@tool(parallel=True)`, or `@tool(approval="run")`.

    With `approval` each call is asked for, as something that runs a program, changes files or reaches outside. A
    function that is not async runs in a thread, which nobody can stop: what may take long is better async. Raises
    InvalidArgument for a function no tool can be made of.
    """

    def make(given: Function) -> base.Tool:
        return _made(given, name or str(getattr(given, "__name__", "")), parallel, approval)

    return make if function is None else make(function)


def _made(function: Function, name: str, parallel: bool, approval: Approval | None) -> base.Tool:
    if not NAME.fullmatch(name):
        raise errors.InvalidArgument(
            f"{errors.quote(name)} is no name for a tool: letters, digits, _ and -, at most 64."
        )
    about = inspect.getdoc(function)
    if not about:
        raise errors.InvalidArgument(f"The tool {name} needs a docstring: it tells the model what the tool is for.")
    form = _form(function, name)

    async def run(arguments: base.Arguments) -> types.Content | base.Plan:
        given = _converted(arguments, form)

        async def go() -> types.Content:
            return _content(await _called(function, given))

        if approval is None:
            made = await _called(function, given)
            return made if isinstance(made, base.Plan) else _content(made)
        return base.Plan(_act(name, approval, arguments), go)

    return base.Tool(types.ToolSpec(name, about, schema_of(form)), run, parallel)


# --- the signature -------------------------------------------------------------------------------------


def _form(function: Function, name: str) -> type[msgspec.Struct]:
    """The parameters as the fields of a value, which knows how to check itself."""
    fields: list[tuple[str, Any, Any]] = []
    hints = _hints(function, name)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise errors.InvalidArgument(f"The tool {name} takes `{parameter}`, which no model can give by name.")
        if parameter.name not in hints:
            raise errors.InvalidArgument(f"The tool {name} does not say of what type `{parameter.name}` is.")
        fields.append((parameter.name, _described(hints[parameter.name]), _default(parameter)))
    try:
        return msgspec.defstruct(name.replace("-", "_"), fields, frozen=True, kw_only=True, forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise errors.InvalidArgument(f"No tool can be made of {name}: {error}.") from None


def _hints(function: Function, name: str) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise errors.InvalidArgument(f"The types of {name} cannot be read: {error}.") from None


def _described(hint: Any) -> Any:
    """`Annotated[str, "what it is"]` is what most people write; our codec wants its own word for it."""
    if typing.get_origin(hint) is not typing.Annotated:
        return hint
    kind, *said = typing.get_args(hint)
    told = " ".join(each for each in said if isinstance(each, str))
    kept = [each for each in said if isinstance(each, msgspec.Meta)]
    for meta in [*kept, *([msgspec.Meta(description=told)] if told else [])]:
        kind = typing.Annotated[kind, meta]
    return kind


def _default(parameter: inspect.Parameter) -> Any:
    given = parameter.default
    if given is parameter.empty:
        return msgspec.NODEFAULT
    if isinstance(given, list | dict | set):
        return msgspec.field(default_factory=lambda: copy.deepcopy(given))
    return given


def schema_of(form: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON schema of a form with nothing left to look up: many providers follow no references."""
    try:
        (whole,), parts = msgspec.json.schema_components([form])
        found: dict[str, Any] = _resolved(whole, parts, ())
    except TypeError as error:
        raise errors.InvalidArgument(f"A type of {form.__name__} cannot be described to a model: {error}.") from None
    found.pop("title", None)
    return {"properties": {}, **found}


def _resolved(said: Any, parts: dict[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(said, list):
        return [_resolved(each, parts, inside) for each in said]
    if not isinstance(said, dict):
        return said
    if "$ref" in said:
        name = said["$ref"].rpartition("/")[2]
        if name in inside:
            raise TypeError(f"{name} contains itself")
        rest = {key: value for key, value in said.items() if key != "$ref"}
        return {**_resolved(parts[name], parts, (*inside, name)), **rest}
    made = {key: _resolved(value, parts, inside) for key, value in said.items()}
    if isinstance(made.get("enum"), list) and "type" not in made:
        made |= _kind_of(made["enum"])
    return made


def _kind_of(choices: list[Any]) -> dict[str, str]:
    """The type of all choices, where they have one: some providers insist on it."""
    found = {next((name for kind, name in _KINDS if isinstance(choice, kind)), "") for choice in choices}
    return {"type": found.pop()} if len(found) == 1 and "" not in found else {}


# --- a call --------------------------------------------------------------------------------------------


def _converted(arguments: base.Arguments, form: type[msgspec.Struct]) -> dict[str, Any]:
    try:
        made = msgspec.convert(arguments, form)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        place = where.strip("`").removeprefix("$").lstrip(".")
        raise errors.ToolFailed(f"`{place}`: {what}." if place else f"{what}.") from None
    return {name: getattr(made, name) for name in made.__struct_fields__}


async def _called(function: Function, given: dict[str, Any]) -> object:
    if inspect.iscoroutinefunction(function):
        return await function(**given)
    made = await asyncio.to_thread(_in_thread, function, given)
    return await made if isinstance(made, Awaitable) else made


def _in_thread(function: Function, given: dict[str, Any]) -> object:
    try:
        return function(**given)
    except StopIteration as error:
        # No future can carry it: whoever waits would wait for ever.
        raise RuntimeError("the function raised StopIteration") from error


def _content(made: object) -> types.Content:
    """Text and parts as they are; any other value as JSON."""
    if made is None:
        return DONE
    if isinstance(made, str):
        return made
    if isinstance(made, list) and made and all(isinstance(part, dict) and "type" in part for part in made):
        return made
    try:
        return msgspec.json.encode(made).decode()
    except (TypeError, ValueError, RecursionError):
        raise errors.ToolFailed(f"The tool returned {type(made).__name__}, which is neither text nor JSON.") from None


def _act(name: str, kind: Approval, arguments: base.Arguments) -> base.Act:
    """What people are asked. Nothing of what a model gave can break out of its line."""
    given = ", ".join(f"{each}={_spelled(value)}" for each, value in arguments.items())
    line = f"{name}({given})"
    short = line if len(line) <= SUMMARY else f"{line[:SUMMARY]}…"
    return base.Act(tool=name, kind=kind, summary=short, detail="" if short == line else line)


def _spelled(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)
