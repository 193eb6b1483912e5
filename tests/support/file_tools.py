"""The file tools of a folder, with a gate that records every act."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import errors, types
from holdfast.tools import base, registry
from holdfast.tools.files import file_tools


class FileTools:
    """The file tools of one folder. `meanwhile` is called while a plan waits for its approval."""

    def __init__(
        self,
        root: Path,
        *,
        off_limits: Sequence[Path] = (),
        meanwhile: Callable[[], object] = lambda: None,
        allow: bool = True,
    ) -> None:
        self.acts: list[base.Act] = []

        @asynccontextmanager
        async def gate(_: types.ToolCall, act: base.Act) -> AsyncIterator[None]:
            self.acts.append(act)
            if not allow:
                raise errors.NotAllowed
            meanwhile()
            yield

        made = file_tools.file_tools([str(root)], off_limits=[str(path) for path in off_limits])
        self.tools = registry.Registry(made, gate)

    def __call__(self, name: str, **arguments: Any) -> base.Result:
        return asyncio.run(self.awaited(name, **arguments))

    async def awaited(self, name: str, **arguments: Any) -> base.Result:
        with base.calling(base.Calling("call", "talk")):
            return await self.tools.run(types.ToolCall("x", name, arguments))

    def text(self, name: str, **arguments: Any) -> str:
        result = self(name, **arguments)
        assert isinstance(result.content, str), result
        return result.content
