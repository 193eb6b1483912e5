"""Two hosts that have one PostgreSQL store open, of which one waits for what the other does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import NewMessage, SessionDB
from holdfast.store import log
from holdfast.store.driver import Tx
from tests.faults import storms
from tests.support import conversations

NOON = conversations.NOON


class Pair:
    """Two hosts that have the same store open."""

    def __init__(self, address: str) -> None:
        self.clock = conversations.Clock()
        self.name = f"w{id(self)}"
        self.one = SessionDB(address, clock=self.clock)
        self.other = SessionDB(f"{address}&application_name={self.name}", clock=self.clock)

    def meanwhile(self, change: Callable[[Tx], object], call: Callable[[], Any]) -> Any:
        """What the call of the other host gives (or raises) that had to wait for the change to be committed."""
        return storms.meanwhile(self.one, change, call, lambda _: storms.waits(self.name))

    def close(self) -> None:
        assert self.one.admin.fsck().ok
        self.one.close()
        self.other.close()


def append(db: SessionDB, session_id: str, text: str, **more: Any) -> Callable[[Tx], object]:
    return log.AppendRequest(session_id, [NewMessage(role="user", content=text, **more)], db._clock())


def content(db: SessionDB, digest: str) -> bytes:
    with db.blobs.open(digest) as file:
        return file.read()


def told(error: BaseException | None) -> str:
    """All that an error says, and those it came from."""
    return f"{error}\n{told(error.__cause__ or error.__context__)}" if error is not None else ""
