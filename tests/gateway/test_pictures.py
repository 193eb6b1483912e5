"""Who reads text only is given the pictures of an answer, or told of them."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from holdfast import AsyncSessionDB, types
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import routes
from holdfast.gateway.platforms.http import http_platform, inline_images
from tests.support import http_gateway

PIXEL = b"\x89PNG not really"
SHOWN = f"![Image](data:image/png;base64,{base64.b64encode(PIXEL).decode()})"


@pytest.mark.parametrize(
    ("size", "kind", "wanted"),
    [
        (inline_images.MAX_EMBEDDED, "image/png", "![Image](data:image/png;base64,"),
        (
            inline_images.MAX_EMBEDDED + 1,
            "image/png",
            "[Image, image/png, 262,145 bytes: see the conversation.]",
        ),
        (1, "image/svg+xml", "![Image](data:image/svg+xml;base64,"),
        (1, "text/html", "[Image, unknown type, 1 bytes: see the conversation.]"),
    ],
)
async def test_a_small_one_stands_in_the_text_and_of_a_large_one_it_is_said(
    size: int, kind: str, wanted: str, db: AsyncSessionDB
) -> None:
    blob = await db.blobs.put(b"x" * size, kind)
    assert (await inline_images.render_all(db, [blob.digest])).startswith(wanted)


async def test_one_that_is_gone_is_said_to_be(db: AsyncSessionDB) -> None:
    assert await inline_images.render_all(db, ["0" * 64]) == inline_images.MISSING
    assert await inline_images.render_all(db, []) == ""


class Draws:
    """A door behind which everybody is answered with a picture at once."""

    def __init__(self, db: AsyncSessionDB, text: str) -> None:
        self._db, self._text = db, text

    async def came(self, came: gateway_platform.Incoming) -> types.InboundMessage | None:
        raise NotImplementedError

    async def submit(self, came: gateway_platform.Incoming) -> types.InboundMessage | gateway_platform.AdmissionResult:
        blob = await self._db.blobs.put(PIXEL, "image/png")
        place: dict[str, Any] = {"platform": came.platform, "chat": routes.chat_of(came), "address": came.address}
        new = types.NewInboundMessage(key=came.key, route="r", sender=came.sender, text=came.text, **place)
        arrival, _ = await self._db.mail.add_inbound(new)
        reply = types.NewOutgoing(text=self._text, attachments=[blob.digest], **place)
        await self._db.mail.settle_inbound(None, arrival.id, "answered", outgoing=[reply])
        return arrival


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", ["A dot.", ""])
async def test_an_answer_over_http_has_its_pictures(text: str, stream: bool, db: AsyncSessionDB) -> None:
    platform = http_platform.HttpPlatform(db, tokens=http_gateway.TOKENS)
    running = asyncio.create_task(platform.run(Draws(db, text)))
    await platform.wait_ready()
    body = {"model": "holdfast", "messages": [{"role": "user", "content": "Draw a dot"}], "stream": stream}
    async with http_gateway.client_of(platform) as client:
        answered = await client.post(http_gateway.PATH, json=body, headers=dict(http_gateway.ANN))
        found = http_gateway.said_in(http_gateway.chunks(answered.text)) if stream else http_gateway.text_of(answered)
    running.cancel()
    await asyncio.wait([running])
    assert found == (f"{text}\n\n{SHOWN}" if text else SHOWN)
