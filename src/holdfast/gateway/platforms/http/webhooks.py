"""Webhooks: a signed delivery to /hooks/NAME is a message, stored once however often it is delivered.

The settings determine where the reply goes: to a chat of another platform, to an https address, or nowhere, and then it
is kept to be fetched. The delivery cannot influence that.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast import errors
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import routes, settings
from holdfast.gateway.platforms.http import callbacks, chat_completions, requests, signatures
from holdfast.store import async_db

NAME = "hooks"
REPLY = "reply-"
"""The prefix of the ids of our deliveries; deliveries to us must not have it."""
MAX_UNVERIFIED = 100
"""How many bodies are read concurrently before their signature is known."""
READ_SECONDS = 10.0
TOO_SLOW = "The body arrived too slowly. Try again."
HEADING = "Posted to the webhook {name}{event}:"


class HookConfig(msgspec.Struct, frozen=True):
    """A webhook: its secret and its settings."""

    secret: str
    settings: settings.Hook

    @property
    def url(self) -> str | None:
        """The address that replies are posted to."""
        to = self.settings.to or ""
        return to if "://" in to else None

    @property
    def chat(self) -> tuple[str, str] | None:
        """The platform and the chat that replies are sent to."""
        platform, colon, chat = (self.settings.to or "").partition(":")
        return (platform, chat) if colon and self.url is None else None

    def check(self, name: str) -> None:
        """Raise SettingInvalid if the hook cannot work."""
        try:
            if len(signatures.secret_key(self.secret)) < signatures.MIN_SECRET:
                raise ValueError(f"a secret must have at least {signatures.MIN_SECRET} bytes")
        except ValueError as error:
            raise errors.SettingInvalid(
                f"gateway.hooks.{name}: invalid secret in {self.settings.secret_env}: {error}. "
                "Create one with `openssl rand -hex 24`."
            ) from None
        if self.url is not None:
            try:
                callbacks.check_url(self.url, self.settings.allow_private)
            except errors.SettingInvalid as error:
                raise errors.SettingInvalid(f"gateway.hooks.{name}.to: {error}") from None
        elif self.settings.to and (self.chat is None or not all(self.chat)):
            raise errors.SettingInvalid(f"gateway.hooks.{name}.to: must be PLATFORM:CHAT or an https address.")


class Webhooks:
    """The platform of webhooks."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        hooks: Mapping[str, HookConfig],
        *,
        poster: callbacks.CallbackPoster | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, hook in hooks.items():
            hook.check(name)
        self._db, self._hooks, self._clock = db, dict(hooks), clock
        self._poster = poster or callbacks.CallbackPoster()
        self.handler: gateway_platform.Handler | None = None
        self._ready = asyncio.Event()
        self._reading: dict[asyncio.Timeout, str] = {}
        """The unverified bodies that are being read, the oldest first, and the hosts of their clients."""

    # --- the platform ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return NAME

    @property
    def limit(self) -> int:
        return 1_000_000

    @property
    def non_interactive(self) -> bool:
        return True

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def run(self, handler: gateway_platform.Handler) -> None:
        self.handler = handler
        self._ready.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.handler = None

    async def send(self, delivery: gateway_platform.Delivery) -> str:
        """Post a reply to the address of the current settings, or keep it."""
        name = str(delivery.address.get("hook"))
        hook = self._hooks.get(name)
        if hook is None:
            raise errors.SendRefused("The hook no longer exists.")
        if hook.url is None:
            return f"kept-{delivery.id}"
        reply = {
            "id": delivery.inbound_id,
            "hook": name,
            "kind": delivery.kind,
            "part": delivery.part,
            "text": delivery.text,
        }
        body = msgspec.json.encode(reply)
        # A receiver recognises a repeated delivery by its id.
        headers = signatures.sign(hook.secret, f"{REPLY}{name}-{delivery.id}", body, self._clock())
        await self._poster.post(hook.url, headers, body, hook.settings.allow_private)
        return f"posted-{delivery.id}"

    # --- requests ----------------------------------------------------------------------------------------

    async def post(self, request: Request) -> Response:
        """POST /hooks/NAME."""
        name, hook = self._hook(request)
        async with self._limit_unverified(request.client.host if request.client else ""):
            body = await requests.read_body(request)
        delivery = self._verify(hook, request.headers, body)
        posted = await requests.read_object(request)
        handler = requests.check_ready(self.handler)
        text = message_text(name, hook.settings.prompt, request.headers.get("x-github-event", ""), posted, body)
        stored = await handler.submit(_incoming(name, hook, delivery, text))
        if isinstance(stored, gateway_platform.AdmissionResult):
            raise requests.refuse_rejected(stored)
        return requests.json_response({"id": stored.id}, 202, {"location": f"/hooks/{name}/{stored.id}"})

    async def fetch(self, request: Request) -> Response:
        """GET /hooks/NAME/ID, signed with the id as the body."""
        name, hook = self._hook(request)
        wanted = request.path_params["id"]
        signatures.verify(hook.secret, request.headers, wanted.encode(), self._clock())
        found = await self._db.mail.inbound(int(wanted)) if wanted.isdigit() and len(wanted) < 18 else None
        if found is None or (found.platform, found.sender) != (NAME, name):
            raise requests.HttpError(404, "No delivery has this id.", code="not_found")
        if hook.chat is not None or hook.url is not None:
            raise requests.HttpError(404, "The replies of this hook are sent elsewhere.", code="not_kept")
        replies = await self._db.mail.replies(found.id) if not found.open else []
        text = "\n".join(each.text for each in replies)
        return requests.json_response({"id": found.id, "outcome": found.outcome, "text": text})

    @asynccontextmanager
    async def _limit_unverified(self, client: str) -> AsyncIterator[None]:
        """Limit the number of unverified bodies in memory; a slow client cannot block others."""
        if len(self._reading) >= MAX_UNVERIFIED:
            self._cancel_oldest(client)
        reading = asyncio.timeout(READ_SECONDS)
        try:
            async with reading:
                self._reading[reading] = client
                yield
        except TimeoutError:
            raise requests.HttpError(408, TOO_SLOW, code="too_slow", headers=requests.RETRY_ELSEWHERE) from None
        finally:
            self._reading.pop(reading, None)

    def _cancel_oldest(self, client: str) -> None:
        """Cancel the oldest read of the client that has the most, counting the new one."""
        ((busiest, _),) = Counter([*self._reading.values(), client]).most_common(1)
        oldest = next(each for each, owner in self._reading.items() if owner == busiest)
        del self._reading[oldest]
        if not oldest.expired():
            oldest.reschedule(asyncio.get_running_loop().time())

    def _hook(self, request: Request) -> tuple[str, HookConfig]:
        name = request.path_params["name"]
        hook = self._hooks.get(name)
        if hook is None:
            raise requests.HttpError(404, "No such hook.", code="not_found")
        return name, hook

    def _verify(self, hook: HookConfig, headers: Mapping[str, str], body: bytes) -> str:
        """Verify a delivery and return its id. Raises HttpError."""
        if hook.settings.scheme == "github":
            return signatures.verify_github(hook.secret, headers, body)
        if headers.get(signatures.ID, "").startswith(REPLY):
            # Signed by us with the same secret: a captured reply must not become a message.
            raise signatures.refuse("This is a reply of the gateway, not a delivery.")
        return signatures.verify(hook.secret, headers, body, self._clock())


def _incoming(name: str, hook: HookConfig, delivery: str, text: str) -> gateway_platform.Incoming:
    platform, chat = hook.chat or (None, "")
    address: dict[str, Any] = {"chat": chat} if platform else {"hook": name}
    return gateway_platform.Incoming(
        platform=NAME,
        key=f"{quote(name, safe='')}:{delivery}",
        chat=(name,),
        sender=name,
        text=text,
        address=address,
        home=platform,
        home_chat=f"dm:{routes.quote_part(chat)}" if platform else "",
    )


def message_text(name: str, prompt: str, event: str, posted: dict[str, Any], body: bytes) -> str:
    """Return the message of a delivery: its field `text`, or the whole body. It is never a command. Pure."""
    text = posted.get("text")
    if not isinstance(text, str) or not text.strip():
        event = event if event.replace("_", "").isalnum() and event.isascii() else ""
        heading = HEADING.format(name=name, event=f" ({event})" if event else "")
        text = f"{heading}\n\n{body.decode()}"
    return chat_completions.escape_command(f"{prompt}\n\n{text}" if prompt.strip() else text)
