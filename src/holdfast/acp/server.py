"""The agent that editors talk to, as the SDK wants one: sessions by their ids, and what each request means.

A session's id is that of its conversation, for life; any id the conversation ever had opens it, too. Whatever goes
wrong is answered with the protocol's errors, and never with a trace.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

from acp import exceptions, interfaces, schema
from acp.agent import connection

from holdfast import errors, types
from holdfast.acp import channel, client, conversion, error_responses, modes, session_list, updates
from holdfast.acp import session as sessions
from holdfast.agent import approvals, turn_lease
from holdfast.rpc import frames
from holdfast.runtime import runtime
from holdfast.store import async_db, conversation_row, titles

logger = logging.getLogger("holdfast.acp")

Servers: TypeAlias = Sequence[schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio]

MOST = 100
"""Sessions that may be open at once."""
LEAVING = 2.0
"""Seconds in which prompts are answered when this ends."""


class Place(NamedTuple):
    """A session to be opened: what it is, and where and with what it works."""

    session_id: str
    conversation_id: str
    folders: tuple[str, ...]
    """Where it may read and write; in the first of them it is at home."""
    servers: Servers


class House(Protocol):
    """What the program gives a server."""

    @property
    def db(self) -> async_db.AsyncSessionDB: ...
    async def models(self) -> Sequence[str]:
        """Names of models that can be had; bounded in time."""

    def door(self, place: Place, client: client.Client) -> AbstractAsyncContextManager[runtime.Runtime]:
        """A door for one session, with tools for its folders; closed when the session is."""


class Open(NamedTuple):
    """A session, and all that was opened for it."""

    session: sessions.Session
    folders: tuple[str, ...]
    door: runtime.Runtime
    stack: AsyncExitStack


class Server:
    """The sessions of one editor. `async with` it: leaving it closes them."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._editor: interfaces.Client | None = None
        self._open: dict[str, Open] = {}
        self._orders = weakref.WeakValueDictionary[str, asyncio.Lock]()
        """What opens and closes one session is done one after the other."""
        self._opening = 0
        self._later = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Server:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all sessions: what runs in them is stopped, and its prompts get their answer."""
        for task in self._later:
            task.cancel()
        closing = (self._close(each) for each in tuple(self._open))
        for left in await asyncio.gather(*closing, return_exceptions=True):
            if left is not None:
                # What is wrong with one keeps none of the others open.
                logger.error("a session could not be closed", exc_info=left)

    def on_connect(self, conn: interfaces.Client) -> None:
        self._editor = conn

    # --- before sessions -----------------------------------------------------------------------------

    @error_responses.answered
    async def authenticate(self, method_id: str, **_: Any) -> schema.AuthenticateResponse:
        """Keys are the settings': there is nothing to log in to, and no way to was offered."""
        raise errors.RpcRefused(
            frames.PARAMS, f"There is no way {errors.shown(method_id)} to authenticate, and no need."
        )

    # --- opening and closing -------------------------------------------------------------------------

    @error_responses.answered
    async def new_session(
        self, cwd: str, additional_directories: list[str] | None = None, mcp_servers: Servers | None = None, **_: Any
    ) -> schema.NewSessionResponse:
        fresh = conversation_row.generate_session_id(time.time())
        folders = _folders(cwd, additional_directories)
        found = await self._opened(Place(fresh, fresh, folders, mcp_servers or ()), _nothing)
        return schema.NewSessionResponse(
            session_id=fresh, modes=modes.state(found.mode), config_options=found.options()
        )

    @error_responses.answered
    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: Servers | None = None,
        additional_directories: list[str] | None = None,
        **_: Any,
    ) -> schema.LoadSessionResponse:
        folders = _folders(cwd, additional_directories)
        found = await self._again(session_id, folders, mcp_servers or (), replayed=True)
        return schema.LoadSessionResponse(modes=modes.state(found.mode), config_options=found.options())

    @error_responses.answered
    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: Servers | None = None,
        **_: Any,
    ) -> schema.ResumeSessionResponse:
        folders = _folders(cwd, additional_directories)
        found = await self._again(session_id, folders, mcp_servers or (), replayed=False)
        return schema.ResumeSessionResponse(modes=modes.state(found.mode), config_options=found.options())

    @error_responses.answered
    async def fork_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: Servers | None = None,
        **_: Any,
    ) -> schema.ForkSessionResponse:
        """Between turns: half of one would be nobody's to finish."""
        folders = _folders(cwd, additional_directories)
        here = await self._known(session_id)
        made = conversation_row.generate_session_id(time.time())

        async def forked() -> None:
            await self._forked(here, made, folders[0])

        found = await self._opened(Place(made, made, folders, mcp_servers or ()), forked)
        found.follow(here)
        found.set_mode(modes.strictest(found.mode, self._mode(here) or found.mode))
        return schema.ForkSessionResponse(
            session_id=made, modes=modes.state(found.mode), config_options=found.options()
        )

    async def _forked(self, conversation_id: str, made: str, folder: str) -> None:
        """A branch, in this folder; of what has not begun, something else that has not.

        Where nobody is told of it after all, it stays: others may have written to it by then.
        """
        try:
            async with turn_lease.begin(self._house.db, conversation_id, wait_seconds=0):
                await self._house.db.branch(conversation_id, branch_id=made, folder=titles.local_folder(folder))
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            return

    @error_responses.answered
    async def close_session(self, session_id: str, **_: Any) -> schema.CloseSessionResponse:
        self._session(session_id)
        async with self._in_order(session_id):
            await self._close(session_id)
        return schema.CloseSessionResponse()

    @error_responses.answered
    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        """Those of a folder, and those of none, which can be opened in any. The folder may be gone by now."""
        folder = _asked(cwd) if cwd else None
        after = session_list.cursor(cursor) if cursor is not None else None
        heads, more = await session_list.page(self._house.db, after, session_list.PAGE, folder)
        listed = [self._listed(head, folder or os.getcwd()) for head in heads]
        return schema.ListSessionsResponse(sessions=listed, next_cursor=str(more) if more is not None else None)

    def _listed(self, head: types.Session, folder: str) -> schema.SessionInfo:
        found = self._open.get(head.conversation_id)
        where = head.folder or (found.folders[0] if found is not None else folder)
        at = datetime.fromtimestamp(head.active_at, UTC).isoformat(timespec="milliseconds")
        return schema.SessionInfo(session_id=head.conversation_id, cwd=where, title=head.title, updated_at=at)

    async def _again(
        self, session_id: str, folders: tuple[str, ...], servers: Servers, *, replayed: bool
    ) -> sessions.Session:
        """A conversation that has begun. One that is open already is opened anew: its folders may be others."""
        here = await self._known(session_id)
        return await self._opened(Place(session_id, here, folders, servers), _nothing, replayed=replayed)

    async def _known(self, session_id: str) -> str:
        """The conversation of this id; NoSuchSession where there is none, or it is somebody else's."""
        if (found := self._open.get(session_id)) is not None:
            return found.session.conversation_id
        here = await self._house.db.conversation((await self._house.db.snapshot(session_id)).conversation_id)
        if here.owner:
            raise errors.NoSuchSession(session_id)
        return here.id

    def _in_order(self, id: str) -> asyncio.Lock:
        return self._orders.setdefault(id, asyncio.Lock())

    async def _opened(
        self, place: Place, ready: Callable[[], Awaitable[None]], *, replayed: bool = False
    ) -> sessions.Session:
        """A session that has begun. `ready` is what opening it changes in the store."""
        name = place.session_id
        with self._room(name):
            async with self._in_order(name), AsyncExitStack() as stack:
                mode = self._mode(place.conversation_id) or modes.DEFAULT
                await self._close(name)
                made = await self._made(stack, place)
                made.session.set_mode(mode)
                # As late as can be: what is refused changes nothing, and what others see is theirs, too, and is not
                # taken back. But before it begins: from then on it speaks, and nothing is to come before the answer.
                await ready()
                await made.session.begin(replayed)
                self._open[name] = made._replace(stack=stack.pop_all())
        self._afterwards(made.session.announce())
        return made.session

    def _mode(self, conversation_id: str) -> approvals.Mode | None:
        """What was chosen for a conversation that is open: the strictest, where it is so more than once."""
        open_ones = [each.session for each in self._open.values() if each.session.conversation_id == conversation_id]
        return modes.strictest(*(each.mode for each in open_ones)) if open_ones else None

    @contextmanager
    def _room(self, id: str) -> Iterator[None]:
        """A place for one more, or for one that has its place already; RpcRefused where there is none."""
        if len(self._open.keys() - {id}) + self._opening >= MOST:
            raise errors.RpcRefused(frames.INVALID, f"At most {MOST} sessions are open at once. Close one.")
        self._opening += 1
        try:
            yield
        finally:
            self._opening -= 1

    async def _made(self, stack: AsyncExitStack, place: Place) -> Open:
        assert self._editor is not None  # who asks is connected
        made: list[sessions.Session] = []

        async def tell(update: updates.Update) -> None:
            await made[0].tell(update)

        tools = client.Editor(self._editor, tell)
        door = await stack.enter_async_context(self._house.door(place, tools))
        names = sessions.Names(place.session_id, place.conversation_id, place.folders[0])
        made.append(sessions.Session(names, door, client.Person(self._editor), await self._house.models()))
        made[0].remarks += _left_out(place.servers)
        stack.push_async_callback(made[0].close)
        return Open(made[0], place.folders, door, stack)

    async def _close(self, id: str) -> None:
        if (found := self._open.pop(id, None)) is not None:
            await found.stack.aclose()

    def _afterwards(self, work: Awaitable[None]) -> None:
        """Do it when the request at hand is answered: its answer goes out before anything else has its turn."""

        async def later() -> None:
            try:
                await work
            except channel.EditorGone:
                return

        task = asyncio.create_task(later())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    def _session(self, session_id: str) -> sessions.Session:
        found = self._open.get(session_id)
        if found is None:
            raise errors.RpcRefused(
                error_responses.NOT_FOUND,
                f"{errors.shown(session_id)} is not open here: session/load opens what there is.",
            )
        return found.session

    # --- how a session behaves -----------------------------------------------------------------------

    @error_responses.answered
    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> schema.SetSessionModeResponse:
        found = self._session(session_id)
        _choose_mode(found, mode_id)
        found.tell_options()
        return schema.SetSessionModeResponse()

    @error_responses.answered
    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> schema.SetSessionConfigOptionResponse:
        found = self._session(session_id)
        match config_id:
            case modes.MODE:
                _choose_mode(found, value)
                found.tell_mode()
            case modes.MODEL if isinstance(value, str) and value.strip():
                await found.set_model(value)
            case modes.MODEL:
                raise errors.RpcRefused(frames.PARAMS, "A model is chosen by its name.")
            case _:
                raise errors.RpcRefused(frames.PARAMS, f"There is no option {errors.shown(config_id)}.")
        return schema.SetSessionConfigOptionResponse(config_options=found.options())

    # --- prompts -------------------------------------------------------------------------------------

    @error_responses.answered
    async def prompt(self, session_id: str, prompt: list[conversion.Block], **_: Any) -> schema.PromptResponse:
        found, asked = self._session(session_id), channel.ASKED.get() or {}
        return schema.PromptResponse(stop_reason=await found.prompt(conversion.said(prompt), asked.get("id")))

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Of what is not open there is nothing to cancel."""
        if (found := self._open.get(session_id)) is not None:
            found.session.cancel()

    def unwanted(self, session_id: str, request: object) -> None:
        """The answer to this prompt is not wanted any more."""
        if (found := self._open.get(session_id)) is not None:
            found.session.drop(request)

    # --- what is not of the protocol -----------------------------------------------------------------

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002
        raise exceptions.RequestError.method_not_found(f"_{method}")

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        """Nobody has to know a word that is not of the protocol."""


async def _nothing() -> None:
    """What begins with its first message changes nothing before."""


def _choose_mode(session: sessions.Session, name: object) -> None:
    mode = modes.of(name)
    if mode is None:
        raise errors.RpcRefused(frames.PARAMS, f"There is no mode {errors.shown(str(name))}.")
    session.set_mode(mode)


def _left_out(servers: Servers) -> list[str]:
    """What there is to say of servers that came with the request at hand: what cannot be read, or not be spoken to."""
    through = [
        f"The MCP server {errors.shown(each.name)} is to be spoken to through the editor; it is left out."
        for each in servers
        if isinstance(each, schema.AcpMcpServer)
    ]
    match channel.ASKED.get():
        case {"params": {"mcpServers": list(given)}} if len(given) > len(servers):
            unread = f"{len(given) - len(servers)} of the {len(given)} MCP servers of the editor cannot be read."
            return [unread, *through]
        case _:
            return through


def _folders(cwd: str, more: Sequence[str] | None = None) -> tuple[str, ...]:
    """Where a session works; RpcRefused where that is no folder."""
    for each in (cwd, *(more or ())):
        if "\0" in each or not os.path.isabs(each):
            raise errors.RpcRefused(frames.PARAMS, f"{errors.shown(each)} is no absolute path.")
        if not os.path.isdir(each):
            raise errors.RpcRefused(frames.PARAMS, f"There is no folder {errors.shown(each)}.")
    return (cwd, *(more or ()))


def _asked(cwd: str) -> str:
    """A folder to choose by, which need not be there; RpcRefused where it is no path of one."""
    try:
        return titles.clean_folder(cwd)
    except errors.InvalidArgument as error:
        raise errors.RpcRefused(frames.PARAMS, str(error)) from None


async def attend(server: Server, wire: channel.Channel) -> None:
    """Serve one editor until it is gone."""
    wire.served, wire.cancelled = True, server.unwanted
    agent = cast("interfaces.Agent", server)  # What initializes is answered by the channel.
    made = connection.AgentSideConnection(agent, wire, listening=False, use_unstable_protocol=True)
    try:
        await made.listen()
    finally:
        await server.close()
        await wire.settled(LEAVING)
        await made.close()
