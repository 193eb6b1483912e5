"""Chats over HTTP: a request is an inbound message like any other, and its answer is read from the store.

The conversation is chosen by a header, else by the history that the client sends, else it is new. A client that
disconnects stops its turn, unless its request has an Idempotency-Key: then the turn continues, and the same request
gets the same answer, in any process. Requests that a client makes for its own purposes, such as titles, are answered
outside any conversation.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import blake2b
from typing import NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast import content_parts, errors, events, types
from holdfast.agent import titles
from holdfast.gateway import chat_leases, platform, replies, routes
from holdfast.gateway.platforms.http import chat_completions, inline_images, request_history, requests, sse
from holdfast.model import base as models
from holdfast.store import async_db, conversation_row, leases, message_codec

logger = logging.getLogger("holdfast.gateway")

NAME = "http"
CONVERSATION_HEADER, IDEMPOTENCY_HEADER = "X-Conversation-Id", "idempotency-key"
MAX_SIDE_REQUESTS = 60
"""Side requests of one owner per minute."""
LEASE_ATTEMPTS, LEASE_POLL_SECONDS = 100, 0.05
"""How long to wait for another process that stores a request with the same history."""
STOP_SECONDS = 5.0
"""How long a request waits for the turn of an earlier, abandoned request to stop."""
STOP_PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds before each further attempt to stop the turn of a client that disconnected, if the store fails."""
ORPHAN_SECONDS = 600.0
"""After this time any process may give up an answer: the process with the connection may be on a lost host."""
MAX_REMEMBERED = 2_000
CLIENT_GONE = "The client disconnected before the answer; the conversation contains it."
NOT_A_REPLY = "An HTTP client receives only the answer to its request."
STOPPING = "The gateway is stopping. The message is stored; send it again with the same Idempotency-Key."
_NO_RETRY = {"x-should-retry": "false"}
# Status and code of a request that has no answer, by outcome.
_REFUSALS = {
    "failed": (502, "turn_failed"),
    "gave_up": (500, "gave_up"),
    "interrupted": (409, "interrupted"),
    "dropped": (409, "dropped"),
    "deleted": (410, "deleted"),
}
_SESSION_ID = re.compile(r"\d{8}_\d{6}_[0-9a-f]{6}")
"""The ids that the store generates; any other name was chosen by a client."""
T = TypeVar("T")


class NewRequest(NamedTuple):
    """A request that is not stored yet."""

    owner: str
    asked: chat_completions.ChatRequest
    key: str
    digest: str
    """Distinguishes requests with the same Idempotency-Key."""


class ChatTarget(NamedTuple):
    """The chat of a request, by the name that its client uses."""

    name: str
    conversation_id: str | None = None
    """The conversation, existing or new; None: the current one of the chat."""
    branch_of: request_history.HistoryMatch | None = None
    """The answer after which the conversation branches off."""
    is_new: bool = False


