"""Compactions that a client requests: their results, what stops them, and requests that run meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.support import rpc_client
from tests.support.compaction import FakeSummarizer, blocked_summary, fill

OVER_SOFT = 50
"""Exchanges beyond the soft threshold."""
STOPPED = "The compaction was stopped."
METHODS: dict[str, dict[str, Any]] = {
    "session.compress": {"session_id": "talk"},
    "command.exec": {"session_id": "talk", "line": "/compact"},
}


async def test_compaction_reports_its_outcome_and_every_client_is_informed() -> None:
    async with rpc_client.connect(summarizer=FakeSummarizer()) as (server, client):
        other = await server.connect()
        await fill(server.db, OVER_SOFT)
        for each in (client, other):
            await each.call("session.resume", session_id="talk")
        made = await client.call("session.compress", session_id="talk", focus="pier 3", keep_exchanges=3)
        assert (made["outcome"], made["cut_seq"], made["after"] < made["before"]) == ("compacted", 94, True)
        for each in (client, other):
            assert (await each.wait_for("status", kind="compacted"))["session_id"] == made["session_id"]
        assert (await client.call("session.info", session_id="talk"))["compacted_to"] == 94
        again = await client.call("session.compress", session_id="talk", keep_exchanges=3)
        assert (again["outcome"], again["session_id"]) == ("nothing_to_do", made["session_id"])


@pytest.mark.parametrize("stop", ["session.interrupt", "/stop", "$/cancelRequest", "session.close"])
@pytest.mark.parametrize("method", METHODS)
async def test_compaction_can_be_stopped(method: str, stop: str) -> None:
    summary, started, _ = blocked_summary()
    async with rpc_client.connect(["ok"], summarizer=FakeSummarizer(summary), background=False) as (server, client):
        await fill(server.db, OVER_SOFT)
        await client.call("session.resume", session_id="talk")
        made = client.request(method, **METHODS[method])
        await started.wait()
        if stop == "$/cancelRequest":
            client.cancel(made)
        else:
            given = {"line": stop} if stop == "/stop" else {}
            stopped = await client.call("command.exec" if given else stop, session_id="talk", **given)
        response = await made
        if stop == "$/cancelRequest":
            assert response["error"]["code"] == -32800
        elif method == "session.compress":
            assert (response["result"]["outcome"], response["result"]["reason"]) == ("failed", STOPPED)
        else:
            assert response["result"]["output"][-1] == {"level": "warning", "text": STOPPED}
        assert await server.db.get_compression_lock_holder("talk") is None
        assert len(await server.db.sessions("talk")) == 1
        if stop == "session.close":
            assert (stopped["ended"], await server.end_reasons("talk")) == (True, ["tui_close"])
        else:
            assert not (await client.call("session.interrupt", session_id="talk"))["interrupted"]
            assert (await client.prompt("talk", "Hello"))["payload"]["text"] == "ok"


@pytest.mark.parametrize("method", METHODS)
async def test_other_requests_do_not_wait_for_a_compaction(method: str) -> None:
    summary, started, proceed = blocked_summary()
    given = {"summarizer": FakeSummarizer(summary), "background": False}
    async with rpc_client.connect(["ok"] * 40, **given) as (server, client):
        await fill(server.db, OVER_SOFT)
        await client.call("session.resume", session_id="talk")
        made = client.request(method, **METHODS[method])
        await started.wait()
        # More than are run at once: if they waited, no other request would be answered.
        sent = [client.request("prompt.submit", session_id="talk", text=f"{n}", uid=f"{n}") for n in range(40)]
        await client.call("session.options", session_id="talk", options={"columns": 50})
        await client.call("session.title", session_id="talk", title="Named")
        await client.call("command.exec", session_id="talk", line="/queue")
        assert all("result" in response for response in await asyncio.gather(*sent))
        await client.wait_for("message.complete", uid="39")
        assert not made.done()
        proceed.set()
        result = (await made)["result"]
        if method == "session.compress":
            assert result["outcome"] == "compacted"
        else:
            assert [line["level"] for line in result["output"]] == ["info", "info"]
            assert "Compacted up to" in result["output"][-1]["text"]
