"""Chats over HTTP: a request comes in like anything else, and its answer is read from the store.

A connection is only somebody who waits. If it goes away the turn goes on, and what became of it is recorded; whoever
asks again under the same Idempotency-Key is given the same, in whichever process.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast import errors, events, parts, types
from holdfast.gateway import keys, openai, pictures, port, replies, sse, wire
from holdfast.store import aio, bodies, holders, state

NAME = "http"
CONVERSATION, REPEAT = "x-holdfast-conversation", "idempotency-key"
USER = "user:"
"""How the name of a conversation begins that the field `user` chose."""
LEFT = 600.0
"""Seconds after which what nobody fetched is anybody's to give up: its process may be on a host that is gone."""
REMEMBERED = 2_000
GONE = "The client went away before it was answered; the answer is in the conversation."
NOT_ASKED = "A program is told the answer to its request, and nothing else."
STOPS = "The gateway stops. Your message is kept and worked on; ask again with the same Idempotency-Key."
_RETRY_NOT = {"x-should-retry": "false"}
# What became of a request that has no answer, as it is told.
_REFUSALS = {
    "failed": (502, "turn_failed"),
    "gave_up": (500, "gave_up"),
    "interrupted": (409, "interrupted"),
    "dropped": (409, "dropped"),
    "deleted": (410, "deleted"),
}


Work = Callable[[Scope, Receive, Send], Awaitable[None]]
"""Makes a response while its client waits."""


class Place(NamedTuple):
    """The chat that a request belongs to, by the name its client knows it by."""

    name: str
    chat: tuple[str, ...]
    must_be: bool
    """Whether it has to be there already."""


