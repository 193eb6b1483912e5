"""Send the messages of the outbox, in order for each chat, until the platform accepts them.

A message is marked as delivered after the platform accepted it, and is never sent again then. If the process dies in
between, the message is sent again under the same id. Rate limits that a platform declares are kept ahead of errors.

A draft is an outbox message, too: the platform's id of it is stored when it is delivered. The reply to the same inbound
message replaces the draft, in whichever process it is sent; an empty reply deletes it.
"""

from __future__ import annotations

import asyncio
import logging
import mimetypes
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

import msgspec

from holdfast import errors, fault_points, types
from holdfast.gateway import access, chat_leases, gateway_context, questions, spans, text_split
from holdfast.gateway import platform as gateway_platform
from holdfast.runtime import linked_chats
from holdfast.store import async_db, notifications

logger = logging.getLogger("holdfast.gateway")

DRAIN_POLL_SECONDS = 0.02
MAX_READ = 200
MAX_CONCURRENT = 32
"""How many messages of one platform are sent concurrently; never two to one chat."""
MAX_ATTEMPTS, MAX_UNEXPECTED, MAX_SLOW_FILES = 20, 8, 4
"""The attempts at a message; fewer after an unexpected error, and at files that take too long to upload, because later
messages to the chat wait for it."""
MAX_RETRY = 600.0
"""The most seconds until a message is tried again."""
TIMED_OUT = f"Timed out after {gateway_platform.SEND_SECONDS:.0f} s."
KEEP_SECONDS = 10.0
"""Seconds that a chat's lease is reused for further messages, and within which a send must begin."""
LEASE_SECONDS = gateway_platform.SEND_SECONDS + 2 * KEEP_SECONDS
"""A lease outlasts a send that begins as late as possible. If a process dies, the chat waits at most this long."""
DRAFT = "draft:"
"""The prefix of the outbox key of a draft; the id of the inbound message follows."""
DRAFT_TEXT = "…"
NOT_SENT = "Not sent: {names} ({reason})"


def retry_delay(attempts: int, retry_after: float | None = None, first: float = 1.0) -> float:
    """Return the pause after this many attempts, doubled from `first`, at least as long as the platform asks for."""
    delay = min(first * 2.0 ** min(max(attempts - 1, 0), 20), MAX_RETRY)
    return max(delay, min(retry_after or 0.0, gateway_platform.MAX_RETRY_AFTER))


async def post_draft(
    db: async_db.AsyncSessionDB, to: gateway_context.ReplyAddress, inbound_id: int
) -> types.Outgoing | None:
    """Queue the draft of the reply to a message, or return the one that an earlier attempt queued."""
    new = types.NewOutgoing(platform=to.platform, chat=to.chat, address=to.address, text=DRAFT_TEXT, kind="notice")
    return await db.mail.post(new, key=f"{DRAFT}{inbound_id}", inbound_id=inbound_id)


async def find_draft(db: async_db.AsyncSessionDB, inbound_id: int) -> types.Outgoing | None:
    """Return the draft of the reply to a message."""
    return next((each for each in await db.mail.replies(inbound_id) if each.key == f"{DRAFT}{inbound_id}"), None)


class TokenBucket:
    """A rate limit: `rate.messages` tokens, refilled within `rate.seconds`."""

    def __init__(self, rate: gateway_platform.Rate, now: float) -> None:
        self._rate, self._tokens, self._at = rate, float(rate.messages), now

    def delay(self, now: float) -> float:
        """Return the seconds until a token is available."""
        self._refill(now)
        return max(1.0 - self._tokens, 0.0) * self._rate.seconds / self._rate.messages

    def take(self, now: float) -> None:
        self._refill(now)
        self._tokens -= 1.0

    def is_full(self, now: float) -> bool:
        self._refill(now)
        return self._tokens >= self._rate.messages

    def _refill(self, now: float) -> None:
        refilled = (now - self._at) * self._rate.messages / self._rate.seconds
        self._tokens, self._at = min(float(self._rate.messages), self._tokens + refilled), now


class Pacer:
    """Keeps to the rate limits of a platform."""

    def __init__(self, pace: gateway_platform.Pace, clock: Callable[[], float] = monotonic) -> None:
        self._pace, self._clock = pace, clock
        self._total = TokenBucket(pace.total, clock()) if pace.total else None
        self._chats: dict[str, TokenBucket] = {}

    def try_take(self, chat: str) -> float:
        """Take a token for a message to a chat and return 0; or return the seconds until one is available."""
        now, rate = self._clock(), self._pace.per_chat
        buckets = [self._total] if self._total else []
        if rate is not None:
            buckets.append(self._chats.setdefault(chat, TokenBucket(rate, now)))
        delay = max((each.delay(now) for each in buckets), default=0.0)
        if not delay:
            for each in buckets:
                each.take(now)
        return delay

    def forget_idle(self) -> None:
        now = self._clock()
        self._chats = {chat: bucket for chat, bucket in self._chats.items() if not bucket.is_full(now)}


