"""HTTP: a platform whose chats are requests. OpenAI's interface, webhooks, health and metrics on one port.

It is two things: a platform, which brings requests to the door and answers them, and a server, which has the
connections. The server is opened around the gateway (`async with http.serving()`), so that a gateway that stops still
answers what it had taken.
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

from holdfast import errors, events, types
from holdfast.gateway import metrics, platform, settings
from holdfast.gateway.platforms.http import chat_completions, chat_requests, openapi, requests, server, webhooks
from holdfast.store import async_db

logger = logging.getLogger("holdfast.gateway")

MODEL = "holdfast"
"""What the agent is called as a model."""
LOOKS = 2.0
"""Seconds the store may take to say that it is there."""


class Http:
    """The platform. `tokens` are whose token each is; `hooks` is the platform that webhooks come by; `attachments` are
    the kilobytes that the files of one message may have."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        wanted: settings.Http | None = None,
        *,
        tokens: Mapping[str, str] | None = None,
        models: Sequence[str] = (MODEL,),
        hooks: webhooks.Hooks | None = None,
        attachments: int = settings.Limits().attachments,
        meter: metrics.Meter | None = None,
        profile: str = "main",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._db, self._wanted = db, wanted or settings.Http()
        self.tokens = requests.Tokens(tokens or {}, self._wanted.origins)
        self.hooks, self.meter = hooks, meter or metrics.Meter()
        self._chats = chat_requests.Chats(
            db,
            models,
            header=self._wanted.conversation_header,
            side_requests=self._wanted.side_requests,
            profile=profile,
            clock=clock,
        )
        self._listening: socket.socket | None = None
        self._receives = asyncio.Event()
        self._stop_listening: Callable[[], None] = lambda: None
        self._gate = self._made(attachments)
        self.app = self._opened_to_pages(self._gate)

    # --- the platform ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return chat_requests.NAME

    @property
    def limit(self) -> int:
        return 1_000_000

    @property
    def mute(self) -> bool:
        """A program that asked waits for an answer, and gives none."""
        return True

    @property
    def ready(self) -> bool:
        """Whether what comes in is taken."""
        return self._chats.door is not None

    @property
    def waiting(self) -> int:
        """How many requests wait for their answers."""
        return self._chats.waiting

    async def listening(self) -> None:
        await self._receives.wait()

    async def run(self, door: platform.Door) -> None:
        self._chats.door = door
        self._receives.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._chats.door = None
            # Who comes now goes to whoever else listens here; who was taken is still answered.
            self._stop_listening()

    async def send(self, outgoing: types.Outgoing) -> str:
        return await self._chats.send(outgoing)

    @property
    def alone(self) -> bool:
        return True

    def owns(self, outgoing: types.Outgoing) -> bool:
        return self._chats.owns(outgoing)

    def heard(self, arrival: types.InboundMessage, event: events.AnyEvent) -> None:
        self._chats.heard(arrival, event)

    # --- the server --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Listen to the end of the block; gives the address. Open it before the gateway. SettingInvalid."""
        if self._wanted.hosts and not self.tokens:
            raise errors.SettingInvalid(
                "gateway.http.hosts: a proxy makes the agent reachable for others, and no token is set. "
                'Set one: [gateway.http.tokens], ann = "ANN_TOKEN".'
            )
        self._listening = server.bound(self._wanted.host, self._wanted.port, bool(self.tokens), self._wanted.share)
        # Where a name leads is known only now.
        bound = str(self._listening.getsockname()[0])
        self._gate.hosts = requests.served(self._wanted.host, bound, self._wanted.hosts)
        async with server.serving(self.app, self._listening) as self._stop_listening:
            try:
                yield self.address
            finally:
                self.let_go()

    def let_go(self) -> None:
        """Tell everybody who still waits that this process ends."""
        self._chats.stop()

    @property
    def address(self) -> str:
        """Where it is reached, once it listens."""
        host, bound = self._wanted.host, self._wanted.port
        if self._listening is not None:
            bound = self._listening.getsockname()[1]
        return f"http://[{host}]:{bound}" if ":" in host else f"http://{host}:{bound}"

    def _made(self, attachments: int) -> requests.Gate:
        routes = [
            Route("/health", self._health, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/openapi.json", self._openapi, methods=["GET"]),
            Route("/v1/models", self._of_owner(self._models), methods=["GET"]),
            Route("/v1/models/{name}", self._of_owner(self._model), methods=["GET"]),
            Route(requests.CHAT, self._of_owner(self._chats.complete), methods=["POST"]),
        ]
        if self.hooks is not None:
            routes += [
                Route("/hooks/{name}", self.hooks.posted, methods=["POST"]),
                Route("/hooks/{name}/{id}", self.hooks.fetched, methods=["GET"]),
            ]
        inner = Router(routes, redirect_slashes=False)
        longest, longest_chat = self._wanted.body_bytes(attachments)
        return requests.Gate(
            inner,
            longest=longest,
            longest_chat=longest_chat,
            hosts=requests.served(self._wanted.host, self._wanted.host, self._wanted.hosts),
            conversation_header=self._wanted.conversation_header,
        )

    def _opened_to_pages(self, app: ASGIApp) -> ASGIApp:
        """Return the application as the web pages of `origins` may use it."""
        if not self._wanted.origins:
            return app
        return CORSMiddleware(
            app,
            allow_origins=self._wanted.origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[self._wanted.conversation_header, "X-Holdfast-Arrival", "Retry-After"],
        )

    def _of_owner(
        self, answer: Callable[[Request, str], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answered(request: Request) -> Response:
            return await answer(request, self.tokens.of(request))

        return answered

    # --- what it answers by itself -----------------------------------------------------------------------

    async def _models(self, _request: Request, _owner: str) -> Response:
        return requests.json(chat_completions.models(self._chats.models))

    async def _model(self, request: Request, _owner: str) -> Response:
        name = request.path_params["name"]
        if name not in self._chats.models:
            raise requests.Refused(404, "There is no such model.", param="model", code="model_not_found")
        return requests.json(chat_completions.model(name))

    async def _health(self, _request: Request) -> Response:
        """Whether it lives, whether it takes what comes in, and whether its store is there; nothing else."""
        store = await self._facts() is not None
        well = store and self.ready
        body = {"status": "ok" if well else "unready", "live": True, "ready": self.ready, "store": store}
        return requests.json(body, 200 if well else 503)

    async def _metrics(self, request: Request) -> Response:
        self.tokens.of(request)
        return Response(self.meter.text(await self._facts() or {}), media_type=metrics.TYPE)

    async def _openapi(self, _request: Request) -> Response:
        return requests.json(
            openapi.document(self._chats.models, self.hooks is not None, self._wanted.conversation_header)
        )

    async def _facts(self) -> dict[str, int] | None:
        """What waits in the store; None where it does not answer."""
        try:
            async with asyncio.timeout(LOOKS):
                return await self._db.mail.counts()
        except (errors.HoldfastError, TimeoutError) as error:
            logger.warning("the store does not answer: %s", error)
            return None
