"""A connection to a server, by the protocol's own library. Imported by name, as the library takes a second to load.

It is entered and left by one task; anybody may ask over it meanwhile. Nothing is asked twice.
"""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from mcp import Client, MCPError
from mcp import types as protocol
from mcp.client.session import ClientRequestContext
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.dispatcher import ProgressFnT
from pydantic import TypeAdapter, ValidationError

from holdfast import errors, redaction, types
from holdfast.tools import base
from holdfast.tools.mcp import (
    catalog,
    content,
    http_client,
    names,
    schemas,
    secret_filter,
    settings,
    stdio_transport,
    tool_filter,
)

PAGES, MOST_TOOLS, MOST_PROMPTS = 50, 100, 100
# However often it shows signs of life, a call ends after so many times its timeout.
LIVES = 20
SAYING = 0.1
LONGEST_ERROR = 4_000
LONGEST_PROMPT = 100_000

# How the library says that a connection ended; by what is said and not by the code, which servers use for their own.
_ENDS = ("Connection closed", "Session terminated", "SSE stream ended", "SSE stream failed")
# And how it says that there was no more than a status, which is the end of nothing but the call.
_STATUS_ONLY = "Server returned an error response"

Say = Callable[[str], None]
Answer = TypeVar("Answer", protocol.CallToolResult, protocol.GetPromptResult)
_CALLED: TypeAdapter[Any] = TypeAdapter(protocol.CallToolResult | protocol.InputRequiredResult)
_PROMPTED: TypeAdapter[Any] = TypeAdapter(protocol.GetPromptResult | protocol.InputRequiredResult)

