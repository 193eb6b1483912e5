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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, TypeVar

import msgspec

from holdfast import errors, events
from holdfast.agent import commands
from holdfast.agent import runtime as runtimes
from holdfast.rpc import frames
from holdfast.rpc import peer as peers
from holdfast.store import state
from holdfast.terminal import attached, happenings, held, info, methods, transcript, wire

logger = logging.getLogger("holdfast.terminal")

GRACE = 60.0
"""Seconds in which a client that vanished may come back for its sessions."""
BY = "a client"
"""Who answers questions, as it is written down."""
MOST = 100
"""Sessions that one client may have open."""

AS_IT_IS = wire.Options()

P = TypeVar("P", bound=wire.Value)
Answer = Callable[[peers.Peer, Any], Awaitable[wire.Value]]


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
    ) -> None:
        self._door, self._grace = runtime, grace
        self._sessions: list[held.Held] = []
        self._leaving = set[asyncio.Task[None]]()
        self._info = wire.ServerInfo(
            protocol=wire.PROTOCOL, program=program, model=model, notice=notice, methods=[*methods.METHODS]
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in tuple(self._leaving):
            task.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving)
        await asyncio.gather(*(self._close(session) for session in tuple(self._sessions)))

    # --- clients -------------------------------------------------------------------------------------

    async def attend(self, peer: peers.Peer) -> None:
        """Serve a client until it is gone; it is told first that this is ready."""
        greeting = asyncio.create_task(self._greet(peer))
        try:
            await peer.run()
        finally:
            greeting.cancel()
            await asyncio.wait([greeting])
            self._vanished(peer)

    async def _greet(self, peer: peers.Peer) -> None:
        with suppress(errors.Gone):
            await peer.notify("event", happenings.Event("ready", None, self._info))

    def _vanished(self, peer: peers.Peer) -> None:
        left = [session for session in self._sessions if session.client is peer]
        for session in left:
            session.gone = True
        if left:
            leaving = asyncio.create_task(self._leave(peer))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _leave(self, peer: peers.Peer) -> None:
        """Close what nobody came back for."""
        await asyncio.sleep(self._grace)
        while (left := next((each for each in self._sessions if each.client is peer), None)) is not None:
            logger.info("%s is closed: its client did not come back", left.key)
            await self._close(left)

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

    async def _about(self, _: peers.Peer, __: wire.Nothing) -> wire.ServerInfo:
        return self._info

    # --- opening and closing -------------------------------------------------------------------------

    async def _create(self, peer: peers.Peer, asked: wire.Create) -> wire.Info:
        fresh = state.mint_session_id(time.time())
        session = self._open(peer, fresh, fresh, asked.options)
        if asked.title is not None:
            self._door.want_title(fresh, asked.title)
        try:
            return await session.info()
        except errors.HoldfastError:
            # Nobody knows its id.
            await self._close(session)
            raise

    async def _list(self, peer: peers.Peer, asked: wire.List) -> wire.Sessions:
        heads = await self._door.db.list_sessions(owner=self._door.owner, limit=asked.limit, skip=asked.skip)
        here = {session.conversation_id for session in self._of(peer)}
        return wire.Sessions(sessions=[transcript.listed(head, head.conversation_id in here) for head in heads])

    async def _resume(self, peer: peers.Peer, asked: wire.Resume) -> wire.Info:
        """Whoever has it open already goes on with it, so does who comes back."""
        session = self._known(peer, asked.session_id) or self._abandoned(asked.session_id)
        if session is None:
            try:
                head = await self._door.db.resolve(asked.session_id, owner=self._door.owner, near=True)
            except errors.Ambiguous as error:
                raise errors.RpcRefused(wire.NOT_FOUND, str(error), {"candidates": [*error.candidates]}) from None
            except LookupError as error:
                raise _not_found(error) from None
            here = head.conversation_id
            found = self._known(peer, here) or self._abandoned(here)
            session = found or self._open(peer, here, head.id, asked.options)
        if session.client is not peer:
            session.take_up(peer)
        session.choose(asked.options)
        await session.follow()
        return await session.info()

    def _open(self, peer: peers.Peer, conversation_id: str, key: str, options: wire.Options = AS_IT_IS) -> held.Held:
        if len(self._of(peer)) >= MOST:
            raise errors.RpcRefused(wire.REFUSED, f"A client has at most {MOST} sessions open. Close one.")
        if not isinstance(options.images, msgspec.UnsetType):
            attached.read(options.images)  # Before anything is open that would have to be closed.
        session = held.Held(self._door, peer, conversation_id, key)
        self._sessions.append(session)
        session.choose(options)
        return session

    async def _leave_session(self, peer: peers.Peer, asked: wire.OfSession) -> wire.Closed:
        session = await self._session(peer, asked.session_id)
        ended = await self._close(session)
        return wire.Closed(session_id=session.key, ended=ended)

    async def _close(self, session: held.Held) -> bool:
        others = (each for each in self._sessions if each is not session and not each.closing)
        last = not any(each.conversation_id == session.conversation_id for each in others)
        ended = await session.close(last)
        if session in self._sessions:
            self._sessions.remove(session)
        return ended

    # --- finding -------------------------------------------------------------------------------------

    def _of(self, peer: peers.Peer) -> list[held.Held]:
        return [session for session in self._sessions if session.client is peer and not session.closing]

    def _known(self, peer: peers.Peer, session_id: str) -> held.Held | None:
        return next((session for session in self._of(peer) if session_id in session.ids), None)

    def _abandoned(self, session_id: str) -> held.Held | None:
        """One whose client vanished."""
        left = (session for session in self._sessions if session.gone and not session.closing)
        return next((session for session in left if session_id in session.ids), None)

    async def _session(self, peer: peers.Peer, session_id: str) -> held.Held:
        """The one of this client's that has or had this id. One it knows the id of is found without waiting."""
        session = self._known(peer, session_id)
        if session is None:
            try:
                here = (await self._door.db.snapshot(session_id)).conversation_id
            except errors.NoSuchSession as error:
                raise _not_found(error) from None
            session = self._known(peer, here)
        if session is None:
            told = f"{errors.shown(session_id)} is not open here: session.resume opens it."
            raise errors.RpcRefused(wire.NOT_OPEN, told)
        return session

    async def _go_on(self, peer: peers.Peer, conversation_id: str) -> wire.Info:
        """A session for a conversation that a command led to."""
        found = await info.begun(self._door.db, conversation_id)
        head = found.head_id if found else conversation_id
        session = self._known(peer, conversation_id) or self._open(peer, conversation_id, head)
        return await session.info()

    # --- how it stands -------------------------------------------------------------------------------

    async def _look(self, peer: peers.Peer, asked: wire.OfSession) -> wire.Info:
        session = await self._session(peer, asked.session_id)
        await session.follow()
        return await session.info()

    async def _options(self, peer: peers.Peer, asked: wire.SetOptions) -> wire.Info:
        session = await self._session(peer, asked.session_id)
        async with session.order:
            session.choose(asked.options)
            await session.follow()
            return await session.info()

    async def _title(self, peer: peers.Peer, asked: wire.Title) -> wire.Titled:
        session = await self._session(peer, asked.session_id)
        async with session.order:
            title, pending = await session.title(asked.title)
            await session.follow()
            return wire.Titled(session_id=session.key, title=title, pending=pending)

    async def _history(self, peer: peers.Peer, asked: wire.History) -> wire.Transcript:
        session = await self._session(peer, asked.session_id)
        await session.follow()
        found = await info.begun(self._door.db, session.conversation_id)
        said = await transcript.stretch(self._door.db, found, asked.after, asked.limit) if found else []
        last = found.last_seq if found else 0
        return wire.Transcript(
            session_id=session.key, messages=said, last_seq=last, more=bool(said) and said[-1].seq < last
        )

    # --- what changes it -----------------------------------------------------------------------------

    async def _submit(self, peer: peers.Peer, asked: wire.Submit) -> wire.Submitted:
        session = await self._session(peer, asked.session_id)
        async with session.order:
            await session.follow()
            return await session.submit(asked.text, asked.images, asked.uid)

    async def _steer(self, peer: peers.Peer, asked: wire.Steer) -> wire.Steered:
        session = await self._session(peer, asked.session_id)
        if self._door.steer(session.conversation_id, asked.text, asked.uid):
            return wire.Steered(session_id=session.key, steered=True, prompt=None)
        async with session.order:
            prompt = await session.submit(asked.text, uid=asked.uid)
        return wire.Steered(session_id=session.key, steered=False, prompt=prompt)

    async def _interrupt(self, peer: peers.Peer, asked: wire.OfSession) -> wire.Interrupted:
        session = await self._session(peer, asked.session_id)
        stopped = self._door.interrupt(session.conversation_id)
        return wire.Interrupted(session_id=session.key, interrupted=stopped)

    async def _respond(self, peer: peers.Peer, asked: wire.Respond) -> wire.Responded:
        session = await self._session(peer, asked.session_id)
        here, approvals = session.conversation_id, self._door.approvals
        counts = any(each.asked.request_id == asked.request_id for each in approvals.questions(here))
        given = events.Approve(asked.request_id, asked.answer, BY, asked.reason)
        notice = await approvals.answer(here, given)
        return wire.Responded(session_id=session.key, accepted=counts, notice=notice)

    async def _undo(self, peer: peers.Peer, asked: wire.Undo) -> wire.Undone:
        session = await self._session(peer, asked.session_id)
        async with session.order:
            _, said = await session.carry_out(f"/undo {asked.turns}")
            await session.follow()
        return wire.Undone(session_id=session.key, text=_words(said))

    async def _compress(self, peer: peers.Peer, asked: wire.Compress) -> wire.Compressed:
        session = await self._session(peer, asked.session_id)
        async with session.order:
            made = await session.compress(asked.focus, asked.keep_exchanges)
            await session.follow()
        return wire.Compressed(
            session_id=session.key,
            outcome=made.outcome.value,
            reason=made.reason,
            cut_seq=made.cut_seq,
            before=made.before,
            after=made.after,
        )

    async def _branch(self, peer: peers.Peer, asked: wire.Branch) -> wire.Info:
        session = await self._session(peer, asked.session_id)
        async with session.order:
            told, said = await session.carry_out(f"/branch {asked.title or ''}")
        _words(said)
        (moved,) = (each for each in told if isinstance(each, events.Moved))
        return await self._go_on(peer, moved.conversation_id)

    async def _execute(self, peer: peers.Peer, asked: wire.Exec) -> wire.Executed:
        if not commands.is_command(asked.line):
            raise errors.RpcRefused(wire.INVALID, "A command is a slash and a name; prompt.submit says anything else.")
        session = await self._session(peer, asked.session_id)
        prompt: wire.Submitted | None = None
        moved: wire.Info | None = None
        async with session.order:
            told, said = await session.carry_out(asked.line)
            for each in told:
                match each:
                    case events.Say(words, content):
                        prompt = await session.submit(words, content=content)
                    case events.Moved(conversation_id):
                        moved = await self._go_on(peer, conversation_id)
            await session.follow()
        return wire.Executed(
            session_id=session.key,
            ok=not any(line.level == "error" for line in said),
            output=said,
            prompt=prompt,
            moved=moved,
            quit=any(isinstance(each, events.Quit) for each in told),
        )


def _handler(params: type[P], answer: Callable[[peers.Peer, P], Awaitable[wire.Value]]) -> peers.Handler:
    """A method as a peer calls it: its parameters are by name, and checked."""

    async def handle(peer: peers.Peer, given: frames.Params) -> object:
        try:
            asked = msgspec.convert({} if given is None else given, params)
        except msgspec.ValidationError as error:
            raise errors.RpcRefused(wire.INVALID, f"{error}.") from None
        return await answer(peer, asked)

    return handle


def _words(said: Sequence[wire.Line]) -> str:
    """What a command answered; raised, where it was refused."""
    words = "\n".join(line.text for line in said)
    if any(line.level == "error" for line in said):
        raise errors.RpcRefused(wire.REFUSED, words)
    return words


def _not_found(error: LookupError) -> errors.RpcRefused:
    return errors.RpcRefused(wire.NOT_FOUND, str(error), {"type": type(error).__name__})
