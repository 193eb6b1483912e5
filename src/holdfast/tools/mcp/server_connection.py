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

from holdfast import content_parts, errors, redaction, types
from holdfast.tools import base
from holdfast.tools.mcp import content, inventory, names, schemas, settings, transports

MAX_PAGES, MAX_TOOLS, MAX_PROMPTS = 50, 100, 100
MAX_TIMEOUTS = 20
"""A call ends after so many times its timeout, even if the server reports progress."""
PROGRESS_INTERVAL_SECONDS = 0.1
MAX_GIVEN_NAME = 256
MAX_ERROR = 4_000
MAX_PROMPT = 100_000

# Messages by which the SDK reports the end of a connection. Servers use the same error codes for other errors.
_ENDS = ("Connection closed", "Session terminated", "SSE stream ended", "SSE stream failed")
# The message for a response without a body, which ends only the call.
_STATUS_ONLY = "Server returned an error response"

Report = Callable[[str], None]
"""Report progress to people."""
Answer = TypeVar("Answer", protocol.CallToolResult, protocol.GetPromptResult)

_CALL_ANSWER: TypeAdapter[Any] = TypeAdapter(protocol.CallToolResult | protocol.InputRequiredResult)
_PROMPT_ANSWER: TypeAdapter[Any] = TypeAdapter(protocol.GetPromptResult | protocol.InputRequiredResult)

# Log records of the SDK must not reach the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())


