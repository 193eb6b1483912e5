"""Webhooks: what is posted to /hooks/NAME and signed is a message, once however often it is delivered.

The reply goes where the settings say: to a chat of another platform, to an address it is posted to, or nowhere, and
then it is kept to be fetched. Nothing of that is in what was posted, so nobody who posts decides where a reply goes.
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

from holdfast import errors, types
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import route_keys, settings
from holdfast.gateway.platforms.http import callbacks, chat_completions, requests, signatures
from holdfast.store import async_db

NAME = "hooks"
DELIVERY = "x-holdfast-delivery"
REPLY = "reply-"
"""How the id of what we post begins; that of what is posted to us never does."""
MOST_UNVERIFIED = 100
"""Bodies that are read at once before anybody knows who sent them."""
READING = 10.0
"""Seconds such a body may take."""
TOO_SLOW = "It came too slowly, while much was being posted. Try again."
POSTED = "Posted to the webhook {name}{event}:"


class Hook(msgspec.Struct, frozen=True):
    """A webhook: its secret, and what the settings say of it."""

    secret: str
    wanted: settings.Hook

    @property
    def url(self) -> str | None:
        """Where the reply is posted to."""
        to = self.wanted.to or ""
        return to if "://" in to else None

    @property
    def place(self) -> tuple[str, str] | None:
        """The platform and the chat that the reply goes to."""
        platform, colon, chat = (self.wanted.to or "").partition(":")
        return (platform, chat) if colon and self.url is None else None

    def check(self, name: str) -> None:
        """That it can be meant; SettingInvalid."""
        if len(self.secret) < signatures.SHORTEST:
            raise errors.SettingInvalid(
                f"gateway.hooks.{name}: the secret in {self.wanted.secret_env} has less than {signatures.SHORTEST} "
                "characters. Make one with `openssl rand -hex 24`."
            )
        if self.url is not None:
            try:
                callbacks.checked(self.url, self.wanted.allow_private)
            except errors.SettingInvalid as error:
                raise errors.SettingInvalid(f"gateway.hooks.{name}.to: {error}") from None
        elif self.wanted.to and (self.place is None or not all(self.place)):
            raise errors.SettingInvalid(f"gateway.hooks.{name}.to: it is PLATFORM:CHAT, or an https address.")


class Hooks:
    """The platform that webhooks come by."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        hooks: Mapping[str, Hook],
        *,
        posting: callbacks.Callbacks | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, hook in hooks.items():
            hook.check(name)
        self._db, self._hooks, self._clock = db, dict(hooks), clock
        self._posting = posting or callbacks.Callbacks()
        self.door: gateway_platform.Door | None = None
        self._receives = asyncio.Event()
        self._reading: dict[asyncio.Timeout, str] = {}
        """The bodies that are being read, the oldest first, and whose they are."""

    # --- the platform ------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return NAME

    @property
    def limit(self) -> int:
        return 1_000_000

    @property
    def mute(self) -> bool:
        """Nobody there answers a question."""
        return True

    async def listening(self) -> None:
        await self._receives.wait()

    async def run(self, door: gateway_platform.Door) -> None:
        self.door = door
        self._receives.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.door = None

    async def send(self, outgoing: types.Outgoing) -> str:
        """Post it where the settings say today, or keep it."""
        hook = self._hooks.get(str(outgoing.address.get("hook")))
        if hook is None:
            raise errors.SendRefused("There is no such hook any more.")
        if hook.url is None:
            return f"kept-{outgoing.id}"
        told = {
            "id": outgoing.inbound_id,
            "hook": outgoing.address["hook"],
            "kind": outgoing.kind,
            "part": outgoing.part,
            "text": outgoing.text,
        }
        body = msgspec.json.encode(told)
        # Whoever is told twice, as nobody knew whether it came, knows it by this.
        delivery = f"{REPLY}{outgoing.address['hook']}-{outgoing.id}"
        signature = signatures.sign(hook.secret, body, self._clock(), delivery)
        headers = {signatures.HEADER: signature, DELIVERY: delivery}
        await self._posting.post(hook.url, headers, body, hook.wanted.allow_private)
        return f"posted-{outgoing.id}"

    # --- requests ----------------------------------------------------------------------------------------

    async def posted(self, request: Request) -> Response:
        """POST /hooks/NAME."""
        name, hook = self._hook(request)
        async with self._unverified(request.client.host if request.client else ""):
            body = await requests.body_of(request)
        known_by = self._checked(hook, request.headers, body)
        posted = await requests.object_of(request)
        if self.door is None:
            raise requests.Refused(503, "The gateway is not ready.", code="not_ready", headers=requests.LATER)
        arrival = await self.door.answered(self._came(name, hook, request, posted, body, known_by))
        if isinstance(arrival, gateway_platform.NotTaken):
            raise requests.not_taken(arrival)
        return requests.json({"id": arrival.id}, 202, {"location": f"/hooks/{name}/{arrival.id}"})

    async def fetched(self, request: Request) -> Response:
        """GET /hooks/NAME/ID, signed as if the id were the body."""
        name, hook = self._hook(request)
        wanted = request.path_params["id"]
        signatures.check(hook.secret, request.headers.get(signatures.HEADER, ""), wanted.encode(), self._clock())
        found = await self._db.mail.inbound(int(wanted)) if wanted.isdigit() and len(wanted) < 18 else None
        if found is None or (found.platform, found.sender) != (NAME, name):
            raise requests.Refused(404, "Nothing was posted under this id.", code="not_found")
        if hook.place is not None or hook.url is not None:
            raise requests.Refused(404, "Replies of this hook go elsewhere.", code="not_kept")
        said = await self._db.mail.replies(found.id) if not found.open else []
        return requests.json({"id": found.id, "outcome": found.outcome, "text": "\n".join(each.text for each in said)})

    @asynccontextmanager
    async def _unverified(self, peer: str) -> AsyncIterator[None]:
        """While a body is read that anybody may have sent: so many at once, so that they do not fill the memory.

        Where there are that many, one makes room: who dawdles keeps nobody out.
        """
        if len(self._reading) >= MOST_UNVERIFIED:
            self._make_room(peer)
        reading = asyncio.timeout(READING)
        try:
            async with reading:
                self._reading[reading] = peer
                yield
        except TimeoutError:
            raise requests.Refused(408, TOO_SLOW, code="too_slow", headers=requests.LATER) from None
        finally:
            self._reading.pop(reading, None)

    def _make_room(self, peer: str) -> None:
        """End what has been read for longest, of whoever has the most, with what is to come."""
        ((crowd, _),) = Counter([*self._reading.values(), peer]).most_common(1)
        oldest = next(each for each, whose in self._reading.items() if whose == crowd)
        del self._reading[oldest]
        if not oldest.expired():
            oldest.reschedule(asyncio.get_running_loop().time())

    def _hook(self, request: Request) -> tuple[str, Hook]:
        name = request.path_params["name"]
        hook = self._hooks.get(name)
        if hook is None:
            raise requests.Refused(404, "There is no such hook.", code="not_found")
        return name, hook

    def _checked(self, hook: Hook, headers: Mapping[str, str], body: bytes) -> str:
        """What a delivery is known by: only what is signed tells one from another. Refused."""
        if hook.wanted.scheme == "github":
            return signatures.check_github(hook.secret, headers.get(signatures.GITHUB, ""), body)
        given, delivery = headers.get(signatures.HEADER, ""), headers.get(DELIVERY, "")
        if delivery.startswith(REPLY):
            # Signed by us with the same secret: a reply that somebody overheard is nothing that was posted.
            raise signatures.refused("That is a reply, and not a delivery.")
        return signatures.check(hook.secret, given, body, self._clock(), delivery)

    def _came(
        self, name: str, hook: Hook, request: Request, posted: dict[str, Any], body: bytes, known_by: str
    ) -> gateway_platform.Came:
        platform, chat = hook.place or (None, "")
        address: dict[str, Any] = {"chat": chat} if platform else {"hook": name}
        return gateway_platform.Came(
            platform=NAME,
            key=f"{quote(name, safe='')}:{known_by}",
            chat=(name,),
            sender=name,
            text=words(name, hook.wanted.prompt, request.headers.get("x-github-event", ""), posted, body),
            address=address,
            home=platform,
            to=f"dm:{route_keys.quoted(chat)}" if platform else "",
        )


def words(name: str, prompt: str, event: str, posted: dict[str, Any], body: bytes) -> str:
    """What was posted, as a message: its `text` where it has one, else all of it. It is data, and no command. Pure."""
    text = posted.get("text")
    if isinstance(text, str) and text.strip():
        said = text
    else:
        plain = event if event.replace("_", "").isalnum() and event.isascii() else ""
        head = POSTED.format(name=name, event=f" ({plain})" if plain else "")
        said = f"{head}\n\n{body.decode()}"
    return chat_completions.plain(f"{prompt}\n\n{said}" if prompt.strip() else said)
