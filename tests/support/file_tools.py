"""Run tools, and the file tools of a folder, with a gate that records every act."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import errors, types
from holdfast.tools import base, registry
from holdfast.tools.files import file_tools


class ToolRunner:
    """Runs tools and records every act. `meanwhile` is called while a plan waits for its approval."""

    def __init__(
        self, tools: Sequence[base.Tool], *, meanwhile: Callable[[], object] = lambda: None, allow: bool = True
    ) -> None:
        self.acts: list[base.Act] = []
        self.meanwhile = meanwhile

        @asynccontextmanager
        async def gate(_: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
            self.acts.append(act)
            if not allow:
                raise errors.NotAllowed
            self.meanwhile()
            yield

        self.tools = registry.Registry(tools, gate)

    async def __call__(self, name: str, **arguments: Any) -> base.Result:
        with base.calling(base.Calling("call", "talk")):
            return await self.tools.run(types.ToolCall("call", name, arguments))

    async def text(self, name: str, **arguments: Any) -> str:
        return text_of(await self(name, **arguments))


class FileTools:
    """The file tools of one folder, called without an event loop."""

    def __init__(self, root: Path, *, off_limits: Sequence[Path] = (), **given: Any) -> None:
        made = file_tools.file_tools([str(root)], off_limits=[str(path) for path in off_limits])
        self.awaited = ToolRunner(made, **given)
        self.acts, self.tools = self.awaited.acts, self.awaited.tools

    def __call__(self, name: str, **arguments: Any) -> base.Result:
        return asyncio.run(self.awaited(name, **arguments))

    def text(self, name: str, **arguments: Any) -> str:
        return text_of(self(name, **arguments))

    def refusal(self, name: str, **arguments: Any) -> str:
        """Return the error of a call, which must fail."""
        result = self(name, **arguments)
        assert not result.ok, result
        return text_of(result)


def text_of(result: base.Result) -> str:
    assert isinstance(result.content, str), result
    return result.content
