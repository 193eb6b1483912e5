"""Servers that are addresses: what they send is bounded, and what goes wrong with a call is not the end of them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import errors
from holdfast.tools.mcp import servers
from tests.support import mcp_http_server, mcp_servers, polling


@pytest.mark.parametrize(
    ("tool", "told"),
    [("flood", "web sent an answer of more than 16"), ("bomb", "web sent an answer of more"), ("stream", "stopped")],
)
async def test_an_answer_that_is_too_long_is_not_taken_in(tool: str, told: str) -> None:
    with mcp_http_server.serving() as there:
        async with mcp_servers.running(mcp_http_server.wanted(there)) as all_of_them:
            with pytest.raises(errors.ToolFailed, match=told):
                await mcp_servers.call(all_of_them, f"web__{tool}")
            # What it could send is what we read, and what the system holds on the way.
            assert there.sent < mcp_http_server.FLOOD / 2
            assert await mcp_servers.call(all_of_them, "web__ok") == "fine"
            assert tool == "stream" or there.began == 1


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
async def test_a_status_is_the_end_of_a_call_and_never_of_the_server(status: int) -> None:
    with mcp_http_server.serving() as there:
        there.status = status
        async with mcp_servers.running(mcp_http_server.wanted(there)) as all_of_them:
            for _ in range(servers.MAX_ENDS + 1):
                # By the protocol, 404 says that the session is over.
                told = "connects again" if status == 404 else f"refused: HTTP status {status}"
                with pytest.raises(errors.ToolFailed, match=told):
                    await mcp_servers.call(all_of_them, "web__status")
            assert await mcp_servers.call(all_of_them, "web__ok") == "fine"
            assert status == 404 or there.began == 1


async def test_a_refusal_is_told_in_the_words_of_the_server_and_ends_nothing() -> None:
    with mcp_http_server.serving() as there:
        async with mcp_servers.running(mcp_http_server.wanted(there)) as all_of_them:
            for _ in range(servers.MAX_ENDS + 1):
                with pytest.raises(errors.ToolFailed, match="refused: not so"):
                    await mcp_servers.call(all_of_them, "web__refuse")
            assert await mcp_servers.call(all_of_them, "web__ok") == "fine"
            assert there.began == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, None),
        (404, {"error": {"code": -32600, "message": "Not here"}}),
        (400, {"error": {"code": -32000, "message": "Bad Request: No valid session ID provided"}}),
    ],
)
async def test_a_server_that_forgot_us_is_connected_to_again_however_often(status: int, body: Any) -> None:
    with mcp_http_server.serving() as there:
        async with mcp_servers.running(mcp_http_server.wanted(there)) as all_of_them:
            for _ in range(servers.MAX_ENDS + 1):
                assert await mcp_servers.call(all_of_them, "web__ok") == "fine"
                there.forget(status, body)
                with pytest.raises(errors.ToolFailed, match="does not know us any more"):
                    await mcp_servers.call(all_of_them, "web__ok")
            assert await mcp_servers.call(all_of_them, "web__ok") == "fine"


async def test_an_address_that_cannot_be_reached_is_left_alone_for_a_while() -> None:
    with mcp_http_server.serving() as there:
        wanted = mcp_http_server.wanted(there)
    async with mcp_servers.running(wanted) as all_of_them:
        one = all_of_them.servers[0]
        for _ in range(servers.MAX_ENDS):
            await polling.until_async(lambda: one.state == "down")
            with pytest.raises(errors.ToolFailed, match=r"connection failed"):
                await one.connect()
        with pytest.raises(errors.ToolFailed, match="left alone for a while"):
            await one.connect()
