"""Images in model requests: the log refers to them as blobs, a request contains their bytes.

The newest images are sent, within limits that all providers accept. A text replaces each of the others, and says why.
"""

from __future__ import annotations

import base64
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast import errors, events, safe_text, types
from holdfast.store import async_db, db, message_codec
from holdfast.tools.files import images

logger = logging.getLogger("holdfast.agent")

MAX_IMAGES = 20
"""Images of one request; Anthropic refuses large images if there are more."""
MAX_TOTAL = 20_000_000
"""Characters of the encoded images of one request."""
GROUP = 10
"""Older images are left out in groups of this size, so that the provider's prompt cache is seldom invalidated."""
CACHE_SIZE = 32_000_000
"""Characters of encoded images that this process keeps for the next requests."""

OLDER = f"only the newest images are sent, at most {MAX_IMAGES} and {MAX_TOTAL // 1_000_000} MB"
UNAVAILABLE = "it is no longer stored"
REFUSED = "the model or its provider refused it"

Emit = Callable[[events.AnyEvent], None]


class ImageKey(NamedTuple):
    """An image of the context: its message, and its place in the content."""

    uid: str
    place: int


class MessageCache:
    """Messages with encoded images, the latest used, up to a total size. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit, self._size, self._lock = limit, 0, threading.Lock()
        self._entries: OrderedDict[Any, types.Message] = OrderedDict()

    def get(self, key: Any) -> types.Message | None:
        with self._lock:
            if (found := self._entries.get(key)) is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: Any, message: types.Message) -> None:
        with self._lock:
            if key not in self._entries:
                self._entries[key] = message
                self._size += len(message.body)
            while self._size > self._limit:
                self._size -= len(self._entries.popitem(last=False)[1].body)


_cache = MessageCache(CACHE_SIZE)


class RequestImages:
    """Puts the images of one conversation into requests."""

    def __init__(self, store: async_db.AsyncSessionDB) -> None:
        self._db = store
        self.sent: frozenset[ImageKey] = frozenset()
        """The images of the last request."""
        self.refused: frozenset[ImageKey] = frozenset()
        """Images that the provider refused: they are not sent again."""
        self._reported = set[ImageKey]()

    async def load(self, messages: Sequence[types.Message], turn: str, emit: Emit) -> Sequence[types.Message]:
        """Return the messages with the bytes of their images, and report those that are left out, once.

        `turn` is the uid of the message that began the turn.
        """
        with_images = {message.uid: at for at, message in enumerate(messages) if _places(message)}
        keys = [ImageKey(uid, place) for uid, at in with_images.items() for place in _places(messages[at])]
        left_out = await self._choose(keys, {uid: messages[at] for uid, at in with_images.items()})
        self.sent = frozenset(keys) - left_out.keys()
        if not keys:
            return messages
        loaded = list(messages)
        for uid, at in with_images.items():
            own = {key.place: why for key, why in left_out.items() if key.uid == uid}
            loaded[at] = await self._load(messages[at], own)
        began = next((at for at, message in enumerate(messages) if message.uid == turn), len(messages))
        self._report(left_out, {message.uid for message in messages[began:]}, emit)
        return loaded

    async def _choose(self, keys: Sequence[ImageKey], messages: Mapping[str, types.Message]) -> dict[ImageKey, str]:
        """Return the images that are left out, with the reasons."""
        left_out, chars_left = dict[ImageKey, str](), MAX_TOTAL
        first = -(-max(0, len(keys) - MAX_IMAGES) // GROUP) * GROUP
        for number, key in reversed([*enumerate(keys)]):
            if key in self.refused:
                left_out[key] = REFUSED
            elif number < first or chars_left < 0:
                left_out[key] = OLDER
            elif isinstance(size := await self._measure(messages[key.uid], key.place), str):
                left_out[key] = size
            elif (chars_left := chars_left - size) < 0:
                left_out[key] = OLDER
        return left_out

    async def _measure(self, message: types.Message, place: int) -> int | str:
        """Return the size of an encoded image, or why it cannot be sent. Cached in the message."""
        known: dict[int, int | str] = message.__dict__.setdefault("_image_sizes", {})
        found = known.get(place)
        if found is None:
            part: Any = message.content[place]
            image = await self._db.run(partial(_encode, self._db.db, part))
            found = image if isinstance(image, str) else len(image.get("data", ""))
            if found != UNAVAILABLE:
                known[place] = found
        return found

    async def _load(self, message: types.Message, left_out: Mapping[int, str]) -> types.Message:
        key = (message, tuple(left_out.items()))
        loaded = _cache.get(key)
        if loaded is None:
            loaded = await self._db.run(partial(_build, self._db.db, message, left_out))
            _cache.put(key, loaded)
        return loaded

    def _report(self, left_out: Mapping[ImageKey, str], turn_uids: set[str], emit: Emit) -> None:
        unreported = sorted((why, key.uid in turn_uids) for key, why in left_out.items() if key not in self._reported)
        self._reported.update(left_out)
        for (why, is_own), group in itertools.groupby(unreported):
            number = len(list(group))
            verb = "was" if number == 1 else "were"
            text = f"{safe_text.count(number, 'image')} {verb} not sent to the model: {why}."
            emit(events.Notice(text, "warning", to_chats=is_own))


def _places(message: types.Message) -> Sequence[int]:
    """Return the places of images in the content of a message of the user or of a tool. Cached in the message."""
    found: Sequence[int] | None = message.__dict__.get("_image_places")
    if found is None:
        content = message.content if message.role in ("user", "tool") else ""
        parts = content if isinstance(content, list) else []
        found = tuple(place for place, part in enumerate(parts) if part.get("type") == "image")
        message.__dict__["_image_places"] = found
    return found


def _build(store: db.SessionDB, message: types.Message, left_out: Mapping[int, str]) -> types.Message:
    parts = [part for part in message.content if isinstance(part, dict)]
    for place in _places(message):
        image = left_out.get(place) or _encode(store, parts[place])
        if isinstance(image, str):
            image = {"type": "text", "text": f"[An image is left out: {image}.]"}
        parts[place] = image
    return msgspec.structs.replace(message, body=message_codec.encode_synthetic(parts, message.tool_call_id))


def _encode(store: db.SessionDB, part: dict[str, Any]) -> dict[str, Any] | str:
    """Return an image part with bytes or a URL, or why there is none."""
    if not part.get("blob"):
        return part
    try:
        with store.blobs.open(part["blob"]) as content:
            data = content.read(images.MAX_BYTES + 1)
    except (errors.HoldfastError, OSError) as error:
        logger.warning("an image could not be loaded: %s", error)
        return UNAVAILABLE
    image = images.read_sendable(data)
    if image is None:
        return images.NOT_SENDABLE
    return {"type": "image", "media_type": image.media_type, "data": base64.b64encode(data).decode()}
