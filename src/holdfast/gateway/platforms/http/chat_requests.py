"""Chats over HTTP: a request comes in like anything else, and its answer is read from the store.

The conversation is chosen by a header, else by the history that the client sends, else it is new. A client that goes
away stops its turn, unless its request has an Idempotency-Key: then the turn goes on, and the same request is given
the same answer, in whichever process. Requests that a client makes for itself, such as for a title, are answered
outside any conversation.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast import content_parts, errors, events, types
from holdfast.agent import titles
from holdfast.gateway import platform, reply_text, route_keys
from holdfast.gateway.platforms.http import chat_completions, inline_images, request_history, requests, sse
from holdfast.model import base as models
from holdfast.store import async_db, conversation_row, leases, message_codec

logger = logging.getLogger("holdfast.gateway")

NAME = "http"
CONVERSATION, REPEAT = "X-Conversation-Id", "idempotency-key"
SIDE_REQUESTS = 60
"""Side requests of one owner within a minute."""
CLAIM_TRIES, CLAIM_PAUSE = 100, 0.05
"""How often another process is waited for that admits a request with the same history, and for how many seconds."""
STOPPING = 5.0
"""Seconds a request waits for the turn of a request before it to stop whose client has gone."""
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


_SESSION_ID = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6}")
"""The ids that the store gives to conversations; any other name is one that a client has chosen."""


class Place(NamedTuple):
    """The chat that a request belongs to, by the name its client knows it by."""

    name: str
    target: str | None = None
    """Its conversation, existing or new; None: the one that the name refers to now."""
    branch_of: request_history.Match | None = None
    """The answer after which the conversation begins as a branch."""
    is_new: bool = False


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
        db: async_db.AsyncSessionDB,
        models: Sequence[str],
        *,
        header: str = CONVERSATION,
        side_requests: Sequence[str] = (),
        profile: str = "main",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._db, self.models, self._profile, self._clock = db, tuple(models), profile, clock
        self._header, self._side_requests = header, tuple(side_requests)
        self.door: platform.Door | None = None
        self._process = leases.encode_holder(leases.current_holder(None))
        self._heard: dict[str, sse.Overheard] = {}
        self._written: OrderedDict[str, None] = OrderedDict()
        """Keys of what was answered lately: an answer of several parts is told as one."""
        self._withdrawn: OrderedDict[str, int] = OrderedDict()
        """Keys and ids of the arrivals whose clients have gone lately."""
        self._admitting: dict[str, asyncio.Lock] = {}
        self._asides: dict[str, deque[float]] = {}
        """When the latest side requests of each owner came."""

    # --- the platform's side -----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return len(self._heard)

    def heard(self, arrival: types.InboundMessage, event: events.AnyEvent) -> None:
        if (listening := self._heard.get(arrival.key)) is not None:
            listening.hear(event)

    def owns(self, outgoing: types.Outgoing) -> bool:
        """Of a connection of this process; or of a process that is no more, so that it does not wait for ever."""
        process = outgoing.address.get("process")
        if process in (self._process, None) or outgoing.address.get("key") in self._heard:
            return True
        return outgoing.at < self._clock() - LEFT or leases.decode_holder(str(process)).is_dead()

    async def send(self, outgoing: types.Outgoing) -> str:
        """Have the connection read it, and wait until that has given it to the client."""
        key, name = str(outgoing.address.get("key")), f"{NAME}-{outgoing.id}"
        if key in self._written and outgoing.inbound_id is not None:
            return name
        listening = self._heard.get(key)
        if listening is None:
            raise errors.SendRefused(GONE)
        if outgoing.inbound_id is None:
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

    def _leave(self, key: str, withdrawn: types.InboundMessage | None = None) -> None:
        """Stop listening. The turn of `withdrawn` is stopped where no other connection waits for its answer."""
        listening = self._heard[key]
        listening.readers -= 1
        if listening.readers:
            return
        del self._heard[key]
        listening.gone.set()
        if withdrawn is None or self.door is None or listening.written.is_set() or listening.stopped:
            return
        self._withdrawn[key] = withdrawn.id
        while len(self._withdrawn) > REMEMBERED:
            self._withdrawn.popitem(last=False)
        self.door.withdraw(withdrawn)

    def _answered(self, key: str, listening: sse.Overheard) -> None:
        self._written[key] = None
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)
        listening.written.set()

    # --- a request ---------------------------------------------------------------------------------------

    async def complete(self, request: Request, owner: str) -> Response:
        """POST /v1/chat/completions."""
        asked = chat_completions.read(await requests.object_of(request), self.models)
        if self.door is None:
            raise requests.Refused(503, "The gateway is not ready.", code="not_ready", headers=requests.LATER)
        if chat_completions.is_side_request(asked, self._side_requests):
            return self._aside(self.door, owner, asked)
        named = requests.id_of(request.headers.get(self._header) or None, self._header)
        repeat = requests.id_of(request.headers.get(REPEAT), "Idempotency-Key")
        # The next request is known by the history that this one leaves: see `history`. One with a name does not show
        # all of its conversation, so no history leads there.
        prefix = request_history.digest(owner, [*asked.before, asked.now]) if named is None else _digest([owner, named])
        key = prefix + _digest([owner, repeat or message_codec.generate_uid()])
        digest = _digest([named, asked.model, asked.before, asked.now, asked.instructions, asked.max_output])
        listening = self._join(key)
        try:
            async with listening.admitting:
                arrival = await self._db.mail.inbound_by_key(NAME, key) if repeat else None
                if arrival is None:
                    arrival = await self._admit(self.door, owner, named, asked, key, digest)
            _check_same(arrival, digest)
        except BaseException:
            self._leave(key)
            raise
        work = self._stream if asked.stream else self._whole
        # A client that sent a key comes back for the answer; no other can.
        return Waiting(work(arrival, asked, listening), lambda: self._leave(key, None if repeat else arrival))

    async def _admit(
        self, door: platform.Door, owner: str, named: str | None, asked: chat_completions.Asked, key: str, digest: str
    ) -> types.InboundMessage:
        """Take in a request, in the conversation that it belongs to."""
        if named is not None:
            return await self._arrive(door, owner, asked, await self._named(owner, named), key, digest)
        new = Place(id_ := self._new_id(), id_, is_new=True)
        if not asked.before:
            return await self._arrive(door, owner, asked, new, key, digest)
        continued = request_history.digest(owner, asked.before[:-1])
        async with self._alone(continued):
            await self._stopped(continued)
            found = await request_history.find(self._db, NAME, owner, asked.before)
            place = new._replace(branch_of=found)
            if found is not None and found.is_tip and not await self._is_busy(found.arrival.route):
                place = Place(str(found.arrival.address.get("name")), found.conversation_id)
            return await self._arrive(door, owner, asked, place, key, digest)

    async def _named(self, owner: str, named: str) -> Place:
        """Return the chat that a header names: a conversation of the owner, or a name of the client's choice."""
        with suppress(errors.NoSuchSession, errors.InvalidArgument):
            conversation = await self._db.conversation(named)
            if conversation.owner == _owner(owner):
                return Place(named, conversation.id)
        route = self._route(owner, named)
        if _SESSION_ID.fullmatch(named) and not await self._has_begun(route):
            raise requests.Refused(
                404,
                f"There is no conversation {named}. Leave out the header {self._header} to begin a new one.",
                param=self._header,
                code="conversation_not_found",
            )
        return Place(named, (await self._db.route(route)).conversation_id)

    @asynccontextmanager
    async def _alone(self, digest: str) -> AsyncIterator[None]:
        """Admit one request at a time that continues a history, in all processes: two must not both find its end.

        The claim only keeps other processes out for a moment: where it is not available, the request is admitted.
        """
        slot = f"{NAME}:history:{digest[:2]}"
        async with self._admitting.setdefault(slot, asyncio.Lock()):
            claim = await self._claim(slot)
            try:
                yield
            finally:
                if claim is not None:
                    try:
                        await self._db.mail.release_chat_lease(claim)
                    except Exception as error:  # noqa: BLE001 -- it expires by itself
                        logger.warning("the claim %s could not be released and expires by itself: %s", slot, error)

    async def _claim(self, slot: str) -> types.ChatLease | None:
        try:
            for _ in range(CLAIM_TRIES):
                with suppress(errors.Busy):
                    return await self._db.mail.acquire_chat_lease(slot)
                await asyncio.sleep(CLAIM_PAUSE)
            logger.warning("another process has held the claim %s for long; going on without it", slot)
        except Exception as error:  # noqa: BLE001 -- a claim saves trouble; a request is admitted without one, too
            logger.warning("the claim %s is not available; going on without it: %s", slot, error)
        return None

    async def _stopped(self, digest: str) -> None:
        """Wait until the turns of this history are stopped whose clients have gone; not for long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOPPING):
                for id_ in [id_ for key, id_ in self._withdrawn.items() if key.startswith(digest)]:
                    while (found := await self._db.mail.inbound(id_)) is not None and found.open:
                        await asyncio.sleep(sse.SOON)

    async def _is_busy(self, route: str) -> bool:
        """Return whether a request of this chat is being answered."""
        return any(each.key not in self._withdrawn for each in await self._db.mail.open_inbound(route, REMEMBERED))

    async def _arrive(
        self, door: platform.Door, owner: str, asked: chat_completions.Asked, place: Place, key: str, digest: str
    ) -> types.InboundMessage:
        route = self._route(owner, place.name)
        came = platform.Came(
            platform=NAME,
            key=key,
            chat=(owner, place.name),
            sender=owner,
            text=chat_completions.plain(asked.now.text),
            attachments=asked.now.images,
            address={"process": self._process, "key": key, "digest": digest, "name": place.name},
            terms=platform.Terms(await self._instructions(asked, place, route), asked.max_output, place.target),
        )
        begins = place.is_new or (place.target is None and not await self._has_begun(route))
        if begins and asked.before:
            # Who is not let in writes nothing, also not what was said before.
            if (refused := await door.refused(came)) is not None:
                raise requests.not_taken(refused)
            if (match := place.branch_of) is not None:
                await self._db.branch(match.conversation_id, match.answer_seq, branch_id=place.target)
            else:
                await self._write_before(route, owner, place.target, asked.before)
        arrival = await door.answered(came)
        if isinstance(arrival, platform.NotTaken):
            raise requests.not_taken(arrival)
        return arrival

    def _route(self, owner: str, name: str) -> str:
        return route_keys.route(self._profile, platform.Came(platform=NAME, key="", chat=(owner, name), sender=owner))

    async def _instructions(self, asked: chat_completions.Asked, place: Place, route: str) -> str:
        """Return the instructions for a request. One without a history keeps those of its conversation."""
        if asked.instructions is not None or asked.before or place.is_new:
            return asked.instructions or ""
        here = place.target or (await self._db.route(route)).conversation_id
        with suppress(errors.NoSuchSession):
            last = await self._db.mail.last_inbound(here, NAME) if here is not None else None
            return platform.terms_of(last).instructions if last is not None else ""
        return ""

    async def _has_begun(self, route: str) -> bool:
        """Whether a chat is there."""
        if (await self._db.route(route)).conversation_id is not None:
            return True
        return bool(await self._db.mail.open_inbound(route, 1))

    async def _write_before(
        self, route: str, owner: str, id_: str | None, before: Sequence[chat_completions.Said]
    ) -> None:
        """What was said before, as the beginning of the conversation; once, whoever else does the same now."""
        digests = [
            [(await self._db.blobs.put(image.data, image.media_type)).digest for image in said.images]
            for said in before
        ]
        create, here = types.NewConversation(source=NAME, owner=_owner(owner), route=route), id_ or self._new_id()
        if written := chat_completions.written(before, digests):
            with suppress(errors.RouteMoved):
                await self._db.append_messages(here, written, create=create)
                first_words = next((each.text for each in before if each.role == "user"), None)
                await titles.PendingTitle(first_message=first_words).apply(self._db, here, lambda _: None)

    def _new_id(self) -> str:
        return conversation_row.generate_session_id(self._clock())

    # --- side requests -----------------------------------------------------------------------------------

    def _aside(self, door: platform.Door, owner: str, asked: chat_completions.Asked) -> Response:
        """Answer what a client asks for itself, outside any conversation. Nothing is stored."""
        now, latest = self._clock(), self._asides.setdefault(owner, deque(maxlen=SIDE_REQUESTS))
        if len(latest) == SIDE_REQUESTS and latest[0] > now - 60.0:
            raise requests.not_taken(platform.NotTaken("limit", retry_after=60.0))
        latest.append(now)
        uid = message_codec.generate_uid()
        came = platform.Came(platform=NAME, key=uid, chat=(owner, uid), sender=owner, text=asked.now.text)
        message = types.Message(1, uid, "", "user", now, message_codec.encode(asked.now.text))
        request = models.Request(messages=(message,), system=asked.instructions or "", max_output=asked.max_output)

        async def work(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                reply = await door.ask(came, request)
            except errors.ModelError as error:
                raise requests.Refused(
                    502, reply_text.failure(str(error)), code="turn_failed", headers=_RETRY_NOT
                ) from None
            if isinstance(reply, platform.NotTaken):
                raise requests.not_taken(reply)
            finish: chat_completions.Finish = "length" if reply.finish == "length" else "stop"
            answered = chat_completions.Answered(
                f"chatcmpl-{uid}", int(now), asked.model, reply.text, finish, reply.usage
            )
            if not asked.stream:
                await requests.json(chat_completions.completion(answered))(scope, receive, send)
                return
            writing = Writing(send, sse.Overheard(), answered, asked.usage)
            await writing.begin({})
            await writing.end(answered)

        return Waiting(work, lambda: None)

    # --- the answer --------------------------------------------------------------------------------------

    def _whole(self, arrival: types.InboundMessage, asked: chat_completions.Asked, listening: sse.Overheard) -> Work:
        async def work(scope: Scope, receive: Receive, send: Send) -> None:
            headers, settled = self._headers(arrival), None
            try:
                settled = await self._settled(arrival, listening, _nothing)
                answered = await self._answer(settled, asked.model)
                response = requests.json(chat_completions.completion(answered), headers=headers)
            except (requests.Refused, errors.HoldfastError) as error:
                refused = requests.told(error)
                refused.headers.update(headers)
                response = refused.response()
            await response(scope, receive, send)
            if settled is not None:
                self._answered(arrival.key, listening)

        return work

    def _stream(self, arrival: types.InboundMessage, asked: chat_completions.Asked, listening: sse.Overheard) -> Work:
        async def work(_scope: Scope, _receive: Receive, send: Send) -> None:
            writing = Writing(send, listening, _blank(arrival, asked.model), asked.usage)
            await writing.begin(self._headers(arrival))
            settled = None
            try:
                settled = await self._settled(arrival, listening, writing.go_on)
                await writing.end(await self._answer(settled, asked.model))
            except (requests.Refused, errors.HoldfastError) as error:
                await writing.fail(requests.told(error))
            if settled is not None:
                self._answered(arrival.key, listening)

        return work

    def _headers(self, arrival: types.InboundMessage) -> dict[str, str]:
        return {self._header: str(arrival.address.get("name", "")), "x-holdfast-arrival": str(arrival.id)}

    async def _settled(
        self, arrival: types.InboundMessage, listening: sse.Overheard, go_on: Callable[[], Awaitable[None]]
    ) -> types.InboundMessage:
        """An arrival once it is known what became of it, and its answer with it where it was collected into one."""
        wanted, looked = arrival.id, 0.0
        loop = asyncio.get_running_loop()
        while True:
            seen, pause = listening.version, sse.SOON if listening.over else sse.EVERY
            await go_on()
            if listening.sent or loop.time() - looked >= pause:
                found, looked = await self._db.mail.inbound(wanted), loop.time()
                if found is None:
                    raise requests.Refused(410, "What was asked is deleted.", code="deleted")
                if not found.open and found.joined is None:
                    return found
                wanted = found.joined or wanted
            if listening.stopped:
                raise requests.Refused(503, STOPS, code="stops", headers=_RETRY_NOT)
            await listening.wait(seen, pause)

    async def _answer(self, settled: types.InboundMessage, model: str) -> chat_completions.Answered:
        said = [each for each in await self._db.mail.replies(settled.id) if each.kind == "reply"]
        text = "\n".join(each.text for each in said)
        if settled.redacted or any(each.redacted for each in said):
            raise requests.Refused(410, "The answer is deleted.", code="deleted")
        refusal = _REFUSALS.get(settled.outcome or "")
        if refusal is not None and not (settled.outcome == "interrupted" and text):
            status, code = refusal
            if text == reply_text.TOO_LARGE:
                status, code = 400, "context_length_exceeded"
            raise requests.Refused(
                status, text or f"There is no answer: {settled.outcome}.", code=code, headers=_RETRY_NOT
            )
        drawn = await inline_images.shown(self._db, [digest for each in said for digest in each.attachments])
        whole = "\n\n".join(each for each in (text, drawn) if each)
        answered = msgspec.structs.replace(_blank(settled, model), text=whole)
        upto = next((each.seq for each in said if each.seq is not None), None)
        if settled.conversation_id is None or settled.seq is None or upto is None:
            return answered
        turn = await self._db.transcript(settled.conversation_id, settled.seq, upto)
        usage = _sum([each.usage for each in turn if each.usage is not None])
        cut = bool(turn) and content_parts.is_cut(turn[-1].content)
        return msgspec.structs.replace(answered, usage=usage, finish="length" if cut else "stop")


class Writing:
    """A stream on its way to a client."""

    def __init__(self, send: Send, listening: sse.Overheard, blank: chat_completions.Answered, usage: bool) -> None:
        self._send, self._listening, self._blank, self._usage = send, listening, blank, usage
        self._told = 0
        self._at = 0.0

    async def begin(self, headers: dict[str, str]) -> None:
        named = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no", **headers}
        listed = [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": listed})
        await self._write(sse.event(chat_completions.first(self._blank, self._usage)))

    async def go_on(self) -> None:
        """What was said since, or a sign that somebody is still there."""
        text = "".join(self._listening.pieces[self._told :])
        self._told = len(self._listening.pieces)
        if text:
            await self._write(sse.event(chat_completions.delta(self._blank, text, self._usage)))
        elif asyncio.get_running_loop().time() - self._at >= sse.KEEP_ALIVE:
            await self._write(sse.COMMENT)

    async def end(self, answered: chat_completions.Answered) -> None:
        await self.go_on()
        rest = self._listening.rest(answered.text)
        pieces = [chat_completions.delta(self._blank, rest, self._usage)] if rest else []
        ended = [*pieces, *chat_completions.last(answered, self._usage)]
        await self._write(b"".join(map(sse.event, ended)) + sse.DONE, more=False)

    async def fail(self, refused: requests.Refused) -> None:
        await self._write(sse.event(refused.body) + sse.DONE, more=False)

    async def _write(self, data: bytes, more: bool = True) -> None:
        self._at = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


async def _nothing() -> None:
    return


def _check_same(arrival: types.InboundMessage, digest: str) -> None:
    """That a key stands for one request only."""
    if arrival.redacted:
        raise requests.Refused(410, "What was asked under this key is deleted.", code="deleted")
    if arrival.address.get("digest") != digest:
        raise requests.Refused(422, "This Idempotency-Key was used for another request.", code="idempotency_key_reused")


def _blank(arrival: types.InboundMessage, model: str) -> chat_completions.Answered:
    return chat_completions.Answered(f"chatcmpl-{arrival.id}", int(arrival.at), model)


def _owner(owner: str) -> str:
    return f"{NAME}:{route_keys.quoted(owner)}"


def _digest(data: object) -> str:
    return blake2b(msgspec.json.encode(data), digest_size=20).hexdigest()


def _sum(usages: Sequence[types.Usage]) -> types.Usage:
    return types.Usage(
        input=sum(each.input for each in usages),
        output=sum(each.output for each in usages),
        cache_read=sum(each.cache_read for each in usages),
        reasoning=sum(each.reasoning for each in usages),
    )
