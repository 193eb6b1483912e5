"""Pictures that a client sends along with a prompt: checked when they come, kept when they are said."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import UNSET

from holdfast import errors, types
from holdfast.rpc_server import wire_types
from holdfast.store import async_db
from holdfast.tools.files import images

MOST, LARGEST = 8, 5_000_000
"""Pictures of one prompt; bytes of one of them."""


class Picture(NamedTuple):
    """One that holds together."""

    media_type: str
    data: bytes


def read(images: Sequence[wire_types.Image]) -> list[Picture]:
    """What was sent. A provider that is sent something broken refuses the whole conversation, so it is refused here."""
    return [_picture(number, image) for number, image in enumerate(images, 1)]


def given(options: wire_types.Options) -> list[Picture] | None:
    """What is to be attached from now on; None where that stays as it is."""
    return None if options.images is UNSET else read(options.images)


async def content(db: async_db.AsyncSessionDB, text: str, attached: Sequence[Picture]) -> types.Content | None:
    """The message with its parts; None where it is only text."""
    if not attached:
        return None
    blobs = [await db.blobs.put(each.data, each.media_type) for each in attached]
    shown: list[dict[str, Any]] = [
        {"type": "image", "media_type": each.media_type, "blob": blob.digest}
        for each, blob in zip(attached, blobs, strict=True)
    ]
    return [{"type": "text", "text": text}, *shown] if text else shown


def _picture(number: int, image: wire_types.Image) -> Picture:
    try:
        data = base64.b64decode(image.data, validate=True)
    except (binascii.Error, ValueError):
        raise errors.RpcRefused(wire_types.INVALID, f"Image {number} is not base64.") from None
    if len(data) > LARGEST:
        raise errors.RpcRefused(wire_types.INVALID, f"Image {number} has more than {LARGEST:,} bytes.")
    found = images.read(data)
    if found is None:
        raise errors.RpcRefused(wire_types.INVALID, f"Image {number} is no PNG, JPEG, GIF or WebP, or a broken one.")
    return Picture(found.media_type, data)