class Waiting(Response):
    """A response that is made while the client waits; given up when the client goes away."""

    def __init__(self, work: Work, done: Callable[[], None]) -> None:
        super().__init__()
        self._work, self._done = work, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._work(scope, receive, send))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait([work, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (work, gone):
                each.cancel()
            await asyncio.wait([work, gone])
            self._done()
        if not work.cancelled():
            work.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Chats:
    """The requests that wait in this process, and their answers."""

    def __init__(
        self,
        db: aio.AsyncSessionDB,
        models: Sequence[str],
        *,
        profile: str = "main",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._db, self.models, self._profile, self._clock = db, tuple(models), profile, clock
        self.door: port.Door | None = None
        self._process = holders.encode(holders.this_process(None))
        self._heard: dict[str, sse.Overheard] = {}
        self._written: OrderedDict[str, None] = OrderedDict()
        """Keys of what was answered lately: an answer of several parts is told as one."""

    # --- the platform's side -----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._heard)

    def heard(self, arrival: types.Arrival, event: events.AnyEvent) -> None:
        if (listening := self._heard.get(arrival.key)) is not None:
            listening.hear(event)

    def owns(self, outgoing: types.Outgoing) -> bool:
        """Of a connection of this process; or of a process that is no more, so that it does not wait for ever."""
        process = outgoing.address.get("process")
        if process in (self._process, None) or outgoing.address.get("key") in self._heard:
            return True
        return outgoing.at < self._clock() - LEFT or holders.decode(str(process)).is_dead()

    async def send(self, outgoing: types.Outgoing) -> str:
        """Have the connection read it, and wait until that has given it to the client."""
        key, name = str(outgoing.address.get("key")), f"{NAME}-{outgoing.id}"
        if key in self._written and outgoing.arrival is not None:
            return name
        listening = self._heard.get(key)
        if listening is None:
            raise errors.SendRefused(GONE)
        if outgoing.arrival is None:
            raise errors.SendRefused(NOT_ASKED)
        listening.sent = True
        listening.wake()
        ends = [asyncio.ensure_future(each.wait()) for each in (listening.written, listening.gone)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in ends:
                each.cancel()
        if not listening.written.is_set():
            raise errors.SendRefused(GONE)
        return name

    def stop(self) -> None:
        """Let everybody go who still waits."""
        for listening in self._heard.values():
            listening.stopped = True
            listening.wake()

    def _join(self, key: str) -> sse.Overheard:
        """Begin to listen, before anything can be heard."""
        listening = self._heard.setdefault(key, sse.Overheard())
        listening.readers += 1
        return listening

    def _leave(self, key: str) -> None:
        listening = self._heard[key]
        listening.readers -= 1
        if not listening.readers:
            del self._heard[key]
            listening.gone.set()

    def _answered(self, key: str, listening: sse.Overheard) -> None:
        self._written[key] = None
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
        listening.written.set()

    # --- a request ---------------------------------------------------------------------------------------

    async def complete(self, request: Request, owner: str) -> Response:
        """POST /v1/chat/completions."""
        asked = openai.read(await wire.object_of(request), self.models)
        if self.door is None:
            raise wire.Refused(503, "The gateway is not ready.", code="not_ready", headers=wire.LATER)
        named = _named(request.headers.get(CONVERSATION))
        repeat = wire.id_of(request.headers.get(REPEAT), "Idempotency-Key")
        key = _key(owner, repeat) if repeat else bodies.mint_uid()
        digest = _digest(msgspec.json.encode([named, asked.user, asked.model, asked.before, asked.now]))
        listening = self._join(key)
        try:
            arrival = await self._db.arrival_by_key(NAME, key) if repeat else None
            if arrival is None:
                place = self._place(owner, named, asked, repeat)
                arrival = await self._arrive(self.door, owner, asked, place, key, digest)
            _check_same(arrival, digest)
        except BaseException:
            self._leave(key)
            raise
        work = self._stream if asked.stream else self._whole
        return Waiting(work(arrival, asked, listening), lambda: self._leave(key))

    def _place(self, owner: str, named: str | None, asked: openai.Asked, repeat: str | None) -> Place:
        user = asked.user if named is None else None
        if named is not None and named.startswith(USER):
            user = unquote(named.removeprefix(USER)) or None
        if user is not None:
            return Place(f"{USER}{quote(user, safe='')}", (owner, "user", user), False)
        if named is not None:
            return Place(named, (owner, named), True)
        # The same request again is one for the same chat.
        fresh = f"chat-{_key(owner, repeat)}" if repeat else state.mint_session_id(self._clock())
        return Place(fresh, (owner, fresh), False)

    async def _arrive(
        self, door: port.Door, owner: str, asked: openai.Asked, place: Place, key: str, digest: str
    ) -> types.Arrival:
        came = port.Came(
            platform=NAME,
            key=key,
            chat=place.chat,
            sender=owner,
            text=openai.words(asked.now),
            attachments=asked.now.images,
            address={"process": self._process, "key": key, "digest": digest, "name": place.name},
        )
        route = keys.route(self._profile, came)
        if (place.must_be or asked.before) and not await self._has_begun(route):
            # Who is not let in writes nothing, also not what was said before.
            if (refused := await door.refused(came)) is not None:
                raise wire.not_taken(refused)
            if place.must_be:
                await self._bind(route, owner, place.name)
            else:
                await self._write_before(route, owner, asked.before)
        arrival = await door.answered(came)
        if isinstance(arrival, port.NotTaken):
            raise wire.not_taken(arrival)
        return arrival

    async def _has_begun(self, route: str) -> bool:
        """Whether a chat is there."""
        if (await self._db.route(route)).conversation_id is not None:
            return True
        return bool(await self._db.open_arrivals(route, 1))

    async def _bind(self, route: str, owner: str, name: str) -> None:
        """One's own conversations are chats by their ids; those of others are not there. Refused."""
        try:
            version = (await self._db.route(route)).version
            if (await self._db.conversation(name)).owner == _owner(owner):
                await self._db.bind_route(route, name, version=version)
                return
        except errors.RouteMoved:
            return
        except (errors.NoSuchSession, errors.IdInvalid):
            pass
        raise wire.Refused(
            404, "There is no such conversation.", param="X-Holdfast-Conversation", code="conversation_not_found"
        )

    async def _write_before(self, route: str, owner: str, before: Sequence[openai.Said]) -> None:
        """What was said before, as the beginning of the conversation; once, whoever else does the same now."""
        digests = [
            [(await self._db.put_blob(image.data, image.media_type)).digest for image in said.images] for said in before
        ]
        create = types.NewConversation(source=NAME, owner=_owner(owner), route=route)
        try:
            await self._db.append_messages(
                state.mint_session_id(self._clock()), openai.written(before, digests), create=create
            )
        except errors.RouteMoved:
            return

    # --- the answer --------------------------------------------------------------------------------------

    def _whole(self, arrival: types.Arrival, asked: openai.Asked, listening: sse.Overheard) -> Work:
        async def work(scope: Scope, receive: Receive, send: Send) -> None:
            headers, settled = _headers(arrival), None
            try:
                settled = await self._settled(arrival, listening, _nothing)
                answered = await self._answer(settled, asked.model)
                response = wire.json(openai.completion(answered), headers=headers)
            except (wire.Refused, errors.HoldfastError) as error:
                refused = wire.told(error)
                refused.headers.update(headers)
                response = refused.response()
            await response(scope, receive, send)
            if settled is not None:
                self._answered(arrival.key, listening)

        return work

    def _stream(self, arrival: types.Arrival, asked: openai.Asked, listening: sse.Overheard) -> Work:
        async def work(_scope: Scope, _receive: Receive, send: Send) -> None:
            writing = Writing(send, listening, _blank(arrival, asked.model), asked.usage)
            await writing.begin(_headers(arrival))
            settled = None
            try:
                settled = await self._settled(arrival, listening, writing.go_on)
                await writing.end(await self._answer(settled, asked.model))
            except (wire.Refused, errors.HoldfastError) as error:
                await writing.fail(wire.told(error))
            if settled is not None:
                self._answered(arrival.key, listening)

        return work

    async def _settled(
        self, arrival: types.Arrival, listening: sse.Overheard, go_on: Callable[[], Awaitable[None]]
    ) -> types.Arrival:
        """An arrival once it is known what became of it, and its answer with it where it was collected into one."""
        wanted, looked = arrival.id, 0.0
        loop = asyncio.get_running_loop()
        while True:
            seen, pause = listening.version, sse.SOON if listening.over else sse.EVERY
            await go_on()
            if listening.sent or loop.time() - looked >= pause:
                found, looked = await self._db.arrival(wanted), loop.time()
                if found is None:
                    raise wire.Refused(410, "What was asked is deleted.", code="deleted")
                if not found.open and found.joined is None:
                    return found
                wanted = found.joined or wanted
            if listening.stopped:
                raise wire.Refused(503, STOPS, code="stops", headers=_RETRY_NOT)
            await listening.wait(seen, pause)

    async def _answer(self, settled: types.Arrival, model: str) -> openai.Answered:
        said = [each for each in await self._db.replies(settled.id) if each.kind == "reply"]
        text = "\n".join(each.text for each in said)
        if settled.redacted or any(each.redacted for each in said):
            raise wire.Refused(410, "The answer is deleted.", code="deleted")
        refusal = _REFUSALS.get(settled.outcome or "")
        if refusal is not None and not (settled.outcome == "interrupted" and text):
            status, code = refusal
            if text == replies.TOO_LARGE:
                status, code = 400, "context_length_exceeded"
            raise wire.Refused(status, text or f"There is no answer: {settled.outcome}.", code=code, headers=_RETRY_NOT)
        drawn = await pictures.shown(self._db, [digest for each in said for digest in each.attachments])
        whole = "\n\n".join(each for each in (text, drawn) if each)
        answered = msgspec.structs.replace(_blank(settled, model), text=whole)
        upto = next((each.seq for each in said if each.seq is not None), None)
        if settled.conversation_id is None or settled.seq is None or upto is None:
            return answered
        turn = await self._db.transcript(settled.conversation_id, settled.seq, upto)
        usage = _sum([each.usage for each in turn if each.usage is not None])
        cut = bool(turn) and parts.is_cut(turn[-1].content)
        return msgspec.structs.replace(answered, usage=usage, finish="length" if cut else "stop")


class Writing:
    """A stream on its way to a client."""

    def __init__(self, send: Send, listening: sse.Overheard, blank: openai.Answered, usage: bool) -> None:
        self._send, self._listening, self._blank, self._usage = send, listening, blank, usage
        self._told = 0
        self._at = 0.0

    async def begin(self, headers: dict[str, str]) -> None:
        named = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no", **headers}
        listed = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": listed})
        await self._write(sse.event(openai.first(self._blank, self._usage)))

    async def go_on(self) -> None:
        """What was said since, or a sign that somebody is still there."""
        text = "".join(self._listening.pieces[self._told :])
        self._told = len(self._listening.pieces)
        if text:
            await self._write(sse.event(openai.delta(self._blank, text, self._usage)))
        elif asyncio.get_running_loop().time() - self._at >= sse.KEEP_ALIVE:
            await self._write(sse.COMMENT)

    async def end(self, answered: openai.Answered) -> None:
        await self.go_on()
        rest = self._listening.rest(answered.text)
        pieces = [openai.delta(self._blank, rest, self._usage)] if rest else []
        ended = [*pieces, *openai.last(answered, self._usage)]
        await self._write(b"".join(map(sse.event, ended)) + sse.DONE, more=False)

    async def fail(self, refused: wire.Refused) -> None:
        await self._write(sse.event(refused.body) + sse.DONE, more=False)

    async def _write(self, data: bytes, more: bool = True) -> None:
        self._at = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


async def _nothing() -> None:
    return


def _named(header: str | None) -> str | None:
    """The conversation that a header names. That of a user is quoted there, and measured by what it stands for."""
    if header is None or not header.startswith(USER) or not header.isascii() or not header.isprintable():
        return wire.id_of(header, "X-Holdfast-Conversation")
    user = wire.id_of(unquote(header.removeprefix(USER)), "X-Holdfast-Conversation")
    return f"{USER}{quote(user or '', safe='')}"


def _check_same(arrival: types.Arrival, digest: str) -> None:
    """That a key stands for one request only."""
    if arrival.redacted:
        raise wire.Refused(410, "What was asked under this key is deleted.", code="deleted")
    if arrival.address.get("digest") != digest:
        raise wire.Refused(422, "This Idempotency-Key was used for another request.", code="idempotency_key_reused")


def _blank(arrival: types.Arrival, model: str) -> openai.Answered:
    return openai.Answered(f"chatcmpl-{arrival.id}", int(arrival.at), model)


def _headers(arrival: types.Arrival) -> dict[str, str]:
    return {CONVERSATION: str(arrival.address.get("name", "")), "x-holdfast-arrival": str(arrival.id)}


def _owner(owner: str) -> str:
    return f"{NAME}:{keys.quoted(owner)}"


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=20).hexdigest()


def _key(owner: str, repeat: str) -> str:
    """The key of a request: that of one owner is never that of another."""
    return _digest(msgspec.json.encode([owner, repeat]))


def _sum(usages: Sequence[types.Usage]) -> types.Usage:
    return types.Usage(
        input=sum(each.input for each in usages),
        output=sum(each.output for each in usages),
        cache_read=sum(each.cache_read for each in usages),
        reasoning=sum(each.reasoning for each in usages),
    )
