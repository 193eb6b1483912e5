"""The agent side of the protocol: the sessions of one editor, and a method for each request of the SDK.

A session has the id of its conversation; any id that the conversation ever had opens it, too. Every error becomes an
error response of the protocol, without a traceback.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from acp import exceptions, interfaces, schema
from acp.agent import connection

from holdfast import errors, types
from holdfast.acp import channel, client, conversion, mcp_servers, modes
from holdfast.acp import session as sessions
from holdfast.agent import approvals, turn_lease
from holdfast.rpc import frames
from holdfast.runtime import runtime
from holdfast.store import async_db, conversation_row, titles

logger = logging.getLogger("holdfast.acp")

P = ParamSpec("P")
T = TypeVar("T")

MAX_SESSIONS = 100
PAGE_SIZE = 50
SHUTDOWN_SECONDS = 2.0
"""Seconds in which pending prompts are answered at the end."""
NOT_FOUND = -32002


def answer_errors(method: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    """Convert every error of a request into an error of the protocol."""

    @wraps(method)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except exceptions.RequestError:
            raise
        except errors.HoldfastError as error:
            raise _request_error(error) from None
        except Exception:
            logger.exception("a request failed")
            raise exceptions.RequestError(frames.INTERNAL_ERROR, "Internal error; see the log for details.") from None

    return answer


def _request_error(error: errors.HoldfastError) -> exceptions.RequestError:
    text = str(error)
    match error:
        case errors.RpcRefused():
            return exceptions.RequestError(error.code, text, error.data)
        case errors.NoSuchSession() | errors.InvalidArgument(parameter="session_id"):
            return exceptions.RequestError(NOT_FOUND, text)
        case errors.InvalidArgument():
            return exceptions.RequestError(frames.INVALID_PARAMS, text)
        case errors.Busy():
            return exceptions.RequestError(frames.BUSY, text, {"type": "Busy"})
        case _:
            return exceptions.RequestError(frames.INTERNAL_ERROR, text, {"type": type(error).__name__})


class Program(Protocol):
    """The part of the program that the server uses."""

    @property
    def db(self) -> async_db.AsyncSessionDB: ...
    async def models(self) -> Sequence[str]:
        """Return the names of available models, within a limited time."""

    def open_runtime(
        self, spec: sessions.SessionSpec, client: client.ToolClient
    ) -> AbstractAsyncContextManager[runtime.Runtime]:
        """Open a runtime for one session, with tools for its folders."""


class OpenSession(NamedTuple):
    """A session and the resources that were opened for it."""

    session: sessions.EditorSession
    resources: AsyncExitStack


class EditorServer:
    """The sessions of one editor, until `close`."""

    def __init__(self, program: Program, *, max_sessions: int = MAX_SESSIONS, page_size: int = PAGE_SIZE) -> None:
        self._program, self._max_sessions, self._page_size = program, max_sessions, page_size
        self._client: interfaces.Client | None = None
        self._open: dict[str, OpenSession] = {}
        self._locks = weakref.WeakValueDictionary[str, asyncio.Lock]()
        """Serialize the opening and closing of a session."""

    async def close(self) -> None:
        """Close all sessions: running turns are stopped and their prompts answered."""
        closing = (self._close(each) for each in tuple(self._open))
        for error in await asyncio.gather(*closing, return_exceptions=True):
            if error is not None:
                logger.error("a session could not be closed", exc_info=error)

    def on_connect(self, conn: interfaces.Client) -> None:
        self._client = conn

    @answer_errors
    async def authenticate(self, method_id: str, **_: Any) -> schema.AuthenticateResponse:
        raise errors.RpcRefused(
            frames.INVALID_PARAMS,
            f"Unknown authentication method: {errors.quote(method_id)}. No authentication is needed; model API keys "
            "come from the settings.",
        )

    # --- opening and closing -------------------------------------------------------------------------

    @answer_errors
    async def new_session(self, cwd: str, **more: Any) -> schema.NewSessionResponse:
        new_id = conversation_row.generate_session_id(time.time())
        session = await self._open_session(_build_spec(new_id, new_id, cwd, **more))
        return schema.NewSessionResponse(session_id=new_id, **_options(session))

    @answer_errors
    async def load_session(self, cwd: str, session_id: str, **more: Any) -> schema.LoadSessionResponse:
        session = await self._reopen(session_id, cwd, replay=True, **more)
        return schema.LoadSessionResponse(**_options(session))

    @answer_errors
    async def resume_session(self, session_id: str, cwd: str, **more: Any) -> schema.ResumeSessionResponse:
        session = await self._reopen(session_id, cwd, replay=False, **more)
        return schema.ResumeSessionResponse(**_options(session))

    @answer_errors
    async def fork_session(self, session_id: str, cwd: str, **more: Any) -> schema.ForkSessionResponse:
        """Branch a conversation; refused while a turn is running."""
        new_id = conversation_row.generate_session_id(time.time())
        spec = _build_spec(new_id, new_id, cwd, **more)
        origin = await self._find(session_id)
        session = await self._open_session(spec, partial(self._branch, origin, new_id, cwd))
        session.copy_model(origin)
        session.set_mode(modes.strictest_mode(session.mode, self._mode(origin) or session.mode))
        return schema.ForkSessionResponse(session_id=new_id, **_options(session))

    async def _branch(self, conversation_id: str, new_id: str, folder: str) -> None:
        """Branch a conversation, unless it has no messages yet.

        The branch stays even if the response is lost: another process may have written to it.
        """
        try:
            async with turn_lease.begin(self._program.db, conversation_id, wait_seconds=0):
                await self._program.db.branch(conversation_id, branch_id=new_id, folder=titles.local_folder(folder))
        except errors.ConversationDeleted:
            raise
        except errors.NoSuchSession:
            return

    @answer_errors
    async def close_session(self, session_id: str, **_: Any) -> schema.CloseSessionResponse:
        self._session(session_id)
        async with self._lock(session_id):
            await self._close(session_id)
        return schema.CloseSessionResponse()

    @answer_errors
    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> schema.ListSessionsResponse:
        """List the conversations of a folder, which may be deleted, and those without a folder."""
        folder = _check_filter(cwd) if cwd else None
        skip = _parse_cursor(cursor) if cursor is not None else 0
        heads = await self._program.db.list_sessions(owner="", folder=folder, limit=self._page_size + 1, skip=skip)
        listed = [self._describe(head, folder or os.getcwd()) for head in heads[: self._page_size]]
        next_cursor = str(skip + self._page_size) if len(heads) > self._page_size else None
        return schema.ListSessionsResponse(sessions=listed, next_cursor=next_cursor)

    def _describe(self, head: types.Session, folder: str) -> schema.SessionInfo:
        found = self._open.get(head.conversation_id)
        cwd = head.folder or (found.session.folder if found is not None else folder)
        at = datetime.fromtimestamp(head.active_at, UTC).isoformat(timespec="milliseconds")
        return schema.SessionInfo(session_id=head.conversation_id, cwd=cwd, title=head.title, updated_at=at)

    async def _reopen(self, session_id: str, cwd: str, *, replay: bool, **more: Any) -> sessions.EditorSession:
        """Open a conversation that exists. An open session is opened again: its folders may be different."""
        spec = _build_spec(session_id, await self._find(session_id), cwd, **more)
        return await self._open_session(spec, replay=replay)

    async def _find(self, session_id: str) -> str:
        """Return the conversation of a session. Raises NoSuchSession, for conversations with an owner, too."""
        if (found := self._open.get(session_id)) is not None:
            return found.session.conversation_id
        db = self._program.db
        conversation = await db.conversation((await db.snapshot(session_id)).conversation_id)
        if conversation.owner:
            raise errors.NoSuchSession(session_id)
        return conversation.id

    def _lock(self, session_id: str) -> asyncio.Lock:
        return self._locks.setdefault(session_id, asyncio.Lock())

    async def _open_session(
        self, spec: sessions.SessionSpec, prepare: Callable[[], Awaitable[None]] | None = None, *, replay: bool = False
    ) -> sessions.EditorSession:
        """Open a session. `prepare` makes its changes to the store."""
        name = spec.session_id
        async with self._lock(name), AsyncExitStack() as stack:
            if name not in self._open and len(self._open) >= self._max_sessions:
                raise errors.RpcRefused(
                    frames.INVALID_REQUEST, f"At most {self._max_sessions} sessions can be open. Close one first."
                )
            mode = self._mode(spec.conversation_id) or modes.DEFAULT
            await self._close(name)
            session = await self._build_session(stack, spec)
            session.set_mode(mode)
            # After everything that can be refused, as changes are not undone; before `begin`, which sends updates.
            if prepare is not None:
                await prepare()
            await session.begin(replay)
            self._open[name] = OpenSession(session, stack.pop_all())
        # Called after the response to the request being handled was sent.
        asyncio.get_running_loop().call_soon(session.announce)
        return session

    def _mode(self, conversation_id: str) -> approvals.Mode | None:
        """Return the strictest mode of the open sessions of a conversation."""
        found = [each.session for each in self._open.values() if each.session.conversation_id == conversation_id]
        return modes.strictest_mode(*(each.mode for each in found)) if found else None

    async def _build_session(self, stack: AsyncExitStack, spec: sessions.SessionSpec) -> sessions.EditorSession:
        assert self._client is not None  # requests arrive after on_connect
        tool_client = client.ToolClient(self._client)
        opened = await stack.enter_async_context(self._program.open_runtime(spec, tool_client))
        session = sessions.EditorSession(spec, opened, self._client, await self._program.models())
        tool_client.send_update = session.send_tool_update
        stack.push_async_callback(session.close)
        return session

    async def _close(self, session_id: str) -> None:
        if (found := self._open.pop(session_id, None)) is not None:
            await found.resources.aclose()

    def _session(self, session_id: str) -> sessions.EditorSession:
        found = self._open.get(session_id)
        if found is None:
            raise errors.RpcRefused(
                NOT_FOUND, f"Session {errors.quote(session_id)} is not open. Use session/load to open it."
            )
        return found.session

    # --- modes and models ----------------------------------------------------------------------------

    @answer_errors
    async def set_session_mode(self, session_id: str, mode_id: str, **_: Any) -> schema.SetSessionModeResponse:
        session = self._session(session_id)
        _set_mode(session, mode_id)
        session.send_options()
        return schema.SetSessionModeResponse()

    @answer_errors
    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> schema.SetSessionConfigOptionResponse:
        session = self._session(session_id)
        match config_id:
            case modes.MODE:
                _set_mode(session, value)
                session.send_mode()
            case modes.MODEL if isinstance(value, str) and value.strip():
                await session.set_model(value)
            case modes.MODEL:
                raise errors.RpcRefused(frames.INVALID_PARAMS, "The model must be a name.")
            case _:
                raise errors.RpcRefused(frames.INVALID_PARAMS, f"Unknown option: {errors.quote(config_id)}.")
        return schema.SetSessionConfigOptionResponse(config_options=session.options())

    # --- prompts -------------------------------------------------------------------------------------

    @answer_errors
    async def prompt(self, session_id: str, prompt: list[conversion.Block], **_: Any) -> schema.PromptResponse:
        stopped = await self._session(session_id).prompt(conversion.parse_prompt(prompt))
        return schema.PromptResponse(stop_reason=stopped)

    async def cancel(self, session_id: str, **_: Any) -> None:
        if (found := self._open.get(session_id)) is not None:
            found.session.cancel()


def _build_spec(
    session_id: str,
    conversation_id: str,
    cwd: str,
    additional_directories: Sequence[str] | None = None,
    mcp_servers: Sequence[mcp_servers.EditorMcpServer] | None = None,
    **_: Any,
) -> sessions.SessionSpec:
    """Return the session to open. Raises RpcRefused if one of its folders is not an existing, absolute folder."""
    folders = (cwd, *(additional_directories or ()))
    for each in folders:
        if "\0" in each or not os.path.isabs(each):
            raise errors.RpcRefused(frames.INVALID_PARAMS, f"{errors.quote(each)} is not an absolute path.")
        if not os.path.isdir(each):
            raise errors.RpcRefused(frames.INVALID_PARAMS, f"Folder not found: {errors.quote(each)}.")
    return sessions.SessionSpec(session_id, conversation_id, folders, mcp_servers or ())


def _options(session: sessions.EditorSession) -> dict[str, Any]:
    """Return the fields of a response that describe the options of a session."""
    return {"modes": modes.mode_state(session.mode), "config_options": session.options()}


def _set_mode(session: sessions.EditorSession, name: object) -> None:
    mode = modes.parse_mode(name)
    if mode is None:
        raise errors.RpcRefused(frames.INVALID_PARAMS, f"Unknown mode: {errors.quote(str(name))}.")
    session.set_mode(mode)


def _parse_cursor(cursor: str) -> int:
    """Return the number of listed conversations. Raises RpcRefused for an invalid cursor."""
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 15):
        raise errors.RpcRefused(frames.INVALID_PARAMS, "Invalid cursor: use the nextCursor of a previous response.")
    return int(cursor)


def _check_filter(cwd: str) -> str:
    """Return a folder to filter by, which need not exist. Raises RpcRefused if it is not a path."""
    try:
        return titles.clean_folder(cwd)
    except errors.InvalidArgument as error:
        raise errors.RpcRefused(frames.INVALID_PARAMS, str(error)) from None


async def serve(server: EditorServer, wire: channel.EditorChannel) -> None:
    """Serve one editor until it disconnects."""
    wire.is_served = True
    agent = cast("interfaces.Agent", server)  # `initialize` is answered by the channel.
    conn = connection.AgentSideConnection(agent, wire, listening=False, use_unstable_protocol=True)
    try:
        await conn.listen()
    finally:
        await server.close()
        await wire.wait_prompts(SHUTDOWN_SECONDS)
        await conn.close()