class ServerConnection:
    """A connected server. `on_end` is called when the connection has ended, `on_change` when its tools have changed."""

    def __init__(
        self, config: settings.ServerConfig, folder: str, on_end: Callable[[], None], on_change: Callable[[], None]
    ) -> None:
        self._config, self._folder, self._on_end, self._on_change = config, folder, on_end, on_change
        self._stack = AsyncExitStack()
        self._process: transports.ServerProcess | None = None
        self._secrets = content.SecretFilter(config.given)
        self._status, self._in_session = 0, False
        self._is_over = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(self._build_client(await self._transport(stack)))
            await stack.enter_async_context(self._subscribe())
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stack.__aexit__(kind, error, trace)

    async def _transport(self, stack: AsyncExitStack) -> Any:
        config = self._config
        if config.command is not None:
            env = get_default_environment() | config.env
            cwd = config.cwd or self._folder
            self._process = transports.ServerProcess(config.command, config.args, env, cwd, self._end)
            return self._process.connect()
        if config.sse:
            return sse_client(config.url or "", httpx_client_factory=self._endless_client)
        client = transports.http_client(config.headers, config.timeout, self._note_refusal)
        client = await stack.enter_async_context(client)
        limit = transports.MAX_MESSAGE_BYTES
        return streamable_http_client(config.url or "", http_client=client, max_sse_event_size=limit)

    def _endless_client(self, headers: Any = None, timeout: Any = None, auth: Any = None) -> Any:  # noqa: ARG002
        """Build the HTTP client for the SDK, which does not know our headers and timeouts."""
        return transports.http_client(self._config.headers, self._config.timeout, self._note_refusal, endless=True)

    def _build_client(self, transport: Any) -> Client:
        async def list_roots(context: ClientRequestContext) -> protocol.ListRootsResult:  # noqa: ARG001
            root = {"uri": pathlib.Path(self._folder).as_uri(), "name": "workspace"}
            return protocol.ListRootsResult.model_validate({"roots": [root]})

        async def handle(message: object) -> None:
            if isinstance(message, protocol.ToolListChangedNotification | protocol.PromptListChangedNotification):
                self._on_change()

        # Requests of the server to a model or a person are refused.
        return Client(transport, list_roots_callback=list_roots, message_handler=handle, cache=None)

    @asynccontextmanager
    async def _subscribe(self) -> AsyncIterator[None]:
        """Subscribe to changes, as the newer protocol requires."""

        async def listen() -> None:
            with suppress(MCPError, ListenNotSupportedError, SubscriptionLost, TimeoutError):
                async with self._client.listen(tools_list_changed=True, prompts_list_changed=True) as changes:
                    async for _ in changes:
                        self._on_change()

        listening = asyncio.create_task(listen())
        try:
            yield
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    def _note_refusal(self, status: int, in_session: bool) -> None:
        self._status, self._in_session = status, in_session

    def _end(self) -> None:
        self._is_over = True
        self._on_end()

    # --- listing -------------------------------------------------------------------------------------

    async def fetch_inventory(self) -> inventory.Inventory:
        """Return the usable tools and prompts of the server."""
        session, offers = self._client.session, self._client.server_capabilities
        tools, left_out = dict[str, inventory.ServerTool](), list[str]()
        for tool in await _fetch_pages(session.list_tools, "tools", MAX_TOOLS) if offers.tools else ():
            if self._config.tools is not None and tool.name not in self._config.tools:
                continue
            try:
                spec = self._convert_tool(tool)
                tools[spec.name] = inventory.ServerTool(tool.name, spec)
            except schemas.UnusableTool as reason:
                left_out.append(f"{names.one_line(tool.name, 60)} ({reason})")
        prompts = await _fetch_pages(session.list_prompts, "prompts", MAX_PROMPTS) if offers.prompts else ()
        return inventory.Inventory(
            tuple(tools[name] for name in sorted(tools)),
            tuple(self._convert_prompt(each) for each in prompts if each.name),
            tuple(left_out),
        )

    def _convert_tool(self, tool: protocol.Tool) -> types.ToolSpec:
        if not tool.name or len(tool.name) > MAX_GIVEN_NAME:
            raise schemas.UnusableTool("its name is empty or too long")
        text = names.description(self._config.name, self._secrets.redact(tool.description or tool.title or ""))
        name = names.tool_name(self._config.name, tool.name)
        return types.ToolSpec(name, text, schemas.convert_schema(tool.input_schema))

    def _convert_prompt(self, given: protocol.Prompt) -> inventory.ServerPrompt:
        arguments = tuple((each.name, bool(each.required)) for each in given.arguments or ())
        text = self._secrets.redact(given.description or given.title or "")
        return inventory.ServerPrompt(given.name, names.one_line(text, 200), arguments)

    # --- requests ------------------------------------------------------------------------------------

    async def call(self, tool: str, arguments: base.Arguments, report: Report) -> types.Content:
        """Call a tool. Raise ToolFailed with its error message, or if there is no answer."""
        params = protocol.CallToolRequestParams(name=tool, arguments=arguments)
        result = await self._send(protocol.CallToolRequest(params=params), protocol.CallToolResult, report)
        converted = content.convert_result(result.content, result.structured_content, self._secrets.redact)
        if result.is_error:
            reason = content_parts.text(converted).strip() or "it failed without a message"
            raise errors.ToolFailed(self._secrets.redact_all(f"{self._config.name}: {reason}"))
        return converted

    async def prompt(self, prompt: str, arguments: dict[str, str]) -> str:
        """Return the text of a prompt."""
        params = protocol.GetPromptRequestParams(name=prompt, arguments=arguments)
        request = protocol.GetPromptRequest(params=params)
        result = await self._send(request, protocol.GetPromptResult, lambda _: None)
        texts = []
        for message in result.messages:
            converted = content.convert_result([message.content], None, self._secrets.redact)
            text = content_parts.text(converted).strip()
            texts.append(text if message.role == "user" else f"[assistant] {text}")
        return "\n\n".join(texts)[:MAX_PROMPT]

    async def _send(self, request: Any, kind: type[Answer], report: Report) -> Answer:
        """Send a request and return the answer. On cancellation, the server is notified."""
        answers = _CALL_ANSWER if kind is protocol.CallToolResult else _PROMPT_ANSWER
        seconds = self._config.timeout
        end = asyncio.get_running_loop().time() + MAX_TIMEOUTS * seconds
        try:
            async with asyncio.timeout(seconds) as deadline:
                on_progress = self._report_progress(report, deadline, end)
                # Not session.call_tool: it validates the result by a schema of the server, in unbounded time.
                answer = await self._client.session.send_request(request, answers, progress_callback=on_progress)
        except TimeoutError:
            late = f"was not done within {MAX_TIMEOUTS * seconds:g} s"
            what = late if deadline.when() == end else f"gave no sign of life for {seconds:g} s"
            raise self._failure(f"{what}; the call was given up") from None
        except MCPError as error:
            raise self._failure(self._explain_refusal(error)) from None
        except ValueError:
            raise self._failure("answered with something that is no answer") from None
        if isinstance(answer, protocol.InputRequiredResult):
            raise self._failure("requires further input, which is not supported")
        assert isinstance(answer, kind)
        return answer

    def _report_progress(self, report: Report, deadline: asyncio.Timeout, end: float) -> ProgressFnT:
        loop = asyncio.get_running_loop()
        last = 0.0

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            nonlocal last
            if not deadline.expired():
                deadline.reschedule(min(loop.time() + self._config.timeout, end))
            if loop.time() - last >= PROGRESS_INTERVAL_SECONDS:
                last = loop.time()
                done = f"{progress:g}" if total is None else f"{progress:g} of {total:g}"
                text = names.one_line(self._secrets.redact(message or ""), 200)
                report(f"{self._config.name}: {done} {text}".rstrip())

        return on_progress

    # --- errors --------------------------------------------------------------------------------------

    def _explain_refusal(self, error: MCPError) -> str:
        if transports.TOO_LONG in error.message:
            return transports.TOO_LONG
        in_session, self._in_session = self._in_session, False
        # The protocol requires status 404 for an expired session; many servers send 400.
        if in_session and (self._status == 404 or (self._status == 400 and "session" in error.message.lower())):
            self._end()
            return "does not know us any more, as after a restart of it. The next call connects again"
        if error.message.startswith(_ENDS):
            # For an HTTP server there is no process whose end would be noticed.
            self._end()
        if self._is_over:
            again = "starts it" if self._process else "tries it"
            return f"stopped in the middle of the call. The next call {again} again"
        return f"refused: {names.one_line(self._message(error), MAX_ERROR)}"

    def _message(self, error: MCPError) -> str:
        status = error.message.startswith(_STATUS_ONLY) and self._status
        return f"HTTP status {status}" if status else error.message

    def explain(self, error: BaseException | None) -> str:
        """Return why the server is down. Errors of libraries are only named, because they may quote secrets."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        lines = self._process.last_lines if self._process else []
        reason = self._reason(error) or "".join(lines[-1:]) or "the connection ended"
        return self._sanitize(": ".join([reason, *lines[:-1]]))

    def _reason(self, error: BaseException | None) -> str:
        match error:
            case None:
                return ""
            case errors.HoldfastError():
                return str(error).rstrip(".")
            case MCPError():
                return "" if error.message.startswith(_ENDS) else f"it refused: {self._message(error)}"
            case ValidationError():
                place = ".".join(str(step) for step in error.errors(include_input=False)[0]["loc"])
                return f"what it sends violates the protocol, at {place}"
            case _:
                return f"the connection failed ({type(error).__name__})"

    def _failure(self, what: str) -> errors.ToolFailed:
        return errors.ToolFailed(self._sanitize(f"The MCP server {self._config.name} {what}."))

    def _sanitize(self, text: str) -> str:
        return redaction.redact(names.one_line(self._secrets.redact_all(text), MAX_ERROR + 200))


async def _fetch_pages(fetch: Callable[..., Awaitable[Any]], what: str, limit: int) -> list[Any]:
    """Return all items, page by page, up to a limit."""
    found: list[Any] = []
    cursor = None
    for _ in range(MAX_PAGES):
        page = await fetch(params=protocol.PaginatedRequestParams(cursor=cursor))
        found += getattr(page, what)
        if not page.next_cursor or page.next_cursor == cursor or len(found) >= limit:
            break
        cursor = page.next_cursor
    return found[:limit]