class Sender:
    """Sends the messages of one platform. `run` is called once."""

    def __init__(
        self,
        db: async_db.AsyncSessionDB,
        platform: gateway_platform.Platform,
        clock: Callable[[], float],
        *,
        poll_seconds: float = 1.0,
        retry_seconds: float = 1.0,
        may_speak: gateway_platform.SenderCheck = gateway_context.is_always,
    ) -> None:
        self._db, self._platform, self._clock, self._may_speak = db, platform, clock, may_speak
        self._poll_seconds, self._retry_seconds = poll_seconds, retry_seconds
        self._can = gateway_platform.find_abilities(platform)
        self._owns = platform.owns if isinstance(platform, gateway_platform.OwnsConnections) else None
        self._exclusive = isinstance(platform, gateway_platform.OwnsConnections) and platform.exclusive
        pace = platform.pace if isinstance(platform, gateway_platform.Paced) else gateway_platform.Pace()
        self._pacer = Pacer(pace)
        self._woken = asyncio.Event()
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._ready: deque[types.Outgoing] = deque()
        """Due messages of the last poll that are not being sent yet."""
        self._again = set[str]()
        """Chats in `_sending` that may have another message due once theirs is sent."""
        self._leases: dict[str, tuple[types.ChatLease, float]] = {}
        self._unmarked: dict[int, str] = {}
        """Messages that were sent and not yet marked as delivered, with their external ids; they are not sent again."""
        self._skipped: dict[str, float] = {}
        """Chats that another process sends to, or that could not be sent to, and until when they are skipped."""

    def wake(self) -> None:
        """Look for due messages now."""
        self._woken.set()

    def _wake_after(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.wake)

    async def run(self) -> None:
        """Send until cancelled, then wait for the messages being sent."""
        with self._db.notifications.listen(self._on_hint):
            try:
                while True:
                    self._woken.clear()
                    if not self._ready:  # else nothing more could be started, and `_on_done` wakes this loop
                        await self._poll()
                    await gateway_context.wait_event(self._woken, self._poll_seconds)
            finally:
                await self._close()

    async def drain(self, seconds: float) -> None:
        """Wait until this process has no due message to send, or the time is over."""
        try:
            async with asyncio.timeout(seconds):
                while self._sending or await self._due():
                    self.wake()
                    await asyncio.sleep(DRAIN_POLL_SECONDS)
        except TimeoutError:
            logger.info("messages that could not be sent within %.0f s are left to the next process", seconds)
        except errors.HoldfastError as error:
            logger.warning("could not send all due messages: %s", error)

    async def _due(self) -> list[types.Outgoing]:
        """Return the due messages of this process; read more if those of other processes fill the list."""
        for limit in (MAX_READ, 100 * MAX_READ):
            found = await self._db.mail.due_outgoing(self._platform.name, limit, self._clock())
            own = [each for each in found if self._is_own(each)]
            if own or len(found) < limit:
                break
        return own

    def _is_own(self, outgoing: types.Outgoing) -> bool:
        try:
            return self._owns is None or self._owns(outgoing)
        except Exception:
            # The border to a platform: another process may be able to send the message.
            logger.exception("%s could not tell which process sends message %d", self._platform.name, outgoing.id)
            return False

    async def _poll(self) -> None:
        try:
            due = await self._due()
            await self._clean_up()
        except errors.HoldfastError as error:
            logger.warning("could not read the outbox of %s: %s", self._platform.name, error)
            return
        self._again.update(each.chat for each in due if each.chat in self._sending)
        self._ready = deque(each for each in due if each.chat not in self._sending)
        self._start_ready()

    def _start_ready(self) -> None:
        while self._ready and len(self._sending) < MAX_CONCURRENT:
            outgoing = self._ready.popleft()
            if outgoing.chat in self._sending or outgoing.chat in self._skipped:
                continue
            if delay := self._pacer.try_take(outgoing.chat):
                self._wake_after(delay)
                continue
            if outgoing.behind:
                self._again.add(outgoing.chat)
            task = self._sending[outgoing.chat] = asyncio.create_task(self._process(outgoing))
            task.add_done_callback(partial(self._on_done, outgoing.chat))

    def _on_done(self, chat: str, _: asyncio.Task[None]) -> None:
        del self._sending[chat]
        if self._owns is not None and chat in self._leases:
            # The next message to the chat may be another process's to send.
            self._leases[chat] = (self._leases[chat][0], 0.0)
        had_ready = bool(self._ready)
        self._start_ready()
        if chat in self._again or (had_ready and not self._ready):
            self._again.discard(chat)
            self.wake()

    async def _process(self, outgoing: types.Outgoing) -> None:
        """Send one message. Any error is logged and affects no other chat."""
        try:
            lease = await self._lease(outgoing.chat)
            began = self._clock()
            begun = await self._db.mail.begin_sending(lease, outgoing.id)
            fault_points.reach("gateway", "sending")
            if lease is not None and abs(self._clock() - began) > KEEP_SECONDS:
                raise errors.LeaseLost("The process was suspended; another one may have sent the message.")
            if begun is not None:
                with spans.span("holdfast.send", platform=begun.platform, outgoing=begun.id, attempts=begun.attempts):
                    await self._send(begun)
            return
        except (errors.Busy, errors.LeaseLost):
            self._leases.pop(outgoing.chat, None)
        except errors.SendRefused as error:
            await self._record_refusal(outgoing, error)
            return
        except errors.HoldfastError as error:
            logger.warning("%s will retry message %d: %s", self._platform.name, outgoing.id, error)
        except Exception:
            logger.exception("%s could not send message %d", self._platform.name, outgoing.id)
        self._skipped[outgoing.chat] = monotonic() + self._retry_seconds
        self._wake_after(self._retry_seconds)

    async def _send(self, outgoing: types.Outgoing) -> None:
        try:
            if outgoing.id not in self._unmarked:
                async with asyncio.timeout(gateway_platform.SEND_SECONDS):
                    self._unmarked[outgoing.id] = await self._deliver(outgoing)
                fault_points.reach("gateway", "sent")
        except errors.SendRefused as error:
            await self._record_refusal(outgoing, error)
        except errors.SendFailed as error:
            await self._record_failure(outgoing, str(error), error.retry_after)
        except errors.StoreError:
            raise
        except TimeoutError:
            await self._record_failure(outgoing, TIMED_OUT)
        except Exception as error:
            logger.exception("%s raised an unexpected error", self._platform.name)
            await self._record_failure(outgoing, type(error).__name__, max_attempts=MAX_UNEXPECTED)
        else:
            await self._db.mail.mark_delivered(outgoing.id, self._unmarked[outgoing.id])
            del self._unmarked[outgoing.id]

    async def _deliver(self, outgoing: types.Outgoing) -> str:
        if linked_chats.RECIPIENT in outgoing.address:
            outgoing = self._shorten(await access.check_copy(self._db, outgoing, self._may_speak, self._can.members))
        delivery = await self._build(await access.fill_code(self._db, outgoing))
        if delivery.question is not None and self._can.choices is not None:
            return await self._can.choices.send_question(delivery, delivery.question)
        if self._can.drafts is not None and not delivery.text:
            # A file cannot replace the draft; without files there is no reply.
            if delivery.draft is not None:
                await self._can.drafts.delete_draft(delivery.address, delivery.draft)
            if not delivery.files:
                return f"deleted-{outgoing.id}"
            delivery = msgspec.structs.replace(delivery, draft=None)
        try:
            if delivery.files and outgoing.attempts > MAX_SLOW_FILES and outgoing.error == TIMED_OUT:
                raise errors.SendRefused(TIMED_OUT)
            return await self._platform.send(delivery)
        except errors.SendRefused as error:
            if not delivery.files:
                raise
            logger.warning("%s refused the files of message %d: %s", self._platform.name, outgoing.id, error)
            return await self._platform.send(self._without_files(delivery, str(error)))

    def _shorten(self, copy: types.Outgoing) -> types.Outgoing:
        """Return the copy of a message as one message within the platform's limit."""
        measure = self._can.format.measure if self._can.format is not None else len
        end, limit = f"\n{linked_chats.SHORTENED.format(seq=copy.seq)}", self._platform.limit
        if measure(copy.text) <= limit:
            return copy
        return msgspec.structs.replace(copy, text=text_split.split(copy.text, limit - measure(end), measure)[0] + end)

    def _without_files(self, delivery: gateway_platform.Delivery, reason: str) -> gateway_platform.Delivery:
        """Return the message with a notice to the user in place of its files.

        A platform with separate files may have sent the text that an old message has besides its files: the notice
        neither repeats it nor replaces the draft that it may be in.
        """
        notice = NOT_SENT.format(
            names=", ".join(f"`{each.name}`" for each in delivery.files), reason=reason.rstrip(".")
        )
        rendered = self._can.format.render(notice) if self._can.format is not None else notice
        if self._can.separate_files:
            return msgspec.structs.replace(delivery, text=rendered, files=(), draft=None)
        text = "\n\n".join(filter(None, (delivery.text, rendered)))
        return msgspec.structs.replace(delivery, text=text, files=())

    async def _build(self, outgoing: types.Outgoing) -> gateway_platform.Delivery:
        """Add to a message what the platform needs to send it."""
        fields = {name: getattr(outgoing, name) for name in outgoing.__struct_fields__}
        if self._can.format is not None and outgoing.text:
            fields["text"] = self._can.format.render(outgoing.text)
        is_draft = (outgoing.key or "").startswith(DRAFT)
        draft = None
        if self._can.drafts is not None and outgoing.inbound_id is not None and outgoing.part == 0:
            draft = await find_draft(self._db, outgoing.inbound_id)
        found = [await self._file(digest, outgoing.file_names.get(digest)) for digest in outgoing.attachments]
        return gateway_platform.Delivery(
            **fields,
            files=tuple(each for each in found if each is not None),
            question=questions.question_of(outgoing.key) if self._can.choices is not None else None,
            draft=draft.external if draft is not None else None,
            is_draft=is_draft,
        )

    async def _file(self, digest: str, name: str | None) -> gateway_platform.OutgoingFile | None:
        blob = await self._db.blobs.get(digest)
        if blob is None:
            return None
        name = name or f"{digest[:12]}{mimetypes.guess_extension(blob.media_type) or ''}"

        def read() -> bytes:
            try:
                with self._db.db.blobs.open(digest) as content:
                    return content.read()
            except (errors.BlobDamaged, errors.NotFound) as error:
                raise errors.SendRefused("The stored file is missing or damaged.") from error

        return gateway_platform.OutgoingFile(name, blob.media_type, blob.size, digest, partial(self._db.run, read))

    async def _record_refusal(self, outgoing: types.Outgoing, error: errors.SendRefused) -> None:
        logger.warning("%s refused message %d for good: %s", self._platform.name, outgoing.id, error)
        await self._db.mail.mark_failed(outgoing.id, str(error))

    async def _record_failure(
        self,
        outgoing: types.Outgoing,
        reason: str,
        retry_after: float | None = None,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        retry = outgoing.attempts < max_attempts
        if not retry:
            logger.error(
                "%s gives up message %d after %d attempts: %s", self._platform.name, outgoing.id, max_attempts, reason
            )
        delay = retry_delay(outgoing.attempts, retry_after, self._retry_seconds)
        await self._db.mail.mark_failed(outgoing.id, reason, self._clock() + delay if retry else None)
        self._wake_after(delay)

    async def _lease(self, chat: str) -> types.ChatLease | None:
        """Return the lease on a chat, or None if no other process can send to it; Busy if another process holds it."""
        if self._exclusive:
            return None
        known = self._leases.get(chat)
        if known is not None and monotonic() < known[1]:
            return known[0]
        if known is not None:
            await self._release(chat)
        until = monotonic() + KEEP_SECONDS
        lease = await self._db.mail.acquire_chat_lease(f"out:{self._platform.name}:{chat}", LEASE_SECONDS)
        self._leases[chat] = (lease, until)
        return lease

    async def _clean_up(self) -> None:
        now = monotonic()
        self._pacer.forget_idle()
        self._skipped = {chat: until for chat, until in self._skipped.items() if until > now}
        over = [chat for chat, (_, until) in self._leases.items() if until <= now and chat not in self._sending]
        await asyncio.gather(*(self._release(chat) for chat in over))

    async def _release(self, chat: str) -> None:
        lease, _ = self._leases.pop(chat)
        await chat_leases.release(self._db, lease)

    async def _close(self) -> None:
        if self._sending:
            await asyncio.wait(list(self._sending.values()), timeout=gateway_platform.SEND_SECONDS)
        await asyncio.gather(*(self._release(chat) for chat in list(self._leases)))

    def _on_hint(self, hint: notifications.Hint) -> None:
        if hint.kind == "lost" or (hint.kind == "outgoing" and hint.conversation_id == self._platform.name):
            self.wake()
