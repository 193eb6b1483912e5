"""The RPC server for custom clients: a handler for each method, and the clients that are connected.

Any number of clients, each with any number of sessions. A client that disconnects may resume its sessions within the
grace period; then they are closed. `serve` a peer for as long as it is connected:

    async with RpcServer(runtime) as server:
        await server.serve(peer.Peer(channel, server.methods()))
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Self, TypeVar

import msgspec
from msgspec import UNSET

from holdfast import errors, events
from holdfast.agent import commands
from holdfast.agent.commands import conversations, turns
from holdfast.rpc import frames
from holdfast.rpc import peer as peers
from holdfast.rpc_server import open_sessions, session_info, wire_types
from holdfast.rpc_server import session as sessions
from holdfast.runtime import attachments, subscriptions
from holdfast.runtime import runtime as runtimes
from holdfast.store import conversation_row, titles

logger = logging.getLogger("holdfast.rpc_server")

GRACE_SECONDS = 60.0
"""Seconds in which a disconnected client may resume its sessions."""
MAX_SESSIONS = 100
"""Sessions that one client may have open."""
POLL_SECONDS = 3.0
"""Seconds between two checks of what other processes did to the open conversations."""
ANSWERED_BY = "a client"
"""Who answered an approval request, in the audit log."""

P = TypeVar("P", bound=wire_types.WireValue)
MethodHandler = Callable[[peers.Peer, Any], Awaitable[wire_types.WireValue]]


class RpcServer:
    """The server of one runtime. `async with` it, within the runtime: leaving the block closes every session."""

    def __init__(
        self,
        runtime: runtimes.Runtime,
        *,
        program: str = "Holdfast",
        model: str | None = None,
        notice: str | None = None,
        grace_seconds: float = GRACE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self._runtime, self._grace_seconds = runtime, grace_seconds
        self._sessions = open_sessions.OpenSessions(runtime, poll_seconds, max_sessions)
        self._opening: dict[peers.Peer, set[asyncio.Future[None]]] = {}
        self._leaving = set[asyncio.Task[None]]()
        self._info = wire_types.ServerInfo(
            protocol=wire_types.PROTOCOL, program=program, model=model, notice=notice, methods=[*wire_types.METHODS]
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        leaving = [*self._leaving]
        for task in leaving:
            task.cancel()
        if leaving:
            await asyncio.wait(leaving)

    async def close(self) -> None:
        """Close every session and refuse new ones. Connected clients get the events of that."""
        await self._sessions.end()

    # --- clients -------------------------------------------------------------------------------------

    async def serve(self, peer: peers.Peer) -> None:
        """Serve a client until it disconnects.

        After the end of its input, a client still gets the events of its prompts, within the limits of its peer. If
        this is cancelled, the sessions of the client are closed first.
        """
        greeting = asyncio.create_task(self._greet(peer))
        self._opening[peer] = set()
        running = asyncio.create_task(peer.run(partial(self._finish, peer)))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await self._sessions.close_all(self._sessions.of(peer))
            raise
        finally:
            for task in (running, greeting):
                task.cancel()
            await asyncio.wait([running, greeting])
            del self._opening[peer]
            self._disconnect(peer)

    async def _finish(self, peer: peers.Peer) -> None:
        await asyncio.gather(*(session.finish() for session in self._sessions.of(peer)))

    async def _greet(self, peer: peers.Peer) -> None:
        with suppress(errors.Gone):
            await peer.notify("event", wire_types.EventParams("ready", None, self._info))

    def _disconnect(self, peer: peers.Peer) -> None:
        left = [session for session in self._sessions if session.client is peer]
        for session in left:
            session.disconnect()
        if left:
            leaving = asyncio.create_task(self._close_abandoned(peer))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)

    async def _close_abandoned(self, peer: peers.Peer) -> None:
        """Close the sessions that no client resumed."""
        await asyncio.sleep(self._grace_seconds)
        left = [session for session in self._sessions if session.client is peer]
        for session in left:
            logger.info("closing %s: its client did not reconnect", session.key)
        await self._sessions.close_all(left)

    # --- methods -------------------------------------------------------------------------------------

    def methods(self) -> Mapping[str, peers.Handler]:
        """Return the handlers for a peer."""
        handlers: dict[str, MethodHandler] = {
            "server.info": self._server_info,
            "session.create": self._create,
            "session.list": self._list,
            "session.resume": self._resume,
            "session.info": self._session_info,
            "session.options": self._set_options,
            "session.title": self._title,
            "session.history": self._history,
            "session.undo": self._undo,
            "session.compress": self._compress,
            "session.branch": self._branch,
            "session.interrupt": self._interrupt,
            "session.steer": self._steer,
            "session.close": self._close_session,
            "prompt.submit": self._submit,
            "command.exec": self._execute,
            "approval.respond": self._respond,
        }
        return {name: _handler(method.params, handlers[name]) for name, method in wire_types.METHODS.items()}

    async def _server_info(self, _: peers.Peer, __: wire_types.NoParams) -> wire_types.ServerInfo:
        return self._info

    # --- opening and closing -------------------------------------------------------------------------

    async def _create(self, peer: peers.Peer, params: wire_types.CreateParams) -> wire_types.SessionState:
        images = _decode_images(params.options)
        title = titles.clean(params.title) if params.title is not None else None
        session = self._create_session(peer)
        session.set_options(params.options, images)
        self._runtime.want_title(session.key, title)
        try:
            return await session.info()
        except (errors.HoldfastError, asyncio.CancelledError):
            self._sessions.discard(session)
            raise

    def _create_session(self, peer: peers.Peer) -> sessions.ClientSession:
        new_id = conversation_row.generate_session_id(time.time())
        return self._sessions.open(peer, new_id, new_id)

    async def _list(self, peer: peers.Peer, params: wire_types.ListParams) -> wire_types.ListResult:
        heads = await self._runtime.db.list_sessions(owner=self._runtime.owner, limit=params.limit, skip=params.skip)
        opened = {session.conversation_id for session in self._sessions.of(peer)}
        listed = [session_info.list_entry(head, head.conversation_id in opened) for head in heads]
        return wire_types.ListResult(sessions=listed)

    async def _resume(self, peer: peers.Peer, params: wire_types.ResumeParams) -> wire_types.SessionState:
        """Open a conversation, or continue with a session that is open here or was left by a disconnected client."""
        images = _decode_images(params.options)
        with self._marked_as_opening(peer):
            session = self._sessions.find(peer, params.session_id) or self._sessions.find_abandoned(params.session_id)
            if session is None:
                session = await self._resolve(peer, params.session_id)
            else:
                session.resend_approvals()
            if session.client is not peer:
                session.adopt(peer)
            session.set_options(params.options, images)
        await session.refresh()
        return await session.info()

    @contextmanager
    def _marked_as_opening(self, peer: peers.Peer) -> Iterator[None]:
        """Make later requests of the client wait: they may be about the session that is opened within the block."""
        opened, opening = asyncio.get_running_loop().create_future(), self._opening[peer]
        opening.add(opened)
        try:
            yield
        finally:
            opening.discard(opened)
            opened.set_result(None)

    async def _wait_opened(self, peer: peers.Peer) -> None:
        if opening := tuple(self._opening[peer]):
            await asyncio.wait(opening)

    async def _resolve(self, peer: peers.Peer, session_id: str) -> sessions.ClientSession:
        """Return the session of a conversation that is named in any way; open it if it is not."""
        try:
            head = await self._runtime.db.resolve(session_id, owner=self._runtime.owner, near=True)
        except errors.Ambiguous as error:
            raise errors.RpcRefused(wire_types.NOT_FOUND, str(error), {"candidates": [*error.candidates]}) from None
        except LookupError as error:
            raise _not_found(error) from None
        conversation_id = head.conversation_id
        await self._sessions.wait_closed(peer, conversation_id)
        found = self._sessions.find(peer, conversation_id) or self._sessions.find_abandoned(conversation_id)
        if found is None:
            return self._sessions.open(peer, conversation_id, head.id)
        found.resend_approvals()
        return found

    async def _close_session(self, peer: peers.Peer, params: wire_types.SessionParams) -> wire_types.CloseResult:
        session = await self._find(peer, params.session_id)
        ended = await self._sessions.close(session)
        return wire_types.CloseResult(session_id=session.key, ended=ended)

    # --- finding -------------------------------------------------------------------------------------

    async def _find(self, peer: peers.Peer, session_id: str) -> sessions.ClientSession:
        """Return the session of the client that has or had this id.

        A client may use a session as soon as it has sent the request to open it.
        """
        session = self._sessions.find(peer, session_id)
        if session is None:
            await self._wait_opened(peer)
            session = self._sessions.find(peer, session_id)
        if session is None:
            try:
                conversation_id = (await self._runtime.db.snapshot(session_id)).conversation_id
            except errors.NoSuchSession as error:
                raise _not_found(error) from None
            session = self._sessions.find(peer, conversation_id)
        if session is None:
            raise open_sessions.not_open(session_id)
        session.ids.add(session_id)
        return session

    async def _find_only(self, peer: peers.Peer) -> sessions.ClientSession:
        """Return the only session of a client, created if there is none."""
        await self._wait_opened(peer)
        found = self._sessions.of(peer)
        if len(found) > 1:
            error = "Several sessions are open. Name one with `session_id`."
            raise errors.RpcRefused(wire_types.NOT_FOUND, error, {"candidates": [each.key for each in found]})
        return found[0] if found else self._create_session(peer)

    async def _open_moved(self, peer: peers.Peer, conversation_id: str) -> wire_types.SessionState:
        """Open the conversation that a command led to."""
        await self._sessions.wait_closed(peer, conversation_id)
        found = await subscriptions.find_conversation(self._runtime.db, conversation_id)
        session = self._sessions.find(peer, conversation_id)
        if session is None:
            session = self._sessions.open(peer, conversation_id, found.head_id if found else conversation_id)
        return await session.info()

    # --- state ---------------------------------------------------------------------------------------

    async def _session_info(self, peer: peers.Peer, params: wire_types.SessionParams) -> wire_types.SessionState:
        session = await self._find(peer, params.session_id)
        await session.refresh()
        return await session.info()

    async def _set_options(self, peer: peers.Peer, params: wire_types.OptionsParams) -> wire_types.SessionState:
        images = _decode_images(params.options)
        session = await self._find(peer, params.session_id)
        async with self._sessions.in_order(session):
            session.set_options(params.options, images)
            await session.refresh()
            return await session.info()

    async def _title(self, peer: peers.Peer, params: wire_types.TitleParams) -> wire_types.TitleResult:
        session = await self._find(peer, params.session_id)
        async with self._sessions.in_order(session):
            title, pending = await session.title(params.title)
            await session.refresh()
            return wire_types.TitleResult(session_id=session.key, title=title, pending=pending)

    async def _history(self, peer: peers.Peer, params: wire_types.HistoryParams) -> wire_types.HistoryResult:
        session = await self._find(peer, params.session_id)
        await session.refresh()
        db = self._runtime.db
        found = await subscriptions.find_conversation(db, session.conversation_id)
        page = await session_info.read_transcript(db, found, params.after, params.limit) if found else []
        last = found.last_seq if found else 0
        has_more = bool(page) and page[-1].seq < last
        return wire_types.HistoryResult(session_id=session.key, messages=page, last_seq=last, more=has_more)

    # --- prompts and commands ------------------------------------------------------------------------

    async def _submit(self, peer: peers.Peer, params: wire_types.SubmitParams) -> wire_types.SubmitResult:
        if params.session_id is None:
            session = await self._find_only(peer)
        else:
            session = await self._find(peer, params.session_id)
        async with self._sessions.in_order(session):
            await session.refresh()
            return await session.submit(params.text, params.images, params.uid)

    async def _steer(self, peer: peers.Peer, params: wire_types.SteerParams) -> wire_types.SteerResult:
        session = await self._find(peer, params.session_id)
        if self._runtime.steer(session.conversation_id, params.text, params.uid):
            return wire_types.SteerResult(session_id=session.key, steered=True, prompt=None)
        async with self._sessions.in_order(session):
            prompt = await session.submit(params.text, uid=params.uid)
        return wire_types.SteerResult(session_id=session.key, steered=False, prompt=prompt)

    async def _interrupt(self, peer: peers.Peer, params: wire_types.SessionParams) -> wire_types.InterruptResult:
        session = await self._find(peer, params.session_id)
        stopped = self._runtime.stop(session.conversation_id)
        return wire_types.InterruptResult(session_id=session.key, interrupted=stopped)

    async def _respond(self, peer: peers.Peer, params: wire_types.RespondParams) -> wire_types.RespondResult:
        session = await self._find(peer, params.session_id)
        receipt = await session.approvals.answer(
            events.Approve(params.request_id, params.answer, ANSWERED_BY, params.reason)
        )
        return wire_types.RespondResult(session_id=session.key, accepted=receipt.accepted, notice=receipt.notice)

    async def _undo(self, peer: peers.Peer, params: wire_types.UndoParams) -> wire_types.UndoResult:
        session = await self._find(peer, params.session_id)
        async with self._sessions.in_order(session):
            _, output = await session.run_command(commands.command_line(turns.undo, params.turns))
            await session.refresh()
        return wire_types.UndoResult(session_id=session.key, text=_join_output(output))

    async def _compress(self, peer: peers.Peer, params: wire_types.CompressParams) -> wire_types.CompressResult:
        session = await self._find(peer, params.session_id)
        # Not in order, as it may be slow: its commit fails if the conversation has changed meanwhile.
        compaction = await session.compress(params.focus, params.keep_exchanges)
        await session.refresh()
        return wire_types.CompressResult(
            session_id=session.key,
            outcome=compaction.outcome.value,
            reason=compaction.reason,
            cut_seq=compaction.cut_seq,
            before=compaction.before,
            after=compaction.after,
        )

    async def _branch(self, peer: peers.Peer, params: wire_types.BranchParams) -> wire_types.SessionState:
        session = await self._find(peer, params.session_id)
        self._sessions.check_count(peer)
        async with self._sessions.in_order(session):
            outcomes, output = await session.run_command(
                commands.command_line(conversations.branch, params.title or "")
            )
        _join_output(output)
        (moved,) = (each for each in outcomes if isinstance(each, events.Moved))
        return await self._open_moved(peer, moved.conversation_id)

    async def _execute(self, peer: peers.Peer, params: wire_types.ExecParams) -> wire_types.ExecResult:
        if not commands.is_command(params.line):
            raise errors.RpcRefused(
                frames.INVALID_PARAMS, "Not a command: a command is a slash and a name. Send text with prompt.submit."
            )
        session = await self._find(peer, params.session_id)
        prompt: wire_types.SubmitResult | None = None
        moved: wire_types.SessionState | None = None
        command = commands.find(params.line)
        is_ordered = command is not None and command.ordered
        if command is not None and command.opens_conversation:
            self._sessions.check_count(peer)
        async with AsyncExitStack() as stack:
            # Other commands may be slow, or stop a slow one, and do not wait for each other.
            if is_ordered:
                await stack.enter_async_context(self._sessions.in_order(session))
            outcomes, output = await session.run_command(params.line)
            if not is_ordered and any(isinstance(each, events.Say) for each in outcomes):
                await stack.enter_async_context(self._sessions.in_order(session))
            for each in outcomes:
                match each:
                    case events.Say(text, content):
                        prompt = await session.submit(text, content=content)
                    case events.Moved(conversation_id):
                        moved = await self._open_moved(peer, conversation_id)
            await session.refresh()
        return wire_types.ExecResult(
            session_id=session.key,
            ok=not any(line.level == "error" for line in output),
            output=output,
            prompt=prompt,
            moved=moved,
            quit=any(isinstance(each, events.Quit) for each in outcomes),
        )


def _handler(params_type: type[P], handle: Callable[[peers.Peer, P], Awaitable[wire_types.WireValue]]) -> peers.Handler:
    """Return a handler that validates its parameters, which are given by name."""

    async def handler(peer: peers.Peer, given: frames.Params) -> object:
        try:
            params = msgspec.convert({} if given is None else given, params_type)
        except msgspec.ValidationError as error:
            raise errors.RpcRefused(frames.INVALID_PARAMS, f"{error}.") from None
        return await handle(peer, params)

    return handler


def _join_output(output: Sequence[wire_types.OutputLine]) -> str:
    """Return the text of a command's output. Raises it as an error if the command was refused."""
    text = "\n".join(line.text for line in output)
    if any(line.level == "error" for line in output):
        raise errors.HoldfastError(text)
    return text


def _not_found(error: LookupError) -> errors.RpcRefused:
    return errors.RpcRefused(wire_types.NOT_FOUND, str(error), {"type": type(error).__name__})


def _decode_images(options: wire_types.OptionChanges) -> list[attachments.ImageData] | None:
    """Return the images to attach; None if the attached ones stay."""
    return None if options.images is UNSET else sessions.decode_images(options.images)
