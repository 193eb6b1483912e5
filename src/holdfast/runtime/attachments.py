"""Images of messages: validated when a client sends them, stored as blobs, loaded again for clients that show them."""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast import content_parts, errors, types
from holdfast.rpc import frames
from holdfast.store import async_db, db
from holdfast.tools.files import images

logger = logging.getLogger("holdfast.runtime")

MAX_IMAGES = 8
"""Images of one prompt."""


class ImageData(NamedTuple):
    """A validated image."""

    media_type: str
    data: bytes


class EncodedImage(NamedTuple):
    """An image of a stored message, in base64."""

    media_type: str
    data: str


def decode_image(encoded: str, name: str) -> ImageData:
    """Decode and validate an image; `name` is its name in error messages.

    Raises RpcRefused. Providers reject a whole conversation that contains a broken image, so it is refused here.
    """
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise errors.RpcRefused(frames.INVALID_PARAMS, f"{name} is not valid base64.") from None
    found = images.read_sendable(data)
    if found is None:
        raise errors.RpcRefused(frames.INVALID_PARAMS, f"{name} cannot be sent: {images.NOT_SENDABLE}.")
    return ImageData(found.media_type, data)


def check_count(count: int) -> None:
    """Raise RpcRefused if a prompt has too many images."""
    if count > MAX_IMAGES:
        raise errors.RpcRefused(frames.INVALID_PARAMS, f"A prompt can have at most {MAX_IMAGES} images.")


async def store_image(store: async_db.AsyncSessionDB, image: ImageData) -> dict[str, Any]:
    """Store an image as a blob and return the message part that refers to it."""
    blob = await store.blobs.put(image.data, image.media_type)
    return {"type": "image", "media_type": image.media_type, "blob": blob.digest}


async def load_images(store: async_db.AsyncSessionDB, message: types.Message) -> Sequence[EncodedImage]:
    """Return the images that a person sent with a message. Images that are too large or unreadable are left out."""
    if message.role != "user":
        return ()
    try:
        parts = content_parts.parse(message.content)
    except errors.StoreCorrupt:
        return ()  # Reported when the text of the message is rendered.
    found = list[EncodedImage]()
    for part in parts:
        if isinstance(part, content_parts.Image) and part.media_type.startswith("image/"):
            data = part.data or (await store.run(partial(_load, store.db, part.blob)) if part.blob else "")
            if data:
                found.append(EncodedImage(part.media_type, data))
    return found


def _load(store: db.SessionDB, digest: str) -> str:
    try:
        blob = store.blobs.get(digest)
        if blob is None or blob.size > images.MAX_BYTES:
            return ""
        with store.blobs.open(digest) as content:
            return base64.b64encode(content.read()).decode()
    except (errors.HoldfastError, OSError) as error:
        logger.warning("an image could not be loaded: %s", error)
        return ""
