"""Pictures: told from other files by what is in them, and only those that hold together are shown to a model."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import content_parts, types
from holdfast.model import base
from holdfast.model.anthropic import request as anthropic_request
from holdfast.model.openai import request as openai_request
from holdfast.store import message_codec
from holdfast.tools.files import images, read
from tests.support import file_tools


def chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def png(width: int = 2, height: int = 1) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\1\2")) + chunk(b"IEND", b"")


JPEG = (
    b"\xff\xd8\xff\xe0\x00\x04JF" + b"\xff\xc0\x00\x0b\x08" + struct.pack(">HH", 3, 4) + b"\x01\x01\x11\x00"
    b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00" + b"data" + b"\xff\xd9"
)
GIF = b"GIF89a" + struct.pack("<HH", 5, 6) + b"\0\0\0" + b",\0\0\0\0\5\0\6\0\0\2\2D\1\0" + b";"
VP8L = b"VP8L" + struct.pack("<I", 8) + b"\x2f" + struct.pack("<I", 6 | 8 << 14) + b"\0\0\0"
WEBP = b"RIFF" + struct.pack("<I", 4 + len(VP8L)) + b"WEBP" + VP8L

KINDS = {"image/png": (png(), 2, 1), "image/jpeg": (JPEG, 4, 3), "image/gif": (GIF, 5, 6), "image/webp": (WEBP, 7, 9)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_is_shown_to_the_model(tmp_path: Path, kind: str) -> None:
    data, width, height = KINDS[kind]
    (tmp_path / "shot").write_bytes(data)
    result = file_tools.Doing(tmp_path)("read_file", path="shot")
    told, image = content_parts.parse(result.content)
    assert told == content_parts.Text(f"[shot: {kind}, {width} x {height}, {len(data)} bytes]")
    assert image == content_parts.Image(media_type=kind, data=base64.b64encode(data).decode())


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_picture_is_never_shown(tmp_path: Path, kind: str) -> None:
    data, _, _ = KINDS[kind]
    assert images.read(data)
    for cut in range(len(data) - 1):
        assert images.read(data[:cut]) is None, cut
    (tmp_path / "shot").write_bytes(data[: len(data) // 2])
    result = file_tools.Doing(tmp_path)("read_file", path="shot")
    assert "image" not in {part.get("type") for part in result.content if isinstance(part, dict)}


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=60))
def test_for_any_bytes_behind_a_beginning_nothing_breaks(kind: str, data: bytes) -> None:
    images.read(KINDS[kind][0][:12] + data)


def test_a_flipped_bit_of_a_png_is_found() -> None:
    data = bytearray(png())
    data[20] ^= 1
    assert images.read(bytes(data)) is None


def test_a_picture_that_is_too_large_is_told(tmp_path: Path) -> None:
    (tmp_path / "wide.png").write_bytes(png(read.MAX_IMAGE_SIDE + 1))
    (tmp_path / "long.png").write_bytes(png() + b"\0" * read.MAX_IMAGE_BYTES)
    do = file_tools.Doing(tmp_path)
    for name, told in (("wide.png", "8001 x 1"), ("long.png", "limit is 3,500,000")):
        result = do("read_file", path=name)
        assert not result.ok
        assert told in str(result.content)


def messages(content: types.Content) -> tuple[types.Message, ...]:
    call = types.ToolCall("c1", "read_file", '{"path": "shot"}')
    bodies_of: list[tuple[Any, ...]] = [
        ("user", "look", (), None),
        ("assistant", "", (call,), None),
        ("tool", content, (), "c1"),
    ]
    return tuple(
        types.Message(
            number, f"u{number}", "s", role, 0.0, message_codec.encode(said, calls, call_id, None, types.Usage())
        )
        for number, (role, said, calls, call_id) in enumerate(bodies_of, 1)
    )


def test_both_kinds_of_provider_are_sent_the_picture_of_a_result(tmp_path: Path) -> None:
    (tmp_path / "shot").write_bytes(png())
    content = file_tools.Doing(tmp_path)("read_file", path="shot").content
    data = base64.b64encode(png()).decode()
    request = base.Request(messages=messages(content), system="", tools=())
    one = msgspec.json.decode(msgspec.json.encode(anthropic_request.build(request, model="m", max_output=9)))
    (result,) = one["messages"][-1]["content"]
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    assert result["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": data}
    dialect = openai_request.Dialect(provider="p")
    other = msgspec.json.decode(msgspec.json.encode(openai_request.build(request, dialect, model="m")))
    *_, told, shown = other["messages"]
    assert told["role"] == "tool"
    assert told["content"].startswith("[shot: image/png")
    assert shown["content"][-1] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
