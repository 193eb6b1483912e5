"""What a client is still to be told, in order. One that reads slowly gets fewer, longer pieces of a reply.

Once many things wait, pieces are put together, of a tool's progress only the last is kept, and pieces of a reply whose
end is there give way to it: the end has all of the text.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, TypeAlias

from holdfast import events
from holdfast.rpc import send_queue
from holdfast.rpc_server import notifications

LONG = 64
"""So many wait before anything is put together."""


class Heard(NamedTuple):
    """An event, and the uid of the message whose turn it is of."""

    event: events.AnyEvent
    uid: str | None


class Look(NamedTuple):
    """Where the head is has to be looked up, and told where it is another; then this is done."""

    done: asyncio.Future[None]


Item: TypeAlias = Heard | Look | notifications.Told
Piece: TypeAlias = type[events.TextDelta] | type[events.ReasoningDelta]


class _Pieces(NamedTuple):
    """Pieces of one kind, which become one when it is told: to add to a text each time takes ever longer."""

    kind: Piece
    texts: list[str]
    uid: str | None

    @property
    def whole(self) -> Heard:
        return Heard(self.kind("".join(self.texts)), self.uid)


class _Progress:
    """The last that is known of a call."""

    def __init__(self, heard: Heard) -> None:
        self.heard = heard


class Backlog(send_queue.Backlog[Item | _Pieces | _Progress]):
    """What one client has to be told."""

    def __init__(self) -> None:
        super().__init__()
        self._progress: dict[str, _Progress] = {}

    def put(self, item: Item) -> None:
        if isinstance(item, Heard) and isinstance(item.event, events.ToolProgress):
            self._put_progress(item, item.event.call_id)
        elif len(self._items) < LONG or not self._joined(item):
            self.add(item)

    async def first(self) -> Item:
        """What is next, put together; it stays here until it is `done`."""
        first = await super().first()
        if isinstance(first, _Progress):
            self._forget(first)
            self._items[0] = first.heard
            return first.heard
        if isinstance(first, _Pieces):
            self._items[0] = first.whole
            return first.whole
        return first

    # --- where it gets long ----------------------------------------------------------------------------

    def _put_progress(self, item: Heard, call_id: str) -> None:
        waiting = self._progress.get(call_id)
        if waiting is not None and len(self._items) >= LONG:
            waiting.heard = item
            return
        self._progress[call_id] = _Progress(item)
        self.add(self._progress[call_id])

    def _forget(self, progress: _Progress) -> None:
        event = progress.heard.event
        if isinstance(event, events.ToolProgress) and self._progress.get(event.call_id) is progress:
            del self._progress[event.call_id]

    def _joined(self, item: Item) -> bool:
        """Whether it needs no place of its own."""
        match item:
            case Heard(events.TextDelta(text) | events.ReasoningDelta(text) as event):
                pieces = _pieces(self._items[-1])
                if pieces is None or pieces.kind is not type(event):
                    return False
                pieces.texts.append(text)
                self._items[-1] = pieces
                return True
            case Heard(events.TurnFinished(result)):
                self._give_way(result.final_response)
        return False

    def _give_way(self, whole: str) -> None:
        """Pieces that the end of their turn has in it are not needed. The first thing here is being told."""
        others: list[Item | _Pieces | _Progress] = []
        while len(self._items) > 1 and not _is_before(self._items[-1]):
            last = self._items.pop()
            pieces = _pieces(last)
            if pieces is None or pieces.kind is not events.TextDelta or "".join(pieces.texts) not in whole:
                others.append(last)
        self._items.extend(reversed(others))


def _is_before(item: Item | _Pieces | _Progress) -> bool:
    """Whether what was said before this is no part of the answer."""
    if isinstance(item, Heard):
        return isinstance(item.event, events.TurnStarted | events.ToolStarted | events.ToolFinished)
    return isinstance(item, _Progress)


def _pieces(item: Item | _Pieces | _Progress) -> _Pieces | None:
    match item:
        case _Pieces():
            return item
        case Heard(events.TextDelta(text) | events.ReasoningDelta(text) as event, uid):
            return _Pieces(type(event), [text], uid)
        case _:
            return None
