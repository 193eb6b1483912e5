"""The router: one task for each chat with open messages, in this process or in another one.

It learns of new messages from the inbound handler, from notifications of the store, and by polling. A chat
that another process works on is left to it; when that process dies, its lease expires and this one continues.
"""

from __future__ import annotations

import asyncio
import logging
from time import monotonic

from holdfast import errors
from holdfast.gateway import active_chat, gateway_context, notices, routes, worker
from holdfast.store import notifications

logger = logging.getLogger("holdfast.gateway")

MAX_ROUTES = 1_000
CANCEL_SECONDS = 1.0
"""Seconds that abandoned turns may take to end."""
MAX_PAUSE = 60.0
"""The most seconds before a chat that failed is tried again."""


class Router:
    """Processes chats until it is stopped. `run` is called once."""

    def __init__(self, context: gateway_context.GatewayContext) -> None:
        self._context = context
        self._worker = worker.Worker(context)
        self._notices = notices.Notices(context)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._chats: dict[str, active_chat.ActiveChat] = {}
        self._paused: dict[str, float] = {}
        self._woken = asyncio.Event()
        context.runtimes.on_open = self._notices.attach

    @property
    def active(self) -> int:
        """The number of chats that are processed in this process, or wait for that."""
        return len(self._tasks)

    def notify(self, route: str) -> None:
        """A message arrived on this route."""
        if route in self._chats:
            self._chats[route].notify()
        elif route not in self._paused:
            self._start(route)

    def wake(self) -> None:
        """Poll the store now."""
        self._woken.set()

    async def run(self) -> None:
        """Start chats until stopped or cancelled. Errors of the store are retried."""
        with self._context.db.notifications.listen(self._on_hint):
            while not self._worker.stopping:
                self._woken.clear()
                try:
                    await self._poll()
                except errors.HoldfastError as error:
                    logger.warning("could not read the inbound messages: %s", error)
                await gateway_context.wait_event(self._woken, self._context.settings.poll)

    async def stop(self, grace: float = 0.0) -> None:
        """Begin nothing more. Running turns may end within `grace` seconds; other processes continue the rest."""
        self._worker.stopping = True
        self.wake()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=grace)
        if self._tasks:
            logger.info("%d chats are left in the middle of a turn; another process continues them", self.active)
            self._context.runtimes.abandon()
            await asyncio.wait(self._tasks.values(), timeout=CANCEL_SECONDS)
        for task in (left := list(self._tasks.values())):
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def _poll(self) -> None:
        now = monotonic()
        self._paused = {route: until for route, until in self._paused.items() if until > now}
        for route in await self._context.db.mail.open_routes(MAX_ROUTES):
            if route not in self._chats:
                self._start(route)
        for route, conversation_id in await self._notices.waiting():
            if not self._is_served(route):
                continue
            chat = self._chats.get(route) or self._start(route)
            if chat is not None and conversation_id not in chat.notices:
                chat.notices.add(conversation_id)
                chat.wake()

    def _is_served(self, route: str) -> bool:
        return routes.has_profile(self._context.settings.profile, route)

    def _start(self, route: str) -> active_chat.ActiveChat | None:
        if self._worker.stopping or route in self._paused or not self._is_served(route):
            return None
        chat = self._chats[route] = active_chat.ActiveChat(route)
        task = self._tasks[route] = asyncio.create_task(self._process(chat))
        task.add_done_callback(lambda _: self._on_done(chat))
        return chat

    def _on_done(self, chat: active_chat.ActiveChat) -> None:
        del self._tasks[chat.route], self._chats[chat.route]
        if chat.has_news:
            self.notify(chat.route)

    async def _process(self, chat: active_chat.ActiveChat) -> None:
        """Process one chat. The border of inbound messages: an error is logged and affects no other chat."""
        try:
            await self._worker.process(chat)
        except errors.Busy:
            chat.has_news = False  # The process that works on the chat finds the message.
        except errors.LeaseLost:
            logger.info("another process continues %s", chat.route)
        except (worker.RetryLater, errors.HoldfastError) as error:
            self._pause(chat)
            logger.warning("%s will be retried: %s", chat.route, error)
        except Exception:
            self._pause(chat)
            logger.exception("%s could not be processed", chat.route)

    def _pause(self, chat: active_chat.ActiveChat) -> None:
        seconds = min(self._context.settings.retry * 2 ** min(chat.attempts, 10), MAX_PAUSE)
        self._paused[chat.route] = monotonic() + seconds
        asyncio.get_running_loop().call_later(seconds, self.wake)

    def _on_hint(self, hint: notifications.Hint) -> None:
        """Handle a notification of the store. A message received by another process is that process's to start."""
        if hint.kind == "arrived":
            if hint.conversation_id in self._chats:
                self.notify(hint.conversation_id)
        elif hint.kind in ("came", "lost"):
            self.wake()
