"""The open sessions of all clients, by any of their ids, and how they are closed.

A close waits for earlier requests to its session; afterwards the session accepts no more. The last client that has a
conversation open ends it, which is decided at the end of the close, as another client may open it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial

from holdfast import errors
from holdfast.rpc import peer as peers
from holdfast.rpc_server import session as sessions
from holdfast.rpc_server import wire_types
from holdfast.runtime import runtime as runtimes

logger = logging.getLogger("holdfast.rpc_server")


class OpenSessions:
    """The sessions of one server."""

    def __init__(self, runtime: runtimes.Runtime, poll_seconds: float, max_sessions: int) -> None:
        self._runtime, self._poll_seconds, self._max_sessions = runtime, poll_seconds, max_sessions
        self._all: list[sessions.ClientSession] = []
        self._is_ending = False

    def __iter__(self) -> Iterator[sessions.ClientSession]:
        return iter(tuple(self._all))

    # --- opening and finding -------------------------------------------------------------------------

    def of(self, client: peers.Peer) -> list[sessions.ClientSession]:
        return [session for session in self._all if session.client is client and not session.closing]

    def find(self, client: peers.Peer, session_id: str) -> sessions.ClientSession | None:
        return next((session for session in self.of(client) if session_id in session.ids), None)

    def find_abandoned(self, session_id: str) -> sessions.ClientSession | None:
        """Return a session whose client has disconnected."""
        left = (session for session in self._all if session.gone and not session.closing)
        return next((session for session in left if session_id in session.ids), None)

    async def wait_closed(self, client: peers.Peer, session_id: str) -> None:
        """Wait until no session of the client with this id is being closed: two would send every event twice."""
        while found := [each for each in self._all if each.client is client and session_id in each.ids]:
            closing = [each.wait_closed() for each in found if each.closing]
            if not closing:
                return
            await asyncio.gather(*closing)

    def open(self, client: peers.Peer, conversation_id: str, key: str) -> sessions.ClientSession:
        self.check_count(client)
        session = sessions.ClientSession(self._runtime, client, conversation_id, key, self._poll_seconds)
        self._all.append(session)
        session.resend_approvals()
        return session

    def check_count(self, client: peers.Peer) -> None:
        """Raise if the client cannot open another session."""
        if self._is_ending:
            raise errors.Gone("The server is shutting down.")
        if len(self.of(client)) >= self._max_sessions:
            raise errors.LimitReached(f"A client can have at most {self._max_sessions} sessions open. Close one first.")

    @asynccontextmanager
    async def in_order(self, session: sessions.ClientSession) -> AsyncIterator[None]:
        """Wait for earlier requests to the session. Raises RpcRefused if one of them has closed it."""
        async with session.order:
            if session.closing:
                raise not_open(session.key)
            yield

    # --- closing -------------------------------------------------------------------------------------

    async def close(self, session: sessions.ClientSession) -> bool:
        """Close a session; return whether its conversation was ended. Cancelling this does not stop the close."""
        async with session.order:
            closing = session.close(partial(self._is_alone, session))
            closing.add_done_callback(partial(self._remove, session))
        return await asyncio.shield(closing)

    def discard(self, session: sessions.ClientSession) -> None:
        """Close a session whose id its client did not receive, unless the client uses it all the same."""
        if session.is_unused:
            self._runtime.want_title(session.conversation_id, None)
            session.hurry()
            session.close(lambda: False).add_done_callback(partial(self._remove, session))

    async def close_all(self, closed: Sequence[sessions.ClientSession]) -> None:
        """Close these sessions without waiting for their clients; an error of one does not affect the others."""
        for session in closed:
            session.hurry()
        await asyncio.gather(*map(self.close, tuple(closed)), return_exceptions=True)

    async def end(self) -> None:
        """Close every session and refuse new ones."""
        self._is_ending = True
        await self.close_all(self._all)

    def _remove(self, session: sessions.ClientSession, closing: asyncio.Task[bool]) -> None:
        if not closing.cancelled() and (error := closing.exception()) is not None:
            logger.error("%s could not be closed", session.key, exc_info=error)
            session.abandon()
        if session in self._all:
            self._all.remove(session)

    def _is_alone(self, session: sessions.ClientSession) -> bool:
        """Return whether no other session has the conversation open."""
        others = (each for each in self._all if each is not session and not each.closing)
        return not any(each.conversation_id == session.conversation_id for each in others)


def not_open(session_id: str) -> errors.RpcRefused:
    return errors.RpcRefused(
        wire_types.NOT_OPEN, f"Session {errors.quote(session_id)} is not open. Use session.resume to open it."
    )
