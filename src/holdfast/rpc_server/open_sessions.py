"""The sessions that all clients have open: who has which, by any of their ids, and how they are closed.

A close waits for what was asked of its session before, and once it has begun nothing more is taken. The last one who
has a conversation open ends it, and that is decided when it is time: somebody may have opened it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from holdfast import errors
from holdfast.rpc_server import session as rpc_server_session
from holdfast.rpc_server import wire_types
from holdfast.runtime import runtime

logger = logging.getLogger("holdfast.terminal")

MOST = 100
"""Sessions that one client may have open."""
LARGEST = 64_000_000
"""Bytes of prompts and pictures that may wait in all of them."""
TRIES = 3
"""How often it is tried to end a conversation that nobody will close again."""


class Sessions:
    """Those of one server."""

    def __init__(self, door: runtime.Runtime) -> None:
        self._door = door
        self._every: list[rpc_server_session.Held] = []
        self._letting_go = set[asyncio.Task[None]]()
        self._ending = False

    def __iter__(self) -> Iterator[rpc_server_session.Held]:
        return iter(tuple(self._every))

    # --- opening and finding ---------------------------------------------------------------------------

    def of(self, client: rpc_server_session.Client) -> list[rpc_server_session.Held]:
        return [session for session in self._every if session.client is client and not session.closing]

    def known(self, client: rpc_server_session.Client, session_id: str) -> rpc_server_session.Held | None:
        return next((session for session in self.of(client) if session_id in session.ids), None)

    def abandoned(self, session_id: str) -> rpc_server_session.Held | None:
        """One whose client vanished."""
        left = (session for session in self._every if session.gone and not session.closing)
        return next((session for session in left if session_id in session.ids), None)

    async def left(self, client: rpc_server_session.Client, session_id: str) -> None:
        """Until no session of this client's that has this id is being closed: of two of them it would be told twice."""
        while leaving := [each for each in self._every if each.client is client and session_id in each.ids]:
            closing = [each.closed() for each in leaving if each.closing]
            if not closing:
                return
            await asyncio.gather(*closing)

    def open(self, client: rpc_server_session.Client, conversation_id: str, key: str) -> rpc_server_session.Held:
        self.check_room(client)
        session = rpc_server_session.Held(self._door, client, conversation_id, key)
        self._every.append(session)
        session.ask_again()
        return session

    def check_room(self, client: rpc_server_session.Client) -> None:
        """Raises what keeps this client from opening one more."""
        if self._ending:
            raise errors.Gone("The program ends.")
        if len(self.of(client)) >= MOST:
            raise errors.LimitReached(f"A client has at most {MOST} sessions open. Close one.")

    def check_size(self, client: rpc_server_session.Client) -> None:
        """Raises what keeps this client from having more wait."""
        if sum(session.size for session in self.of(client)) > LARGEST:
            raise errors.LimitReached(f"Prompts of more than {LARGEST:,} bytes wait already. Wait for some of them.")

    @asynccontextmanager
    async def in_order(self, session: rpc_server_session.Held) -> AsyncIterator[None]:
        """When what was asked of it before is done; that may have been to close it."""
        async with session.order:
            if session.closing:
                raise not_open(session.key)
            yield

    # --- closing ---------------------------------------------------------------------------------------

    @contextmanager
    def unless_told(self, session: rpc_server_session.Held) -> Iterator[None]:
        """Where whoever opened it is not told so, nobody knows that it is open. It is let go of, as it was found."""
        try:
            yield
        except (errors.HoldfastError, asyncio.CancelledError):
            self._door.want_title(session.conversation_id, None)
            letting_go = asyncio.create_task(self._unopened(session))
            self._letting_go.add(letting_go)
            letting_go.add_done_callback(self._letting_go.discard)
            raise

    async def close(self, session: rpc_server_session.Held) -> bool:
        """Whether that ended its conversation. Whoever stops waiting for it does not stop it."""
        async with session.order:
            closing = self._begin_closing(session, partial(self._is_alone, session))
        return await asyncio.shield(closing)

    async def let_go(self, sessions: Sequence[rpc_server_session.Held]) -> None:
        """Close all of these; what goes wrong with one is no other one's. Nobody waits for their clients."""
        for session in sessions:
            session.hurry()
        await asyncio.gather(*map(self._close_somehow, tuple(sessions)), return_exceptions=True)

    async def end(self) -> None:
        """Close all there are, and let none be opened any more."""
        self._ending = True
        await self.let_go(self._every)
        if self._letting_go:
            await asyncio.wait(self._letting_go)
        for session in self:
            session.abandon()

    async def _unopened(self, session: rpc_server_session.Held) -> None:
        async with session.order:
            if session.spoken:
                return  # By the answer to a prompt that came meanwhile it is known.
            session.hurry()
            closing = self._begin_closing(session, lambda: False)
        await asyncio.wait([closing])

    async def _close_somehow(self, session: rpc_server_session.Held) -> None:
        for _ in range(TRIES):
            try:
                await self.close(session)
            except errors.HoldfastError as error:
                logger.warning("%s could not be ended: %s", session.key, error)
            else:
                return

    def _begin_closing(self, session: rpc_server_session.Held, alone: Callable[[], bool]) -> asyncio.Task[bool]:
        closing = session.close(alone)
        closing.add_done_callback(partial(self._closed, session))
        return closing

    def _closed(self, session: rpc_server_session.Held, closing: asyncio.Task[bool]) -> None:
        error = None if closing.cancelled() else closing.exception()
        if isinstance(error, errors.HoldfastError):
            return  # It is open still, and can be closed again.
        if error is not None:
            logger.error("%s was not closed as it should be", session.key, exc_info=error)
            session.abandon()
        if session in self._every:
            self._every.remove(session)

    def _is_alone(self, session: rpc_server_session.Held) -> bool:
        """Whether nobody else has its conversation open."""
        others = (each for each in self._every if each is not session and not each.closing)
        return not any(each.conversation_id == session.conversation_id for each in others)


def not_open(session_id: str) -> errors.RpcRefused:
    return errors.RpcRefused(
        wire_types.NOT_OPEN, f"{errors.shown(session_id)} is not open here: session.resume opens it."
    )
