"""What a tool is: what the model is told of it, and a function of the arguments the model gave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from holdfast import types

Arguments = dict[str, Any]


class Tool(msgspec.Struct, frozen=True):
    """One tool. `run` is given arguments that fit the schema, and returns what the model is to read.

    It raises ToolFailed with a sentence for the model; anything else it raises is a fault of the tool, which
    the model is told in general words. Cancelling it must stop whatever it began.
    """

    spec: types.ToolSpec
    run: Callable[[Arguments], Awaitable[types.Content]]
    parallel: bool = False
    """Whether it may run beside other calls of the same reply: it changes nothing."""


class Result(msgspec.Struct, frozen=True):
    """What came of a call."""

    content: types.Content
    ok: bool = True
