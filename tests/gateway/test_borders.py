"""Borders of the HTTP door: who is refused writes nothing, and where a request ends and whom it is for is one thing."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import AsyncSessionDB
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings as said
from holdfast.gateway.platforms.http import http_platform, requests
from holdfast.model import ScriptedModel
from tests.support import http_gateway

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


async def refuses(came: gateway_platform.Incoming, _route: str) -> gateway_platform.AdmissionResult:
    return gateway_platform.AdmissionResult(came.sender != "bob")


async def test_who_is_refused_writes_nothing_not_even_what_was_said_before(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["Hello!"]), checks=[refuses]) as open_:
        body = {
            "model": "holdfast",
            "user": "x",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "BOBWROTE"}, PICTURE]},
                {"role": "assistant", "content": "Yes."},
                {"role": "user", "content": "And?"},
            ],
        }
        refused = await open_.client.post(http_gateway.PATH, json=body, headers=dict(http_gateway.BOB))
        assert refused.status_code == 403
        assert await db.list_sessions() == []
        assert await db.run(lambda: db.db.driver.read(lambda tx: tx.all("blobs_all"))) == []
        assert await db.routes() == []
        # The same of somebody who is let in is written.
        assert (
            http_gateway.text_of(await open_.client.post(http_gateway.PATH, json=body, headers=dict(http_gateway.ANN)))
            == "Hello!"
        )
        (only,) = await db.list_sessions()
        assert "BOBWROTE" in str([each.content for each in await db.transcript(only.id)])


async def test_who_is_refused_binds_no_chat_to_a_conversation_of_theirs(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="http", owner="http:bob")
    async with http_gateway.open_web(db, ScriptedModel(), checks=[refuses]) as open_:
        headers = {**http_gateway.BOB, "x-conversation-id": "talk"}
        assert (await open_.ask("Hi", headers=headers)).status_code == 403
        assert (await db.route("agent:main:http:dm:bob:talk")).conversation_id is None


async def told(address: str, sent: bytes) -> bytes:
    """All that is answered until the connection is closed."""
    host, _, number = address.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(number))
    try:
        writer.write(sent)
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: gzip, chunked",
    ],
)
async def test_a_request_that_ends_in_two_places_is_refused_and_nothing_after_it_is_read(
    head: bytes, db: AsyncSessionDB
) -> None:
    async with http_platform.HttpPlatform(db, said.Http(port=0)).serve() as address:
        first = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n0\r\n\r\n"
        found = await told(address, first + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert found.split(b" ")[1] in (b"400", b"501")
        assert found.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "LOCALHOST", "127.0.0.2"])
async def test_names_that_others_point_here_are_refused_by_where_it_listens_and_not_by_what_that_is_called(
    host: str, db: AsyncSessionDB
) -> None:
    async with http_platform.HttpPlatform(db, said.Http(host=host, port=0)).serve() as address:
        asked = b"GET /v1/models HTTP/1.1\r\nConnection: close\r\nHost: "
        assert (await told(address, asked + b"evil.example\r\n\r\n")).split(b" ")[1] == b"421"
        for name in (host.encode(), b"localhost", b"127.0.0.1:8642"):
            assert (await told(address, asked + name + b"\r\n\r\n")).split(b" ")[1] == b"200"


def test_at_an_address_that_others_reach_any_name_may_be_meant() -> None:
    assert requests.served_hosts("0.0.0.0", "0.0.0.0") is None
    assert requests.served_hosts("::1", "::1") == requests.LOCAL_HOSTS
