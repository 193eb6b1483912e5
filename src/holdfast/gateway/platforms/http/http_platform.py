"""The HTTP platform: the OpenAI-compatible API, webhooks, health and metrics on one port.

It is a platform, whose chats are requests, and a server, which has the connections. The server is opened around the
gateway (`async with http.serve()`), so that a gateway that stops still answers the requests it accepted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from holdfast import errors
from holdfast.gateway import metrics, platform, settings
from holdfast.gateway.platforms.http import chat_completions, chat_requests, openapi, requests, server, webhooks
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

MODEL = "holdfast"
"""The model name of the agent."""
HEALTH_SECONDS = 2.0
"""How long the store may take to answer a health check."""


class HttpPlatform(chat_requests.ChatRequests):
    """The platform. `tokens` maps tokens to owners; `attachments` is the limit of files per message in kilobytes."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        wanted: settings.Http | None = None,
        *,
        tokens: Mapping[str, str] | None = None,
        models: Sequence[str] = (MODEL,),
        hooks: webhooks.Webhooks | None = None,
        attachments: int = settings.GatewayLimits().attachments,
        meter: metrics.GatewayMetrics | None = None,
        profile: str = "main",
        clock: Callable[[], float] = time.time,
        poll_seconds: float = 1.0,
    ) -> None:
        self._settings = wanted or settings.Http()
        super().__init__(
            db,
            models,
            header=self._settings.conversation_header,
            side_requests=self._settings.side_requests,
            profile=profile,
            clock=clock,
            poll_seconds=poll_seconds,
        )
        self.tokens = requests.Tokens(tokens or {}, self._settings.origins)
        self.hooks, self.metrics = hooks, meter or metrics.GatewayMetrics()
        self._socket: socket.socket | None = None
        self._ready = asyncio.Event()
        self._stop_listening: Callable[[], None] = lambda: None
        max_body, max_chat_body = self._settings.body_bytes(attachments)
        self._filter = requests.RequestFilter(
            self._router(),
            max_body=max_body,
            max_chat_body=max_chat_body,
            hosts=requests.served_hosts(self._settings.host, self._settings.host, self._settings.hosts),
        )
        self.app = self._with_cors(self._filter)

    # --- the platform ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return chat_requests.NAME

    @property
    def limit(self) -> int:
        return 1_000_000

    @property
    def non_interactive(self) -> bool:
        return True

    @property
    def exclusive(self) -> bool:
        return True

    @property
    def is_ready(self) -> bool:
        return self.handler is not None

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def run(self, handler: platform.Handler) -> None:
        self.handler = handler
        self._ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.handler = None
            # New connections go to another gateway that shares the port; accepted requests are still answered.
            self._stop_listening()

    # --- the server --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Listen until the end of the block, and yield the address. Raises SettingInvalid."""
        wanted = self._settings
        if wanted.hosts and not self.tokens:
            raise errors.SettingInvalid(
                "gateway.http.hosts: a proxy makes the agent reachable for other machines, and no token is set. "
                'Set one: [gateway.http.tokens], ann = "ANN_TOKEN".'
            )
        self._socket = server.bind(wanted.host, wanted.port, bool(self.tokens), wanted.share)
        # The address of a host name is only known now.
        bound = str(self._socket.getsockname()[0])
        self._filter.hosts = requests.served_hosts(wanted.host, bound, wanted.hosts)
        async with server.serve(self.app, self._socket) as self._stop_listening:
            try:
                yield self.address
            finally:
                self.stop_waiting()

    @property
    def address(self) -> str:
        """The address of the server, once it listens."""
        host, port = self._settings.host, self._settings.port
        if self._socket is not None:
            port = self._socket.getsockname()[1]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def _router(self) -> Router:
        routes = [
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/v1/models", self._authenticated(self._models), methods=["GET"]),
            Route("/v1/models/{name}", self._authenticated(self._model), methods=["GET"]),
            Route(requests.CHAT, self._authenticated(self.complete), methods=["POST"]),
        ]
        if self.hooks is not None:
            routes += [
                Route("/hooks/{name}", self.hooks.post, methods=["POST"]),
                Route("/hooks/{name}/{id}", self.hooks.fetch, methods=["GET"]),
            ]
        return Router(routes, redirect_slashes=False)

    def _with_cors(self, app: ASGIApp) -> ASGIApp:
        """Allow the web pages of `origins` to use the application."""
        if not self._settings.origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=self._settings.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[self._settings.conversation_header, "X-Holdfast-Arrival", "Retry-After"],
        )

    def _authenticated(
        self, handle: Callable[[Request, str], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def authenticate(request: Request) -> Response:
            return await handle(request, self.tokens.authenticate(request))

        return authenticate

    # --- other requests ----------------------------------------------------------------------------------

    async def _models(self, _request: Request, _owner: str) -> Response:
        return requests.json_response(chat_completions.model_list(self.models))

    async def _model(self, request: Request, _owner: str) -> Response:
        name = request.path_params["name"]
        if name not in self.models:
            raise requests.HttpError(404, "No such model.", param="model", code="model_not_found")
        return requests.json_response(chat_completions.model(name))

    async def _health(self, _request: Request) -> Response:
        """Report whether the gateway is ready and its store answers, and nothing else."""
        store = await self._counts() is not None
        is_well = store and self.is_ready
        body = {"status": "ok" if is_well else "unready", "live": True, "ready": self.is_ready, "store": store}
        return requests.json_response(body, 200 if is_well else 503)

    async def _metrics(self, request: Request) -> Response:
        self.tokens.authenticate(request)
        return Response(self.metrics.render(await self._counts() or {}), media_type=metrics.CONTENT_TYPE)

    async def _openapi(self, _request: Request) -> Response:
        return requests.json_response(
            openapi.document(self.models, self.hooks is not None, self._settings.conversation_header)
        )

    async def _counts(self) -> dict[str, int] | None:
        """Return the queue lengths of the store; None if it does not answer."""
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                return await self._db.mail.counts()
        except (errors.HoldfastError, TimeoutError) as error:
            logger.warning("the store does not answer: %s", error)
            return None
