"""The editor as the tools of one session see it: what they tell it goes the way of all that it is told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from acp import interfaces, schema

from holdfast.acp import telling

logger = logging.getLogger("holdfast.acp")

Client: TypeAlias = interfaces.Client
Offered: TypeAlias = schema.ClientCapabilities
Tell = Callable[[telling.Update], Awaitable[None]]


class Editor:
    """A connection whose updates wait for those before them: none overtakes the call that it is about."""

    def __init__(self, conn: interfaces.Client, tell: Tell) -> None:
        self._conn, self._tell = conn, tell

    async def session_update(self, session_id: str, update: telling.Update, **_: Any) -> None:  # noqa: ARG002
        """Returns when the editor was told."""
        await self._tell(update)

    def __getattr__(self, name: str) -> Any:
        """What is asked of the editor is asked at once."""
        return getattr(self._conn, name)


def offered(said: Mapping[str, Any]) -> Offered:
    """What an editor says that it can do; nothing, where that is not how it is said."""
    try:
        return schema.ClientCapabilities.model_validate(said)
    except ValueError as error:
        logger.warning("what the editor offers is not used, as it cannot be read: %s", error)
        return schema.ClientCapabilities()
