"""What an editor is still to be told of a session, in order. One that reads slowly gets fewer, longer pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from acp import schema

from holdfast import events, types
from holdfast.acp import updates
from holdfast.rpc import send_queue

LONG = 64
"""So many wait before pieces of a reply are put together."""


class Ready(NamedTuple):
    """Something to be told as it is."""

    update: updates.Update


class Shown(NamedTuple):
    """Something that a tool shows of its call."""

    update: schema.ToolCallProgress


class Found(NamedTuple):
    """A message that the log has and that may not have been told, and the pictures in it."""

    message: types.Message
    pictures: Sequence[updates.Update] = ()


Item: TypeAlias = events.AnyEvent | Ready | Shown | Found


class Backlog(send_queue.Backlog[Item]):
    """What one session has to tell."""

    def put(self, item: Item) -> None:
        # The first may be under way, and has seen what it sees.
        last = self._items[-1] if len(self) >= LONG else None
        if (longer := _joined(last, item)) is not None:
            self._items[-1] = longer
        else:
            self.add(item)


def _joined(last: Item | None, item: Item) -> Item | None:
    """Two as one; None where they are two."""
    match last, item:
        case events.TextDelta(before), events.TextDelta(text):
            return events.TextDelta(before + text)
        case events.ReasoningDelta(before), events.ReasoningDelta(text):
            return events.ReasoningDelta(before + text)
        case events.ToolProgress(call, before), events.ToolProgress(same, text) if call == same:
            return events.ToolProgress(call, before + text)
        case _:
            return None