class LongResponse(Response):
    """A response that is written while the client waits, and cancelled when the client disconnects."""

    def __init__(self, write: Callable[[Send], Awaitable[None]], on_end: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._write, self._on_end = write, on_end

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._write(send))
        disconnect = asyncio.ensure_future(_wait_disconnect(receive))
        try:
            await asyncio.wait([work, disconnect], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (work, disconnect):
                each.cancel()
            await asyncio.wait([work, disconnect])
            await self._on_end()
        if not work.cancelled():
            work.result()


async def _wait_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class ChatRequests:
    """The requests that wait in this process, and their answers."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        models: Sequence[str],
        *,
        header: str = CONVERSATION_HEADER,
        side_requests: Sequence[str] = (),
        profile: str = "main",
        clock: Callable[[], float] = time.time,
        poll_seconds: float = 1.0,
    ) -> None:
        self._db, self.models, self._profile, self._clock = db, tuple(models), profile, clock
        self._header, self._side_prefixes, self._poll_seconds = header, tuple(side_requests), poll_seconds
        self.handler: platform.Handler | None = None
        self._process = leases.encode_holder(leases.current_holder(None))
        self._streams: dict[str, sse.TurnStream] = {}
        """The turns of waiting requests, by message key."""
        self._written: OrderedDict[str, None] = OrderedDict()
        """The keys of requests answered lately: the parts of an answer are sent as one."""
        self._withdrawn: OrderedDict[str, int] = OrderedDict()
        """The messages of clients that disconnected lately: ids by key."""
        self._retries = set[asyncio.Task[None]]()
        """The further attempts to stop turns of clients that disconnected."""
        self._history_locks = defaultdict[str, asyncio.Lock](asyncio.Lock)
        self._side_requests: dict[str, deque[float]] = {}
        """The times of the latest side requests, by owner."""

    # --- the platform's side -----------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their answers."""
        return len(self._streams)

    def on_event(self, inbound: types.InboundMessage, event: events.AnyEvent) -> None:
        if (stream := self._streams.get(inbound.key)) is not None:
            stream.on_event(event)

    def owns(self, outgoing: types.Outgoing) -> bool:
        """Return whether this process has the connection, or the process that had it is dead."""
        process = outgoing.address.get("process")
        if process in (self._process, None) or outgoing.address.get("key") in self._streams:
            return True
        return outgoing.at < self._clock() - ORPHAN_SECONDS or leases.decode_holder(str(process)).is_dead()

    async def send(self, delivery: platform.Delivery) -> str:
        """Wake the connection, and wait until it has written the answer."""
        key, name = str(delivery.address.get("key")), f"{NAME}-{delivery.id}"
        if key in self._written and delivery.inbound_id is not None:
            return name
        stream = self._streams.get(key)
        if stream is None:
            raise errors.SendRefused(CLIENT_GONE)
        if delivery.inbound_id is None:
            raise errors.SendRefused(NOT_A_REPLY)
        stream.settled = True
        stream.notify()
        if not await asyncio.shield(stream.is_written):
            raise errors.SendRefused(CLIENT_GONE)
        return name

    def stop_waiting(self) -> None:
        """Answer the requests that still wait: this process stops."""
        for stream in self._streams.values():
            stream.stopped = True
            stream.notify()

    def _join(self, key: str) -> sse.TurnStream:
        """Register a connection before its message is stored, so that no event is missed."""
        stream = self._streams.setdefault(key, sse.TurnStream())
        stream.readers += 1
        return stream

    async def _leave(self, key: str, withdrawn: types.InboundMessage | None = None) -> None:
        """Unregister a connection. The turn of `withdrawn` is stopped if no other connection waits for it."""
        stream = self._streams[key]
        stream.readers -= 1
        if stream.readers:
            return
        del self._streams[key]
        if stream.is_written.done():
            return
        stream.is_written.set_result(False)
        if withdrawn is not None and self.handler is not None and not stream.stopped:
            _remember(self._withdrawn, key, withdrawn.id)
            if not await _stop_turn(self.handler, key):
                retry = asyncio.create_task(_retry_stop(self.handler, key))
                self._retries.add(retry)
                retry.add_done_callback(self._retries.discard)

    def _mark_written(self, key: str, stream: sse.TurnStream) -> None:
        _remember(self._written, key, None)
        if not stream.is_written.done():
            stream.is_written.set_result(True)

    # --- a request ---------------------------------------------------------------------------------------

    async def complete(self, request: Request, owner: str) -> Response:
        """POST /v1/chat/completions."""
        asked = chat_completions.parse(await requests.read_object(request), self.models)
        handler = requests.check_ready(self.handler)
        if chat_completions.is_side_request(asked, self._side_prefixes):
            return self._answer_side_request(handler, owner, asked)
        named = requests.check_id(request.headers.get(self._header) or None, self._header)
        idempotency_key = requests.check_id(request.headers.get(IDEMPOTENCY_HEADER), "Idempotency-Key")
        # The next request finds this one by its history: see `request_history`. A request with a conversation header
        # need not send the whole history, so no history leads to it.
        history = [*asked.before, asked.now]
        prefix = request_history.digest(owner, history) if named is None else _digest([owner, named])
        key = prefix + _digest([owner, idempotency_key or message_codec.generate_uid()])
        digest = _digest([named, asked.model, asked.before, asked.now, asked.instructions, asked.max_output])
        stream = self._join(key)
        try:
            async with stream.admission:
                inbound = await self._db.mail.inbound_by_key(NAME, key) if idempotency_key else None
                if inbound is None:
                    inbound = await self._store(handler, NewRequest(owner, asked, key, digest), named)
            _check_same(inbound, digest)
        except BaseException:
            await self._leave(key)
            raise

        # A client that sent an Idempotency-Key may come back for the answer.
        withdrawn = None if idempotency_key else inbound
        return LongResponse(lambda send: self._write(send, inbound, asked, stream), lambda: self._leave(key, withdrawn))

    async def _store(self, handler: platform.Handler, new: NewRequest, named: str | None) -> types.InboundMessage:
        """Store a request in the conversation that it belongs to."""
        owner, before = new.owner, new.asked.before
        if named is not None:
            return await self._submit(handler, new, await self._find_named(owner, named))
        target = ChatTarget(id_ := conversation_row.generate_session_id(self._clock()), id_, is_new=True)
        if not before:
            return await self._submit(handler, new, target)
        continued = request_history.digest(owner, before[:-1])
        async with self._lock_history(continued):
            await self._wait_withdrawn(continued)
            found = await self._find_continued(owner, before)
            is_idle = found is not None and found.is_tip and not await self._is_busy(found.request.route)
            if is_idle:
                # A turn that ended between the two reads has continued the conversation.
                found = await self._find_continued(owner, before)
            if is_idle and found is not None and found.is_tip:
                target = ChatTarget(str(found.request.address.get("name")), found.conversation_id)
            else:
                target = target._replace(branch_of=found)
            return await self._submit(handler, new, target)

    async def _find_named(self, owner: str, named: str) -> ChatTarget:
        """Return the chat that a header names: a conversation of the owner, or a name of the client's choice."""
        with suppress(errors.NoSuchSession, errors.InvalidArgument):
            conversation = await self._db.conversation(named)
            if await self._may_read(owner, conversation.owner):
                return ChatTarget(named, conversation.id)
        route = self._route(owner, named)
        if _SESSION_ID.fullmatch(named) and not await self._has_begun(route):
            raise requests.HttpError(
                404,
                f"No such conversation: {named}. Omit the header {self._header} to begin a new one.",
                param=self._header,
                code="conversation_not_found",
            )
        found = await self._db.route(route)
        return ChatTarget(named, found.conversation_id if await self._may_read(owner, found.owner) else None)

    async def _find_continued(
        self, owner: str, before: Sequence[chat_completions.Turn]
    ) -> request_history.HistoryMatch | None:
        """Return the request that a history continues, unless the link to its conversation was removed."""
        found = await request_history.find(self._db, NAME, owner, before)
        if found is None or await self._may_read(owner, (await self._db.conversation(found.conversation_id)).owner):
            return found
        return None

    async def _may_read(self, owner: str, of: str) -> bool:
        """Return whether a client may use the conversations of an owner: its own, and those that it is linked to."""
        return of == _owner_id(owner) or of == await self._db.contacts.linked_owner(NAME, owner)

    async def _submit(self, handler: platform.Handler, new: NewRequest, target: ChatTarget) -> types.InboundMessage:
        owner, asked, route = new.owner, new.asked, self._route(new.owner, target.name)
        incoming = platform.Incoming(
            platform=NAME,
            key=new.key,
            chat=(owner, target.name),
            sender=owner,
            text=chat_completions.escape_command(asked.now.text),
            attachments=asked.now.images,
            address={"process": self._process, "key": new.key, "digest": new.digest, "name": target.name},
            terms=platform.Terms(
                await self._instructions(asked, target, route), asked.max_output, target.conversation_id
            ),
        )
        begins = target.is_new or (target.conversation_id is None and not await self._has_begun(route))
        if begins and asked.before:
            # The history is only stored for a client that has access.
            result = await handler.check(incoming)
            if not result.allowed:
                raise requests.refuse_rejected(result)
            if (match := target.branch_of) is not None:
                await self._db.branch(match.conversation_id, match.answer_seq, branch_id=target.conversation_id)
            else:
                await self._store_history(new, route, target.conversation_id)
        inbound = await handler.submit(incoming)
        if isinstance(inbound, platform.AdmissionResult):
            raise requests.refuse_rejected(inbound)
        return inbound

    async def _instructions(self, asked: chat_completions.ChatRequest, target: ChatTarget, route: str) -> str:
        """Return the instructions of a request. A request without a history keeps those of its conversation."""
        if asked.instructions is not None or asked.before or target.is_new:
            return asked.instructions or ""
        conversation_id = target.conversation_id or (await self._db.route(route)).conversation_id
        with suppress(errors.NoSuchSession):
            last = await self._db.mail.last_inbound(conversation_id, NAME) if conversation_id is not None else None
            return platform.read_terms(last).instructions if last is not None else ""
        return ""

    async def _store_history(self, new: NewRequest, route: str, conversation_id: str | None) -> None:
        """Store the history as the beginning of a conversation, once if several requests do so concurrently."""
        before = new.asked.before
        digests = [
            [(await self._db.blobs.put(image.data, image.media_type)).digest for image in turn.images]
            for turn in before
        ]
        create = types.NewConversation(source=NAME, owner=_owner_id(new.owner), route=route)
        conversation_id = conversation_id or conversation_row.generate_session_id(self._clock())
        if messages := chat_completions.history_messages(before, digests):
            with suppress(errors.RouteMoved):
                await self._db.append_messages(conversation_id, messages, create=create)
                first_text = next((each.text for each in before if each.role == "user"), None)
                await titles.PendingTitle(first_message=first_text).apply(self._db, conversation_id, lambda _: None)

    def _route(self, owner: str, name: str) -> str:
        incoming = platform.Incoming(platform=NAME, key="", chat=(owner, name), sender=owner)
        return routes.route_of(self._profile, incoming)

    async def _has_begun(self, route: str) -> bool:
        """Return whether a chat has a conversation or waiting messages."""
        if (await self._db.route(route)).conversation_id is not None:
            return True
        return bool(await self._db.mail.open_inbound(route, 1))

    async def _is_busy(self, route: str) -> bool:
        """Return whether a request of this chat is being answered."""
        return bool(platform.without_deleted(await self._db.mail.open_inbound(route, MAX_REMEMBERED)))

    @asynccontextmanager
    async def _lock_history(self, digest: str) -> AsyncIterator[None]:
        """Of several requests that continue the same history, in all processes, only one continues its conversation.

        A lease that another process holds for longer than that takes is ignored.
        """
        slot, lease = f"{NAME}:history:{digest[:2]}", None
        async with self._history_locks[slot]:
            for _ in range(LEASE_ATTEMPTS):
                with suppress(errors.Busy):
                    lease = await self._db.mail.acquire_chat_lease(slot)
                    break
                await asyncio.sleep(LEASE_POLL_SECONDS)
            try:
                yield
            finally:
                if lease is not None:
                    await chat_leases.release(self._db, lease)

    async def _wait_withdrawn(self, digest: str) -> None:
        """Wait for a short time until the abandoned turns of a history have stopped."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                for id_ in [id_ for key, id_ in self._withdrawn.items() if key.startswith(digest)]:
                    while (found := await self._db.mail.inbound(id_)) is not None and found.open:
                        await asyncio.sleep(sse.POLL_AFTER_TURN_SECONDS)

    # --- side requests -----------------------------------------------------------------------------------

    def _answer_side_request(
        self, handler: platform.Handler, owner: str, asked: chat_completions.ChatRequest
    ) -> Response:
        """Answer a request of a client's own purpose, outside any conversation. Nothing is stored."""
        now, latest = self._clock(), self._side_requests.setdefault(owner, deque(maxlen=MAX_SIDE_REQUESTS))
        if len(latest) == MAX_SIDE_REQUESTS and latest[0] > now - 60.0:
            raise requests.refuse_rejected(platform.AdmissionResult(False, "limit", retry_after=60.0))
        latest.append(now)
        uid = message_codec.generate_uid()
        incoming = platform.Incoming(platform=NAME, key=uid, chat=(owner, uid), sender=owner, text=asked.now.text)
        message = types.Message(1, uid, "", "user", now, message_codec.encode(asked.now.text))
        request = models.Request(messages=(message,), system=asked.instructions or "", max_output=asked.max_output)

        async def write(send: Send) -> None:
            try:
                reply = await handler.ask_model(incoming, request)
            except errors.ModelError as error:
                message = replies.failure_text(str(error))
                raise requests.HttpError(502, message, code="turn_failed", headers=_NO_RETRY) from None
            if isinstance(reply, platform.AdmissionResult):
                raise requests.refuse_rejected(reply)
            finish: chat_completions.Finish = "length" if reply.finish == "length" else "stop"
            response = chat_completions.ChatResponse(
                f"chatcmpl-{uid}", int(now), asked.model, reply.text, finish, reply.usage
            )
            if asked.stream:
                writer = StreamWriter(send, sse.TurnStream(), response, asked.usage)
                await writer.begin({})
                await writer.end(response)
            else:
                await requests.send_response(requests.json_response(chat_completions.completion(response)), send)

        return LongResponse(write, _do_nothing)

    # --- the answer --------------------------------------------------------------------------------------

    async def _write(
        self,
        send: Send,
        inbound: types.InboundMessage,
        asked: chat_completions.ChatRequest,
        stream: sse.TurnStream,
    ) -> None:
        """Write the answer to a request, while it is made if the client asks for a stream."""
        headers, settled, on_news = self._headers(inbound), None, _do_nothing
        writer = StreamWriter(send, stream, _empty_response(inbound, asked.model), asked.usage)
        if asked.stream:
            await writer.begin(headers)
            on_news = writer.write_news
        try:
            settled = await self._wait_settled(inbound, stream, on_news)
            answer = await self._answer(settled, asked.model)
            if asked.stream:
                await writer.end(answer)
            else:
                await requests.send_response(
                    requests.json_response(chat_completions.completion(answer), headers=headers), send
                )
        except (requests.HttpError, errors.HoldfastError) as error:
            refused = requests.refusal_of(error)
            if asked.stream:
                await writer.fail(refused)
            else:
                refused.headers.update(headers)
                await requests.send_response(refused.response(), send)
        if settled is not None:
            self._mark_written(inbound.key, stream)

    def _headers(self, inbound: types.InboundMessage) -> dict[str, str]:
        return {self._header: str(inbound.address.get("name", "")), "x-holdfast-arrival": str(inbound.id)}

    async def _wait_settled(
        self, inbound: types.InboundMessage, stream: sse.TurnStream, on_news: Callable[[], Awaitable[None]]
    ) -> types.InboundMessage:
        """Wait for the outcome of a message, or of the message that it was joined into."""
        wanted, read_at = inbound.id, 0.0
        loop = asyncio.get_running_loop()
        while True:
            seen, pause = stream.version, sse.POLL_AFTER_TURN_SECONDS if stream.over else self._poll_seconds
            await on_news()
            if stream.settled or loop.time() - read_at >= pause:
                found, read_at = await self._db.mail.inbound(wanted), loop.time()
                if found is None:
                    raise requests.HttpError(410, "The request was deleted.", code="deleted")
                if not found.open and found.joined is None:
                    return found
                wanted = found.joined or wanted
            if stream.stopped:
                raise requests.HttpError(503, STOPPING, code="stops", headers=_NO_RETRY)
            await stream.wait(seen, min(pause, sse.KEEP_ALIVE_SECONDS))

    async def _answer(self, settled: types.InboundMessage, model: str) -> chat_completions.ChatResponse:
        sent = [each for each in await self._db.mail.replies(settled.id) if each.kind == "reply"]
        text = "\n".join(each.text for each in sent)
        if settled.redacted or any(each.redacted for each in sent):
            raise requests.HttpError(410, "The answer was deleted.", code="deleted")
        refusal = _REFUSALS.get(settled.outcome or "")
        if refusal is not None and not (settled.outcome == "interrupted" and text):
            status, code = refusal
            if text == replies.TOO_LARGE:
                status, code = 400, "context_length_exceeded"
            message = text or f"The request has no answer: {settled.outcome}."
            raise requests.HttpError(status, message, code=code, headers=_NO_RETRY)
        images = await inline_images.render_all(self._db, [digest for each in sent for digest in each.attachments])
        whole = "\n\n".join(each for each in (text, images) if each)
        response = msgspec.structs.replace(_empty_response(settled, model), text=whole)
        last = next((each.seq for each in sent if each.seq is not None), None)
        if settled.conversation_id is None or settled.seq is None or last is None:
            return response
        turn = await self._db.transcript(settled.conversation_id, settled.seq, last)
        usage = sum((each.usage for each in turn if each.usage is not None), types.Usage())
        is_cut = bool(turn) and content_parts.is_cut(turn[-1].content)
        return msgspec.structs.replace(response, usage=usage, finish="length" if is_cut else "stop")


class StreamWriter:
    """Writes the stream of one response."""

    def __init__(
        self, send: Send, stream: sse.TurnStream, response: chat_completions.ChatResponse, with_usage: bool
    ) -> None:
        self._send, self._stream, self._response, self._with_usage = send, stream, response, with_usage
        self._count = 0
        """How many pieces were written."""
        self._at = 0.0

    async def begin(self, headers: dict[str, str]) -> None:
        every = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no", **headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in every.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": encoded})
        await self._write(sse.encode_event(chat_completions.first_chunk(self._response, self._with_usage)))

    async def write_news(self) -> None:
        """Write the new text, or a keep-alive comment from time to time."""
        text = "".join(self._stream.pieces[self._count :])
        self._count = len(self._stream.pieces)
        if text:
            await self._write(sse.encode_event(chat_completions.delta_chunk(self._response, text, self._with_usage)))
        elif asyncio.get_running_loop().time() - self._at >= sse.KEEP_ALIVE_SECONDS:
            await self._write(sse.COMMENT)

    async def end(self, response: chat_completions.ChatResponse) -> None:
        await self.write_news()
        rest = self._stream.rest(response.text)
        pieces = [chat_completions.delta_chunk(self._response, rest, self._with_usage)] if rest else []
        chunks = [*pieces, *chat_completions.last_chunks(response, self._with_usage)]
        await self._write(b"".join(map(sse.encode_event, chunks)) + sse.DONE, more=False)

    async def fail(self, refused: requests.HttpError) -> None:
        await self._write(sse.encode_event(refused.body) + sse.DONE, more=False)

    async def _write(self, data: bytes, more: bool = True) -> None:
        self._at = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": data, "more_body": more})


