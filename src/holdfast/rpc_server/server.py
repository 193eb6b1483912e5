"""The server for front ends of their own: methods in, events out. It knows who is there and what they have open.

Any number of clients, each with any number of sessions. A client that vanishes may come back for its sessions within
a while; then they are closed, as they are when this ends. `attend` a peer for as long as it is there:

    async with Server(runtime) as server:
        await server.attend(peer.Peer(channel, server.methods()))
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Self, TypeVar

import msgspec

from holdfast import errors, events
from holdfast.agent import commands
from holdfast.rpc import frames
from holdfast.rpc import peer as peers
from holdfast.rpc_server import (
    attachments,
    methods,
    notifications,
    open_sessions,
    session_info,
    transcript,
    wire_types,
)
from holdfast.rpc_server import session as rpc_session
from holdfast.runtime import runtime as runtimes
from holdfast.store import conversation_row, titles

logger = logging.getLogger("holdfast.terminal")

GRACE = 60.0
"""Seconds in which a client that vanished may come back for its sessions."""
LOOK = 3.0
"""Seconds after which it is looked again what others did to the conversations that are open: not every database gives
hints, and not of everything."""
BY = "a client"
"""Who answers questions, as it is written down."""
IN_ORDER = {"undo", "redo", "retry", "branch", "title", "steer", "queue", "approve", "deny", "pin", "unpin"}
"""Commands that change a session and are quick. Others may take long, or are there to stop those, and wait for none."""
OPENING = {"branch", "new", "reset"}
"""Commands that make a conversation and lead there."""

P = TypeVar("P", bound=wire_types.Value)
Answer = Callable[[peers.Peer, Any], Awaitable[wire_types.Value]]


class Server:
    """One for all clients of a runtime. `async with` it, within the runtime: leaving it closes every session."""

    def __init__(
        self,
        runtime: runtimes.Runtime,
        *,
        program: str = "Holdfast",
        model: str | None = None,
        notice: str | None = None,
        grace: float = GRACE,
        look: float = LOOK,
    ) -> None:
        self._door, self._grace, self._every = runtime, grace, look
        self._sessions = open_sessions.Sessions(runtime)
        self._opening: dict[peers.Peer, set[asyncio.Future[None]]] = {}
        self._leaving = set[asyncio.Task[None]]()
        self._info = wire_types.ServerInfo(
            protocol=wire_types.PROTOCOL, program=program, model=model, notice=notice, methods=[*methods.METHODS]
        )

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look_around())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        ending = [*self._leaving, self._looking]
        for task in ending:
            task.cancel()
        await asyncio.wait(ending)

    async def close(self) -> None:
        """Close every session, and let none be opened any more. Whoever is still there is told what comes of it."""
        await self._sessions.end()

    async def _look_around(self) -> None:
        while True:
            await asyncio.sleep(self._every)
            for session in self._sessions:
                session.glance()

    # --- clients -------------------------------------------------------------------------------------

    async def attend(self, peer: peers.Peer) -> None:
        """Serve a client until it is gone; it is told first that this is ready.

        Where its peer leaves time for it, one that only stops asking is told to the end what comes of its prompts. One
        that is not served any longer is told, too: its sessions are closed before it is let go.
        """
        greeting = asyncio.create_task(self._greet(peer))
        self._opening[peer] = set()
        running = asyncio.create_task(peer.run(partial(self._finish, peer)))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._sessions.let_go(self._sessions.of(peer))
            raise
        finally:
            for task in (running, greeting):
                task.cancel()
            await asyncio.wait([running, greeting])
            del self._opening[peer]
            self._vanished(peer)

    async def _finish(self, peer: peers.Peer) -> None:
        await asyncio.gather(*(session.finish() for session in self._sessions.of(peer)))

    async def _greet(self, peer: peers.Peer) -> None:
        with suppress(errors.Gone):
            await peer.notify("event", notifications.Event("ready", None, self._info))

    def _vanished(self, peer: peers.Peer) -> None:
        left = [session for session in self._sessions if session.client is peer]
        for session in left:
            session.vanish()
        if left:
            leaving = asyncio.create_task(self._leave(peer))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, peer: peers.Peer) -> None:
        """Close what nobody came back for. Where the store cannot end it, that is tried again after as long."""
        while True:
            await asyncio.sleep(self._grace)
            left = [session for session in self._sessions if session.client is peer]
            if not left:
                return
            for session in left:
                logger.info("%s is closed: its client did not come back", session.key)
            await self._sessions.let_go(left)

    # --- methods -------------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, peers.Handler]:
        """What a peer serves; the same for all."""
        answers: dict[str, Answer] = {
            "server.info": self._about,
            "session.create": self._create,
            "session.list": self._list,
            "session.resume": self._resume,
            "session.info": self._look,
            "session.options": self._options,
            "session.title": self._title,
            "session.history": self._history,
            "session.undo": self._undo,
            "session.compress": self._compress,
            "session.branch": self._branch,
            "session.interrupt": self._interrupt,
            "session.steer": self._steer,
            "session.close": self._leave_session,
            "prompt.submit": self._submit,
            "command.exec": self._execute,
            "approval.respond": self._respond,
        }
        return {name: _handler(method.params, answers[name]) for name, method in methods.METHODS.items()}

    async def _about(self, _: peers.Peer, __: wire_types.Nothing) -> wire_types.ServerInfo:
        return self._info

    # --- opening and closing -------------------------------------------------------------------------

    async def _create(self, peer: peers.Peer, asked: wire_types.Create) -> wire_types.Info:
        pictures = self._pictures(peer, asked.options)
        title = titles.clean(asked.title) if asked.title is not None else None
        session = self._fresh(peer)
        session.choose(asked.options, pictures)
        with self._sessions.unless_told(session):
            self._door.want_title(session.key, title)
            return await session.info()

    def _fresh(self, peer: peers.Peer) -> rpc_session.Held:
        fresh = conversation_row.generate_session_id(time.time())
        return self._sessions.open(peer, fresh, fresh)

    async def _list(self, peer: peers.Peer, asked: wire_types.List) -> wire_types.Sessions:
        heads = await self._door.db.list_sessions(owner=self._door.owner, limit=asked.limit, skip=asked.skip)
        here = {session.conversation_id for session in self._sessions.of(peer)}
        return wire_types.Sessions(sessions=[transcript.listed(head, head.conversation_id in here) for head in heads])

    async def _resume(self, peer: peers.Peer, asked: wire_types.Resume) -> wire_types.Info:
        """Whoever has it open already goes on with it, so does who comes back."""
        pictures = self._pictures(peer, asked.options)
        with self._opens(peer):
            session = self._sessions.known(peer, asked.session_id) or self._sessions.abandoned(asked.session_id)
            is_new = session is None
            if session is None:
                is_new, session = await self._resolved(peer, asked.session_id)
            if session.client is not peer:
                session.take_up(peer)
            session.choose(asked.options, pictures)
        if not is_new:
            session.ask_again()
        with self._sessions.unless_told(session) if is_new else nullcontext():
            await session.follow()
            return await session.info()

    @contextmanager
    def _opens(self, peer: peers.Peer) -> Iterator[None]:
        """What is asked of this client's sessions from now on may mean the one that is opened within this block."""
        opening, every = asyncio.get_running_loop().create_future(), self._opening[peer]
        every.add(opening)
        try:
            yield
        finally:
            every.discard(opening)
            opening.set_result(None)

    async def _all_opened(self, peer: peers.Peer) -> None:
        if every := tuple(self._opening[peer]):
            await asyncio.wait(every)

    def _pictures(self, peer: peers.Peer, options: wire_types.Options) -> list[attachments.Picture] | None:
        """Those to be attached, read; None where that stays as it is."""
        pictures = attachments.given(options)
        if pictures:
            self._sessions.check_size(peer)
        return pictures

    async def _resolved(self, peer: peers.Peer, session_id: str) -> tuple[bool, rpc_session.Held]:
        """The session of what was named, and whether it is opened for that."""
        try:
            head = await self._door.db.resolve(session_id, owner=self._door.owner, near=True)
        except errors.Ambiguous as error:
            raise errors.RpcRefused(wire_types.NOT_FOUND, str(error), {"candidates": [*error.candidates]}) from None
        except LookupError as error:
            raise _not_found(error) from None
        here = head.conversation_id
        await self._sessions.left(peer, here)
        found = self._sessions.known(peer, here) or self._sessions.abandoned(here)
        return found is None, found or self._sessions.open(peer, here, head.id)

    async def _leave_session(self, peer: peers.Peer, asked: wire_types.OfSession) -> wire_types.Closed:
        session = await self._session(peer, asked.session_id)
        ended = await self._sessions.close(session)
        return wire_types.Closed(session_id=session.key, ended=ended)

    # --- finding -------------------------------------------------------------------------------------

    async def _session(self, peer: peers.Peer, session_id: str) -> rpc_session.Held:
        """The one of this client's that has or had this id. One it knows the id of is found without waiting.

        What the client asked to be opened before it asked for this is open: it need not wait for the answer.
        """
        session = self._sessions.known(peer, session_id)
        if session is None:
            await self._all_opened(peer)
            session = self._sessions.known(peer, session_id)
        if session is None:
            try:
                here = (await self._door.db.snapshot(session_id)).conversation_id
            except errors.NoSuchSession as error:
                raise _not_found(error) from None
            session = self._sessions.known(peer, here)
        if session is None:
            raise open_sessions.not_open(session_id)
        session.ids.add(session_id)
        return session

    async def _one_open(self, peer: peers.Peer) -> tuple[bool, rpc_session.Held]:
        """The one session of a client that names none, and whether it is opened for that."""
        await self._all_opened(peer)
        every = self._sessions.of(peer)
        if len(every) > 1:
            told = "Several sessions are open: session_id says which one is meant."
            raise errors.RpcRefused(wire_types.NOT_FOUND, told, {"candidates": [each.key for each in every]})
        return not every, every[0] if every else self._fresh(peer)

    async def _go_on(self, peer: peers.Peer, conversation_id: str) -> wire_types.Info:
        """A session for a conversation that a command led to."""
        await self._sessions.left(peer, conversation_id)
        found = await session_info.begun(self._door.db, conversation_id)
        session = self._sessions.known(peer, conversation_id)
        if session is not None:
            return await session.info()
        session = self._sessions.open(peer, conversation_id, found.head_id if found else conversation_id)
        with self._sessions.unless_told(session):
            return await session.info()

    # --- how it stands -------------------------------------------------------------------------------

    async def _look(self, peer: peers.Peer, asked: wire_types.OfSession) -> wire_types.Info:
        session = await self._session(peer, asked.session_id)
        await session.follow()
        return await session.info()

    async def _options(self, peer: peers.Peer, asked: wire_types.SetOptions) -> wire_types.Info:
        pictures = self._pictures(peer, asked.options)
        session = await self._session(peer, asked.session_id)
        async with self._sessions.in_order(session):
            session.choose(asked.options, pictures)
            await session.follow()
            return await session.info()

    async def _title(self, peer: peers.Peer, asked: wire_types.Title) -> wire_types.Titled:
        session = await self._session(peer, asked.session_id)
        async with self._sessions.in_order(session):
            title, pending = await session.title(asked.title)
            await session.follow()
            return wire_types.Titled(session_id=session.key, title=title, pending=pending)

    async def _history(self, peer: peers.Peer, asked: wire_types.History) -> wire_types.Transcript:
        session = await self._session(peer, asked.session_id)
        await session.follow()
        found = await session_info.begun(self._door.db, session.conversation_id)
        said = await transcript.stretch(self._door.db, found, asked.after, asked.limit) if found else []
        last = found.last_seq if found else 0
        return wire_types.Transcript(
            session_id=session.key, messages=said, last_seq=last, more=bool(said) and said[-1].seq < last
        )

    # --- what changes it -----------------------------------------------------------------------------

    async def _submit(self, peer: peers.Peer, asked: wire_types.Submit) -> wire_types.Submitted:
        named = asked.session_id
        is_new, session = await self._one_open(peer) if named is None else (False, await self._session(peer, named))
        with self._sessions.unless_told(session) if is_new else nullcontext():
            async with self._sessions.in_order(session):
                await session.follow()
                self._sessions.check_size(peer)
                return await session.submit(asked.text, asked.images, asked.uid)

    async def _steer(self, peer: peers.Peer, asked: wire_types.Steer) -> wire_types.Steered:
        session = await self._session(peer, asked.session_id)
        if self._door.steer(session.conversation_id, asked.text, asked.uid):
            return wire_types.Steered(session_id=session.key, steered=True, prompt=None)
        async with self._sessions.in_order(session):
            self._sessions.check_size(peer)
            prompt = await session.submit(asked.text, uid=asked.uid)
        return wire_types.Steered(session_id=session.key, steered=False, prompt=prompt)

    async def _interrupt(self, peer: peers.Peer, asked: wire_types.OfSession) -> wire_types.Interrupted:
        session = await self._session(peer, asked.session_id)
        stopped = self._door.stop(session.conversation_id)
        return wire_types.Interrupted(session_id=session.key, interrupted=stopped)

    async def _respond(self, peer: peers.Peer, asked: wire_types.Respond) -> wire_types.Responded:
        session = await self._session(peer, asked.session_id)
        here, approvals = session.conversation_id, self._door.approvals
        counts = any(each.asked.request_id == asked.request_id for each in approvals.pending(here))
        given = events.Approve(asked.request_id, asked.answer, BY, asked.reason)
        notice = await approvals.answer(here, given)
        return wire_types.Responded(session_id=session.key, accepted=counts, notice=notice)

    async def _undo(self, peer: peers.Peer, asked: wire_types.Undo) -> wire_types.Undone:
        session = await self._session(peer, asked.session_id)
        async with self._sessions.in_order(session):
            _, said = await session.carry_out(f"/undo {asked.turns}")
            await session.follow()
        return wire_types.Undone(session_id=session.key, text=_words(said))

    async def _compress(self, peer: peers.Peer, asked: wire_types.Compress) -> wire_types.Compressed:
        session = await self._session(peer, asked.session_id)
        # It may take long, and nothing waits for it: where the conversation went on meanwhile the commit knows.
        made = await session.compress(asked.focus, asked.keep_exchanges)
        await session.follow()
        return wire_types.Compressed(
            session_id=session.key,
            outcome=made.outcome.value,
            reason=made.reason,
            cut_seq=made.cut_seq,
            before=made.before,
            after=made.after,
        )

    async def _branch(self, peer: peers.Peer, asked: wire_types.Branch) -> wire_types.Info:
        session = await self._session(peer, asked.session_id)
        self._sessions.check_room(peer)
        async with self._sessions.in_order(session):
            told, said = await session.carry_out(f"/branch {asked.title or ''}")
        _words(said)
        (moved,) = (each for each in told if isinstance(each, events.Moved))
        return await self._go_on(peer, moved.conversation_id)

    async def _execute(self, peer: peers.Peer, asked: wire_types.Exec) -> wire_types.Executed:
        if not commands.is_command(asked.line):
            raise errors.RpcRefused(
                wire_types.INVALID, "A command is a slash and a name; prompt.submit says anything else."
            )
        session = await self._session(peer, asked.session_id)
        prompt: wire_types.Submitted | None = None
        moved: wire_types.Info | None = None
        name = commands.split(asked.line)[0].lower()
        if name in OPENING:
            self._sessions.check_room(peer)
        async with AsyncExitStack() as stack:
            if name in IN_ORDER:
                await stack.enter_async_context(self._sessions.in_order(session))
            told, said = await session.carry_out(asked.line)
            if name not in IN_ORDER and any(isinstance(each, events.Say) for each in told):
                await stack.enter_async_context(self._sessions.in_order(session))
            for each in told:
                match each:
                    case events.Say(words, content):
                        self._sessions.check_size(peer)
                        prompt = await session.submit(words, content=content)
                    case events.Moved(conversation_id):
                        moved = await self._go_on(peer, conversation_id)
            await session.follow()
        return wire_types.Executed(
            session_id=session.key,
            ok=not any(line.level == "error" for line in said),
            output=said,
            prompt=prompt,
            moved=moved,
            quit=any(isinstance(each, events.Quit) for each in told),
        )


def _handler(params: type[P], answer: Callable[[peers.Peer, P], Awaitable[wire_types.Value]]) -> peers.Handler:
    """A method as a peer calls it: its parameters are by name, and checked."""

    async def handle(peer: peers.Peer, given: frames.Params) -> object:
        try:
            asked = msgspec.convert({} if given is None else given, params)
        except msgspec.ValidationError as error:
            raise errors.RpcRefused(wire_types.INVALID, f"{error}.") from None
        return await answer(peer, asked)

    return handle


def _words(said: Sequence[wire_types.Line]) -> str:
    """What a command answered; raised, where it was refused."""
    words = "\n".join(line.text for line in said)
    if any(line.level == "error" for line in said):
        raise errors.HoldfastError(words)
    return words


def _not_found(error: LookupError) -> errors.RpcRefused:
    return errors.RpcRefused(wire_types.NOT_FOUND, str(error), {"type": type(error).__name__})