# What the library has to say goes to the log, if there is one, and never to the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class Connection:
    """A server that can be asked. `lost` is called when it no longer can, `changed` when it offers something else."""

    def __init__(
        self, wanted: settings.Wanted, folder: str, lost: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._wanted, self._folder, self._lost, self._changed = wanted, folder, lost, changed
        self._stack = AsyncExitStack()
        self._pipe: stdio_transport.Pipe | None = None
        self._confidence = secret_filter.Confidence(wanted.given)
        self._malformed: list[object] = []
        self._status, self._in_session = 0, False
        self._over = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(self._made(await self._transport(stack)))
            await stack.enter_async_context(self._hearing_of_changes())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _transport(self, stack: AsyncExitStack) -> Any:
        wanted = self._wanted
        if wanted.command is not None:
            env = get_default_environment() | wanted.env
            self._pipe = stdio_transport.Pipe(wanted.command, wanted.args, env, wanted.cwd or self._folder, self._ended)
            return self._pipe
        if wanted.sse:
            return sse_client(wanted.url or "", httpx_client_factory=self._endless)
        spoken = await stack.enter_async_context(http_client.client(wanted.headers, wanted.timeout, self._was_refused))
        return streamable_http_client(wanted.url or "", http_client=spoken, max_sse_event_size=http_client.LONGEST)

    def _endless(self, headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:  # noqa: ARG002
        """The client the library asks for; it knows nothing of what ours is to send and how long it is to wait."""
        return http_client.client(self._wanted.headers, self._wanted.timeout, self._was_refused, endless=True)

    def _made(self, transport: Any) -> Client:
        async def roots(context: ClientRequestContext) -> protocol.ListRootsResult:  # noqa: ARG001
            root = {"uri": pathlib.Path(self._folder).as_uri(), "name": "workspace"}
            return protocol.ListRootsResult.model_validate({"roots": [root]})

        async def heard(message: object) -> None:
            if isinstance(message, protocol.ToolListChangedNotification | protocol.PromptListChangedNotification):
                self._changed()

        sifted: Any = tool_filter.Sieve(transport, self._malformed.append)
        # Nobody answers for us: what it asks of a model or of a person is refused.
        return Client(sifted, list_roots_callback=roots, message_handler=heard, cache=None)

    @asynccontextmanager
    async def _hearing_of_changes(self) -> AsyncIterator[None]:
        """Servers of the newer protocol tell changes only to those who subscribed to them."""

        async def listen() -> None:
            with suppress(MCPError, ListenNotSupportedError, SubscriptionLost, TimeoutError):
                async with self._client.listen(tools_list_changed=True, prompts_list_changed=True) as changes:
                    async for _ in changes:
                        self._changed()

        listening = asyncio.create_task(listen())
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    def _was_refused(self, status: int, in_session: bool) -> None:
        self._status, self._in_session = status, in_session

    def _ended(self) -> None:
        self._over = True
        self._lost()

    # --- what it offers ------------------------------------------------------------------------------

    async def listed(self) -> catalog.Listing:
        """All it offers now, as far as it can be used."""
        session, offers = self._client.session, self._client.server_capabilities
        self._malformed.clear()
        tools, left_out = [], []
        for tool in await _pages(session.list_tools, "tools", MOST_TOOLS) if offers.tools else ():
            if self._wanted.tools is not None and tool.name not in self._wanted.tools:
                continue
            try:
                tools.append(catalog.Listed(tool.name, self._spec(tool)))
            except schemas.Unfit as unfit:
                left_out.append(f"{names.line(tool.name, 60)} ({unfit})")
        left_out += [f"{names.line(str(each), 60)} (it does not follow the protocol)" for each in self._malformed]
        prompts = await _pages(session.list_prompts, "prompts", MOST_PROMPTS) if offers.prompts else ()
        return catalog.Listing(
            tuple({each.spec.name: each for each in sorted(tools, key=lambda each: each.spec.name)}.values()),
            tuple(self._prompt(each) for each in prompts if each.name),
            tuple(left_out),
        )

    def _spec(self, tool: protocol.Tool) -> types.ToolSpec:
        if not tool.name or len(tool.name) > names.LONGEST_GIVEN:
            raise schemas.Unfit("its name is empty or too long")
        told = names.description(self._wanted.name, self._confidence.kept(tool.description or tool.title or ""))
        return types.ToolSpec(names.name(self._wanted.name, tool.name), told, schemas.passed_on(tool.input_schema))

    def _prompt(self, given: protocol.Prompt) -> catalog.Prompt:
        arguments = tuple((each.name, bool(each.required)) for each in given.arguments or ())
        told = self._confidence.kept(given.description or given.title or "")
        return catalog.Prompt(given.name, names.line(told, 200), arguments)

    # --- asking --------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: base.Arguments, say: Say) -> types.Content:
        """What a tool answered; ToolFailed with what it said, or with why there is no answer."""
        params = protocol.CallToolRequestParams(name=tool, arguments=arguments)
        result = await self._asked(protocol.CallToolRequest(params=params), protocol.CallToolResult, say)
        made = content.of_result(result.content, result.structured_content, self._confidence.kept)
        if result.is_error:
            told = content.words(made) or "it says that it failed, and not why"
            raise errors.ToolFailed(self._confidence.untold(f"{self._wanted.name}: {told}"))
        return made

    async def prompt(self, prompt: str, arguments: dict[str, str]) -> str:
        """The text a prompt stands for."""
        params = protocol.GetPromptRequestParams(name=prompt, arguments=arguments)
        request = protocol.GetPromptRequest(params=params)
        result = await self._asked(request, protocol.GetPromptResult, lambda _: None)
        said = []
        for message in result.messages:
            text = content.words(content.of_result([message.content], None, self._confidence.kept))
            said.append(text if message.role == "user" else f"[assistant] {text}")
        return "\n\n".join(said)[:LONGEST_PROMPT]

    async def _asked(self, request: Any, kind: type[Answer], say: Say) -> Answer:
        """The answer to a request. Whoever is cancelled meanwhile has the server told to stop."""
        answers = _CALLED if kind is protocol.CallToolResult else _PROMPTED
        end = asyncio.get_running_loop().time() + LIVES * self._wanted.timeout
        try:
            async with asyncio.timeout(self._wanted.timeout) as deadline:
                heard = self._progress(say, deadline, end)
                # Not the session's own call: that checks by a schema of the server's, for as long as it takes.
                answer = await self._client.session.send_request(request, answers, progress_callback=heard)
        except TimeoutError:
            raise self._given_up(deadline.when() == end) from None
        except MCPError as error:
            raise self._refused(error) from None
        except ValueError:
            raise self._failed("answered with something that is no answer") from None
        if isinstance(answer, protocol.InputRequiredResult):
            raise self._failed("asks for more than it was given, which it cannot have here")
        assert isinstance(answer, kind)
        return answer

    def _given_up(self, however: bool) -> errors.ToolFailed:
        """Silent for too long; or not, and all the same it has to end."""
        seconds = self._wanted.timeout
        what = f"was not done within {LIVES * seconds:g} s" if however else f"gave no sign of life for {seconds:g} s"
        return self._failed(f"{what}; the call was given up")

    def _refused(self, error: MCPError) -> errors.ToolFailed:
        if http_client.TOO_LONG in error.message:
            return self._failed(http_client.TOO_LONG)
        if self._is_forgotten(error):
            self._ended()
            return self._failed("does not know us any more, as after a restart of it. The next call connects again")
        if _is_end(error):
            # An address has no process whose end would tell.
            self._ended()
        if self._over:
            again = "starts it" if self._pipe else "tries it"
            return self._failed(f"stopped in the middle of the call. The next call {again} again")
        return self._failed(f"refused: {names.line(self._told(error), LONGEST_ERROR)}")

    def _is_forgotten(self, error: MCPError) -> bool:
        """Whether our session is gone. By the protocol the status is 404; many say 400, as to anything they dislike."""
        in_session, self._in_session = self._in_session, False
        return in_session and (self._status == 404 or (self._status == 400 and "session" in error.message.lower()))

    def _told(self, error: MCPError) -> str:
        status = error.message.startswith(_STATUS_ONLY) and self._status
        return f"HTTP status {status}" if status else error.message

    def _progress(self, say: Say, deadline: asyncio.Timeout, end: float) -> ProgressFnT:
        loop = asyncio.get_running_loop()
        last = 0.0

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            if not deadline.expired():
                deadline.reschedule(min(loop.time() + self._wanted.timeout, end))
            if loop.time() - last >= SAYING:
                last = loop.time()
                far = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
                said = names.line(self._confidence.kept(message or ""), 200)
                say(f"{self._wanted.name}: {far} {said}".rstrip())

        return heard

    # --- what is said of it --------------------------------------------------------------------------

    def why(self, error: BaseException | None) -> str:
        """Why it is down, for people; an error of a library is only named, as it may quote what it was given."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = self._pipe.last_words.splitlines()[-1:] if self._pipe else []
        reason = self._reason(error) or (self._pipe.ended if self._pipe else "") or "the connection ended"
        return self._safe(": ".join([reason, *said]))

    def _failed(self, what: str) -> errors.ToolFailed:
        return errors.ToolFailed(self._safe(f"The MCP server {self._wanted.name} {what}."))

    def _safe(self, text: str) -> str:
        return redaction.redact(names.line(self._confidence.untold(text), LONGEST_ERROR + 200))

    def _reason(self, error: BaseException | None) -> str:
        match error:
            case None:
                return ""
            case errors.HoldfastError():
                return str(error).rstrip(".")
            case MCPError():
                return "" if _is_end(error) else f"it refused: {self._told(error)}"
            case ValidationError():
                place = ".".join(str(step) for step in error.errors(include_input=False)[0]["loc"])
                return f"what it says does not follow the protocol, at {place}"
            case _:
                return f"it cannot be spoken to ({type(error).__name__})"


def _is_end(error: MCPError) -> bool:
    """Whether the library says by this that the connection is of no more use."""
    return error.message.startswith(_ENDS)


async def _pages(fetch: Callable[..., Awaitable[Any]], what: str, most: int) -> list[Any]:
    """All there are, page by page; no more than anybody could use, however long the server goes on."""
    found: list[Any] = []
    cursor = None
    for _ in range(PAGES):
        page = await fetch(params=protocol.PaginatedRequestParams(cursor=cursor))
        found += getattr(page, what)
        if not page.next_cursor or page.next_cursor == cursor or len(found) >= most:
            break
        cursor = page.next_cursor
    return found[:most]