async def _stop_turn(handler: platform.Handler, key: str) -> bool:
    """Stop the turn of a client that disconnected; return whether the store accepted that."""
    try:
        await handler.delete(NAME, key)
    except errors.StoreError as error:
        logger.warning("could not stop the turn of a disconnected client: %s", error)
        return False
    return True


async def _retry_stop(handler: platform.Handler, key: str) -> None:
    for pause in STOP_PAUSES:
        await asyncio.sleep(pause)
        if await _stop_turn(handler, key):
            return


async def _do_nothing() -> None:
    return


def _remember(known: OrderedDict[str, T], key: str, value: T) -> None:
    known[key] = value
    if len(known) > MAX_REMEMBERED:
        known.popitem(last=False)


def _check_same(inbound: types.InboundMessage, digest: str) -> None:
    """Check that an Idempotency-Key is used for one request only."""
    if inbound.redacted:
        raise requests.HttpError(410, "The request with this Idempotency-Key was deleted.", code="deleted")
    if inbound.address.get("digest") != digest:
        raise requests.HttpError(
            422, "This Idempotency-Key was used for another request.", code="idempotency_key_reused"
        )


def _empty_response(inbound: types.InboundMessage, model: str) -> chat_completions.ChatResponse:
    return chat_completions.ChatResponse(f"chatcmpl-{inbound.id}", int(inbound.at), model)


def _owner_id(owner: str) -> str:
    return f"{NAME}:{routes.quote_part(owner)}"


def _digest(data: object) -> str:
    return blake2b(msgspec.json.encode(data), digest_size=20).hexdigest()
