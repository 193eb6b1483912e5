"""Drops malformed tools from a server's list: the SDK would reject the whole list."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

Dropped = Callable[[object], None]


class FilteredTransport:
    """Wraps a transport."""

    def __init__(self, inner: Any, dropped: Dropped) -> None:
        self._inner, self._dropped = inner, dropped

    async def __aenter__(self) -> tuple[Any, Any]:
        received, sent = await self._inner.__aenter__()
        return FilteredStream(received, self._dropped), sent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._inner.__aexit__(kind, error, trace)
        return ended


class FilteredStream:
    """Wraps the stream of messages from the server."""

    def __init__(self, inner: Any, dropped: Dropped) -> None:
        self._inner, self._dropped = inner, dropped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return self._filter(await self._inner.__anext__())

    async def receive(self) -> Any:
        return self._filter(await self._inner.receive())

    def _filter(self, item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict) and isinstance(result.get("tools"), list):
            for tool in result["tools"]:
                if not is_well_formed(tool):
                    self._dropped(tool.get("name") if isinstance(tool, dict) else None)
            result["tools"] = [tool for tool in result["tools"] if is_well_formed(tool)]
        return item


def is_well_formed(tool: object) -> bool:
    """Return whether a tool has the form that the protocol requires; its schema is checked later."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return False
    texts = all(isinstance(tool.get(key), str | None) for key in ("title", "description"))
    schemas = [tool.get("inputSchema"), *([tool["outputSchema"]] if tool.get("outputSchema") is not None else [])]
    return texts and all(map(_is_object_schema, schemas))


def _is_object_schema(schema: object) -> bool:
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return (
        isinstance(properties, dict)
        and all(isinstance(each, dict) for each in properties.values())
        and isinstance(required, list)
        and all(isinstance(each, str) for each in required)
    )
