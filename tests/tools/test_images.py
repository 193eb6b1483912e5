"""Images are recognised by their content, and only whole ones are shown to a model."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import content_parts, types
from holdfast.model import base
from holdfast.model.anthropic import request as anthropic_request
from holdfast.model.openai import request as openai_request
from holdfast.tools.files import images, read
from tests.support import messages
from tests.support.file_tools import FileTools


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
def test_image_is_shown_to_the_model(tmp_path: Path, kind: str) -> None:
    data, width, height = KINDS[kind]
    (tmp_path / "shot").write_bytes(data)
    result = FileTools(tmp_path)("read_file", path="shot")
    told, image = content_parts.parse(result.content)
    assert told == content_parts.Text(f"[shot: {kind}, {width} x {height}, {len(data)} bytes]")
    assert image == content_parts.Image(media_type=kind, data=base64.b64encode(data).decode())


@pytest.mark.parametrize("kind", KINDS)
def test_broken_image_is_never_shown(tmp_path: Path, kind: str) -> None:
    data, _, _ = KINDS[kind]
    assert images.read(data)
    for cut in range(len(data) - 1):
        assert images.read(data[:cut]) is None, cut
    (tmp_path / "shot").write_bytes(data[: len(data) // 2])
    result = FileTools(tmp_path)("read_file", path="shot")
    flipped = bytearray(png())
    flipped[20] ^= 1
    assert images.read(bytes(flipped)) is None
    assert "image" not in {part.get("type") for part in result.content if isinstance(part, dict)}


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=60))
def test_any_bytes_after_a_header_are_refused(kind: str, data: bytes) -> None:
    found = images.read(KINDS[kind][0][:12] + data)
    assert found is None or found.media_type == kind


def test_large_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wide.png").write_bytes(png(read.MAX_IMAGE_SIDE + 1))
    (tmp_path / "long.png").write_bytes(png() + b"\0" * read.MAX_IMAGE_BYTES)
    tools = FileTools(tmp_path)
    for name, told in (("wide.png", "8001 x 1"), ("long.png", "limit is 3,500,000")):
        result = tools("read_file", path=name)
        assert not result.ok
        assert told in str(result.content)


def result_request(content: types.Content) -> base.Request:
    """Return a request in which a tool has returned this content."""
    call = types.ToolCall("c1", "read_file", '{"path": "shot"}')
    history = (
        messages.message(1, "user", "look"),
        messages.message(2, "assistant", tool_calls=(call,)),
        messages.message(3, "tool", content, tool_call_id="c1"),
    )
    return base.Request(messages=history, system="", tools=())


def test_both_providers_are_sent_the_image_of_a_result(tmp_path: Path) -> None:
    (tmp_path / "shot").write_bytes(png())
    content = FileTools(tmp_path)("read_file", path="shot").content
    data = base64.b64encode(png()).decode()
    request = result_request(content)
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
