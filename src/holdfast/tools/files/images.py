"""Media type and size of images.

A provider that is sent a damaged image refuses the whole conversation from then on. So only complete images count:
the right signature, a valid size, a proper end.
"""

from __future__ import annotations

import struct
import zlib

import msgspec

_PNG = b"\x89PNG\r\n\x1a\n"
_NO_SIZE = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_MAX_SECTIONS = 20_000
"""More chunks or segments than an image of 50 MB needs. A crafted one with millions would block the event loop."""


MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")

MAX_BYTES, MAX_SIDE = 3_500_000, 8_000
"""The largest image that every provider accepts: Anthropic's limit of 5 MB applies to base64."""
NOT_SENDABLE = f"it is not a PNG, JPEG, GIF or WebP image of at most {MAX_BYTES:,} bytes and {MAX_SIDE:,} pixels a side"


class ImageInfo(msgspec.Struct, frozen=True):
    """Describes a complete image."""

    media_type: str
    width: int
    height: int


def media_type(beginning: bytes) -> str | None:
    """Return the media type by the first 12 bytes; None if they are not of an image."""
    if beginning.startswith(_PNG):
        return "image/png"
    if beginning.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if beginning.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP" else None


def read(data: bytes) -> ImageInfo | None:
    """Return type and size of an image; None if it is damaged or not an image."""
    kind = media_type(data)
    if kind is None:
        return None
    try:
        width, height = _SIZES[kind](data)
    except (struct.error, IndexError, ValueError):
        return None
    return ImageInfo(kind, width, height) if width > 0 and height > 0 else None


def read_sendable(data: bytes) -> ImageInfo | None:
    """Return type and size of an image that every provider accepts; None for other data."""
    image = read(data) if len(data) <= MAX_BYTES else None
    return image if image is not None and max(image.width, image.height) <= MAX_SIDE else None


def _png(data: bytes) -> tuple[int, int]:
    at, size, pixels = len(_PNG), (0, 0), False
    for _ in range(_MAX_SECTIONS):
        length, name = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", data, at + 8 + length)
        if zlib.crc32(body, zlib.crc32(name)) != check:
            raise ValueError
        if name == b"IHDR":
            size = struct.unpack_from(">II", body)
        pixels = pixels or name == b"IDAT"
        if name == b"IEND":
            return size if pixels else (0, 0)
        at += 12 + length
    raise ValueError


def _jpeg(data: bytes) -> tuple[int, int]:
    at, size = 2, (0, 0)
    for _ in range(_MAX_SECTIONS):
        mark, code = data[at], data[at + 1]
        if mark != 0xFF:
            raise ValueError
        if code == 0xFF:  # A fill byte.
            at += 1
            continue
        if code == 0xDA:
            return size if data.rfind(b"\xff\xd9", at) > at else (0, 0)
        if code in _NO_SIZE:
            at += 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if code in _FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            size = (width, height)
        at += 2 + length
    raise ValueError


def _gif(data: bytes) -> tuple[int, int]:
    width, height = struct.unpack_from("<HH", data, 6)
    return (width, height) if data.rstrip(b"\0").endswith(b";") and b"," in data[13:] else (0, 0)


def _webp(data: bytes) -> tuple[int, int]:
    (length,) = struct.unpack_from("<I", data, 4)
    if len(data) < length + 8:
        raise ValueError
    name = data[12:16]
    if name == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") + 1 for at in (24, 27))
    elif name == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif name == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        raise ValueError
    return width, height


_SIZES = {"image/png": _png, "image/jpeg": _jpeg, "image/gif": _gif, "image/webp": _webp}
