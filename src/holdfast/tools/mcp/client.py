"""A connection to an MCP server, through the MCP SDK. Imported on demand, because the SDK takes a second to load.

One task enters and leaves it; any task may send requests meanwhile. No request is sent twice.
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
# A call ends after so many times its timeout, even if the server reports progress.
LIVES = 20
SAYING = 0.1
LONGEST_ERROR = 4_000
LONGEST_PROMPT = 100_000

# Messages by which the SDK reports the end of a connection. Servers use the same error codes for other errors.
_ENDS = ("Connection closed", "Session terminated", "SSE stream ended", "SSE stream failed")
# The message for a response without a body, which ends only the call.
_STATUS_ONLY = "Server returned an error response"

Say = Callable[[str], None]
Answer = TypeVar("Answer", protocol.CallToolResult, protocol.GetPromptResult)
_CALLED: TypeAdapter[Any] = TypeAdapter(protocol.CallToolResult | protocol.InputRequiredResult)
_PROMPTED: TypeAdapter[Any] = TypeAdapter(protocol.GetPromptResult | protocol.InputRequiredResult)

# Log records of the SDK must not reach the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class Connection:
    """A connected server. `lost` is called when the connection has ended, `changed` when its tools have changed."""

    def __init__(
        self, wanted: settings.Wanted, folder: str, lost: Callable[[], None], changed: Callable[[], None]
    ) -> None:
        self._wanted, self._folder, self._lost, self._changed = wanted, folder, lost, changed
        self._stack = AsyncExitStack()
        self._process: stdio_transport.ServerProcess | None = None
        self._secrets = secret_filter.SecretFilter(wanted.given)
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
            cwd = wanted.cwd or self._folder
            self._process = stdio_transport.ServerProcess(wanted.command, wanted.args, env, cwd, self._ended)
            return self._process.connect()
        if wanted.sse:
            return sse_client(wanted.url or "", httpx_client_factory=self._endless)
        spoken = await stack.enter_async_context(http_client.client(wanted.headers, wanted.timeout, self._was_refused))
        return streamable_http_client(wanted.url or "", http_client=spoken, max_sse_event_size=http_client.LONGEST)

    def _endless(self, headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:  # noqa: ARG002
        """Build the HTTP client for the SDK, which does not know our headers and timeouts."""
        return http_client.client(self._wanted.headers, self._wanted.timeout, self._was_refused, endless=True)

    def _made(self, transport: Any) -> Client:
        async def roots(context: ClientRequestContext) -> protocol.ListRootsResult:  # noqa: ARG001
            root = {"uri": pathlib.Path(self._folder).as_uri(), "name": "workspace"}
            return protocol.ListRootsResult.model_validate({"roots": [root]})

        async def heard(message: object) -> None:
            if isinstance(message, protocol.ToolListChangedNotification | protocol.PromptListChangedNotification):
                self._changed()

        sifted: Any = tool_filter.FilteredTransport(transport, self._malformed.append)
        # Requests of the server to a model or a person are refused.
        return Client(sifted, list_roots_callback=roots, message_handler=heard, cache=None)

    @asynccontextmanager
    async def _hearing_of_changes(self) -> AsyncIterator[None]:
        """Subscribe to changes, as the newer protocol requires."""

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

    # --- listing -------------------------------------------------------------------------------------

    async def listed(self) -> catalog.Listing:
        """Return the usable tools and prompts of the server."""
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
        left_out += [f"{names.line(str(each), 60)} (it violates the protocol)" for each in self._malformed]
        prompts = await _pages(session.list_prompts, "prompts", MOST_PROMPTS) if offers.prompts else ()
        return catalog.Listing(
            tuple({each.spec.name: each for each in sorted(tools, key=lambda each: each.spec.name)}.values()),
            tuple(self._prompt(each) for each in prompts if each.name),
            tuple(left_out),
        )

    def _spec(self, tool: protocol.Tool) -> types.ToolSpec:
        if not tool.name or len(tool.name) > names.LONGEST_GIVEN:
            raise schemas.Unfit("its name is empty or too long")
        told = names.description(self._wanted.name, self._secrets.redact(tool.description or tool.title or ""))
        return types.ToolSpec(names.name(self._wanted.name, tool.name), told, schemas.passed_on(tool.input_schema))

    def _prompt(self, given: protocol.Prompt) -> catalog.Prompt:
        arguments = tuple((each.name, bool(each.required)) for each in given.arguments or ())
        told = self._secrets.redact(given.description or given.title or "")
        return catalog.Prompt(given.name, names.line(told, 200), arguments)

    # --- requests ------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: base.Arguments, say: Say) -> types.Content:
        """Call a tool. Raise ToolFailed with its error message, or if there is no answer."""
        params = protocol.CallToolRequestParams(name=tool, arguments=arguments)
        result = await self._asked(protocol.CallToolRequest(params=params), protocol.CallToolResult, say)
        made = content.of_result(result.content, result.structured_content, self._secrets.redact)
        if result.is_error:
            told = content.words(made) or "it failed without a message"
            raise errors.ToolFailed(self._secrets.redact_all(f"{self._wanted.name}: {told}"))
        return made

    async def prompt(self, prompt: str, arguments: dict[str, str]) -> str:
        """Return the text of a prompt."""
        params = protocol.GetPromptRequestParams(name=prompt, arguments=arguments)
        request = protocol.GetPromptRequest(params=params)
        result = await self._asked(request, protocol.GetPromptResult, lambda _: None)
        said = []
        for message in result.messages:
            text = content.words(content.of_result([message.content], None, self._secrets.redact))
            said.append(text if message.role == "user" else f"[assistant] {text}")
        return "\n\n".join(said)[:LONGEST_PROMPT]

    async def _asked(self, request: Any, kind: type[Answer], say: Say) -> Answer:
        """Send a request and return the answer. On cancellation, the server is notified."""
        answers = _CALLED if kind is protocol.CallToolResult else _PROMPTED
        end = asyncio.get_running_loop().time() + LIVES * self._wanted.timeout
        try:
            async with asyncio.timeout(self._wanted.timeout) as deadline:
                heard = self._progress(say, deadline, end)
                # Not session.call_tool: it validates the result by a schema of the server, in unbounded time.
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
        """Return the error for a timeout, of silence or of the whole call."""
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
            # For an HTTP server there is no process whose end would be noticed.
            self._ended()
        if self._over:
            again = "starts it" if self._process else "tries it"
            return self._failed(f"stopped in the middle of the call. The next call {again} again")
        return self._failed(f"refused: {names.line(self._told(error), LONGEST_ERROR)}")

    def _is_forgotten(self, error: MCPError) -> bool:
        """Return whether the session has expired. The protocol requires status 404; many servers send 400."""
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
                said = names.line(self._secrets.redact(message or ""), 200)
                say(f"{self._wanted.name}: {far} {said}".rstrip())

        return heard

    # --- messages ------------------------------------------------------------------------------------

    def why(self, error: BaseException | None) -> str:
        """Return why the server is down. Errors of libraries are only named, because they may quote secrets."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        lines = self._process.last_lines if self._process else []
        reason = self._reason(error) or "".join(lines[-1:]) or "the connection ended"
        return self._safe(": ".join([reason, *lines[:-1]]))

    def _failed(self, what: str) -> errors.ToolFailed:
        return errors.ToolFailed(self._safe(f"The MCP server {self._wanted.name} {what}."))

    def _safe(self, text: str) -> str:
        return redaction.redact(names.line(self._secrets.redact_all(text), LONGEST_ERROR + 200))

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
    """Return whether this error means that the connection has ended."""
    return error.message.startswith(_ENDS)


async def _pages(fetch: Callable[..., Awaitable[Any]], what: str, most: int) -> list[Any]:
    """Return all items, page by page, up to a limit."""
    found: list[Any] = []
    cursor = None
    for _ in range(PAGES):
        page = await fetch(params=protocol.PaginatedRequestParams(cursor=cursor))
        found += getattr(page, what)
        if not page.next_cursor or page.next_cursor == cursor or len(found) >= most:
            break
        cursor = page.next_cursor
    return found[:most]
