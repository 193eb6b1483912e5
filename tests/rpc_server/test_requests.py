"""Requests of a client: opening, listing, history, undo, branches, titles, commands, and their refusals."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from holdfast import AsyncSessionDB, types
from holdfast.rpc_server import session_info, wire_types
from tests.support import rpc_client, rpc_fuzzing
from tests.support.compaction import fill
from tests.support.rpc_client import IMAGE, Harness, RpcClient


async def test_server_sends_its_info_first(client: RpcClient) -> None:
    about = await client.call("server.info")
    assert client.events[0] == {"type": "ready", "session_id": None, "payload": about}
    assert [client.frames[0].get("method"), *client.frames[1:]] == ["event", *client.responses]
    assert (about["protocol"], about["methods"]) == (1, [*wire_types.METHODS])


async def test_sessions_are_listed_and_opened_by_id_prefix_and_title(server: Harness, client: RpcClient) -> None:
    for name in ("alpha_1", "alpha_2"):
        await server.db.create_session(name, source="test", title=f"Title of {name}")
        await server.db.append_messages(name, [types.NewMessage(role="user", content="Hello")])
    await client.call("session.resume", session_id="alpha_1")
    listed = (await client.call("session.list"))["sessions"]
    assert {each["session_id"]: each["open"] for each in listed} == {"alpha_1": True, "alpha_2": False}
    assert len((await client.call("session.list", limit=1, skip=1))["sessions"]) == 1
    assert (await client.call("session.resume", session_id="title of ALPHA_2"))["session_id"] == "alpha_2"
    ambiguous = await client.refusal("session.resume", session_id="alpha")
    assert (ambiguous.code, sorted(ambiguous.data["candidates"])) == (-32003, ["alpha_1", "alpha_2"])
    missing = await client.refusal("session.resume", session_id="nobody")
    assert (missing.code, missing.data) == (-32003, {"type": "NoSuchSession"})


async def test_history_is_read_in_pages(server: Harness, client: RpcClient) -> None:
    await fill(server.db, 30)
    await client.call("session.resume", session_id="talk")
    pages, after = list[int](), 0
    for count in (25, 25, 10):
        page = await client.call("session.history", session_id="talk", after=after, limit=25)
        pages += [each["seq"] for each in page["messages"]]
        after = pages[-1]
        assert (len(page["messages"]), page["more"], page["last_seq"]) == (count, after < 60, 60)
    assert pages == list(range(1, 61))


async def test_history_page_is_limited_by_its_size_on_the_wire(db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test")
    for _ in range(9):
        await db.append_message("talk", role="user", content="x" * 150_000)
    found: list[wire_types.TranscriptMessage] = []
    while len(found) < 9:
        after = found[-1].seq if found else 0
        page = await session_info.read_transcript(db, await db.conversation("talk"), after, 200)
        sent = sum(len(each.text) + len(json.dumps(each.content)) for each in page)
        assert session_info.MAX_PAGE_CHARACTERS / 2 < sent <= session_info.MAX_PAGE_CHARACTERS
        found += page
    assert [each.seq for each in found] == [*range(1, 10)]


async def test_undone_messages_are_marked_in_the_history() -> None:
    async with rpc_client.connect(["a", "b"]) as (_, client):
        key = await client.start_conversation()
        await client.prompt(key, "Two")
        assert "Undone" in (await client.call("session.undo", session_id=key))["text"]
        messages = (await client.call("session.history", session_id=key))["messages"]
        assert [each["taken_back"] for each in messages] == [False, False, True, True]
        assert (await client.refusal("session.undo", session_id=key, turns=5)).code == -32000


async def test_branch_is_opened_next_to_its_origin() -> None:
    async with rpc_client.connect(["a", "b", "c"]) as (_, client):
        empty, key = await client.create(), await client.start_conversation()
        made = await client.call("session.branch", session_id=key, title="Other way")
        assert (made["title"], made["conversation_id"] != key, made["last_seq"]) == ("Other way", True, 2)
        assert (await client.prompt(made["session_id"], "There"))["payload"]["text"] == "b"
        assert (await client.prompt(key, "Here"))["payload"]["text"] == "c"
        for refused in (key, empty):
            error = await client.refusal("session.branch", session_id=refused, title="Other way")
            assert error.code == -32000


async def test_commands_answer_submit_move_and_quit() -> None:
    async with rpc_client.connect(["a", "b", "c"]) as (_, client):
        key = await client.start_conversation()

        async def run(line: str) -> Any:
            return await client.call("command.exec", session_id=key, line=line)

        helped = await run("/help")
        assert (helped["ok"], "/compact" in helped["output"][0]["text"]) == (True, True)
        assert (await run("/stop"))["output"] == [{"level": "info", "text": "Nothing is running."}]
        unknown = await run("/hepl")
        assert (unknown["ok"], unknown["output"][0]["level"]) == (False, "error")
        again = await run("/retry")
        assert (await client.wait_for("message.complete", uid=again["prompt"]["uid"]))["payload"]["text"] == "b"
        new = (await run("/new Fresh"))["moved"]
        assert (new["begun"], new["pending_title"]) == (False, "Fresh")
        assert (await client.prompt(new["session_id"], "Hi"))["payload"]["text"] == "c"
        assert (await run("/quit"))["quit"]
        for line in ("/a/path", "words"):
            assert (await client.refusal("command.exec", session_id=key, line=line)).code == -32602
        assert client.events_of("error") == []


async def test_taken_title_is_replaced_by_an_automatic_one_with_a_notice(store: str) -> None:
    async with rpc_client.connect(["ok"], target=store) as (server, client):
        await server.db.create_session("other", source="test", title="Taken")
        key = await client.create(title="Taken")
        reply = await client.prompt(key, "Plan the trip")
        (notice,) = client.events_of("status")
        assert (notice["payload"]["kind"], notice["payload"]["level"]) == ("notice", "warning")
        assert "title was not set" in notice["payload"]["text"]
        last = client.events_of("session.info")[-1]
        assert (last["payload"]["title"], last["payload"]["pending_title"]) == ("Plan the trip", None)
        assert client.events.index(notice) < client.events.index(last) < client.events.index(reply)
        refused = await client.refusal("session.title", session_id=key, title="Taken")
        assert (refused.code, refused.data) == (-32000, {"type": "TitleTaken"})
        assert (await client.call("session.title", session_id=key, title=None))["title"] is None


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session.create", {"titel": "x"}),
        ("session.create", {"options": {"columns": 3}}),
        ("session.create", {"options": {"tool_progress": "some"}}),
        ("session.list", {"limit": 0}),
        ("session.resume", {}),
        ("prompt.submit", {"session_id": "KEY", "text": " "}),
        ("prompt.submit", {"session_id": "KEY", "text": "x", "uid": "x" * 201}),
        ("prompt.submit", {"session_id": "KEY", "text": "x", "images": [IMAGE] * 9}),
        ("session.steer", {"session_id": "KEY", "text": "x", "uid": ""}),
        ("session.history", {"session_id": "KEY", "after": -1}),
        ("session.undo", {"session_id": "KEY", "turns": "2"}),
        ("approval.respond", {"session_id": "KEY", "request_id": "x", "answer": "yes"}),
    ],
)
async def test_invalid_parameters_are_refused(server: Harness, client: RpcClient, method: str, params: Any) -> None:
    key = await client.create()
    given = {name: key if value == "KEY" else value for name, value in params.items()}
    assert (await client.refusal(method, **given)).code == -32602
    assert await server.has_no_row(key)


async def test_session_of_another_client_is_not_open() -> None:
    async with rpc_client.connect(["a"]) as (server, client):
        other = await server.connect()
        key = await client.create()
        assert (await other.refusal("prompt.submit", session_id=key, text="x")).code == -32003
        await client.prompt(key, "Hello")
        for method, more in (("prompt.submit", {"text": "x"}), ("session.close", {}), ("session.interrupt", {})):
            refused = await other.refusal(method, session_id=key, **more)
            assert (refused.code, "session.resume" in refused.message) == (-32002, True)
        assert (await server.db.head(key)).live


async def test_deleted_conversation_is_refused_and_can_be_closed() -> None:
    async with rpc_client.connect(["a", "b"]) as (server, client):
        key = await client.create()
        await client.prompt(key, "Hello")
        await server.db.delete_conversation(key)
        refused = await client.refusal("session.history", session_id=key)
        assert (refused.code, refused.data) == (-32000, {"type": "ConversationDeleted"})
        failed = (await client.prompt(key, "Again"))["payload"]
        assert (failed["status"] != "completed", bool(failed["error"])) == (True, True)
        assert await client.call("session.close", session_id=key) == {"session_id": key, "ended": False}


async def test_number_of_sessions_is_limited() -> None:
    async with rpc_client.connect(["a"], max_sessions=1) as (server, client):
        key = await client.start_conversation()
        for method, given in (
            ("session.create", {}),
            ("session.branch", {"session_id": key, "title": "Other"}),
            ("command.exec", {"session_id": key, "line": "/branch Other"}),
            ("command.exec", {"session_id": key, "line": "/new Other"}),
        ):
            refused = await client.refusal(method, **given)
            assert (refused.code, refused.data) == (-32000, {"type": "LimitReached"})
        assert len(await server.db.list_sessions(every=True)) == 1
        assert server.runtime._titles == {}


@pytest.mark.parametrize("seed", range(3))
async def test_any_requests_get_typed_responses_and_accepted_prompts_one_end(seed: int) -> None:
    await rpc_fuzzing.send_concurrent_requests(random.Random(seed), 150)
