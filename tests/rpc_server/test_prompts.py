"""Prompts of a session: their order, their ends, interrupts, steering, images and approvals."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import content_parts, errors, events
from holdfast.rpc_server import session
from tests.support import approvals, polling, rpc_client
from tests.support.compaction import compacting_agent, fill
from tests.support.rpc_client import IMAGE, Harness, RpcClient


async def test_queued_prompts_are_answered_in_order_and_dropped_ones_end(server: Harness, client: RpcClient) -> None:
    key = await client.create()
    sent = [await client.call("prompt.submit", session_id=key, text=f"{n}", uid=f"u{n}") for n in range(4)]
    assert [each["queued"] for each in sent] == [0, 1, 2, 3]
    done = await client.call("command.exec", session_id=key, line="/queue drop 1")
    assert (done["ok"], done["output"]) == (True, [{"level": "answer", "text": "Dropped: 1"}])
    server.model.say("a", None, "b", None, "c", None)
    await client.wait_for("message.complete", uid="u3")
    assert client.payloads("message.start", "uid", "text") == [("u0", "0"), ("u2", "2"), ("u3", "3")]
    ends = client.payloads("message.complete", "uid", "text", "status")
    assert ends[0] == ("u1", "", "dropped")
    assert ends[1:] == [("u0", "a", "completed"), ("u2", "b", "completed"), ("u3", "c", "completed")]
    # The output of a command is in its response, and not sent as an event again.
    assert client.events_of("status") == []


async def test_concurrent_prompts_and_commands_are_run_in_the_order_they_were_sent() -> None:
    async with rpc_client.connect(["ok"] * 6) as (_, client):
        key = await client.start_conversation()
        retried = client.request("command.exec", session_id=key, line="/retry")
        slow = client.request("prompt.submit", session_id=key, text="slow", images=[IMAGE])
        quick = [client.request("prompt.submit", session_id=key, text=text, uid=text) for text in ("1", "2")]
        assert all("result" in each for each in await asyncio.gather(retried, slow, *quick))
        await client.wait_for("message.complete", uid="2")
        assert [text for (text,) in client.payloads("message.start", "text")][1:] == ["Hello", "slow", "1", "2"]


@pytest.mark.parametrize("fault", [errors.RequestRefused("No."), ZeroDivisionError("inside")])
async def test_failed_turn_has_an_end_and_the_next_is_answered(fault: Exception) -> None:
    async with rpc_client.connect([fault, "ok"]) as (_, client):
        key = await client.create()
        failed = (await client.prompt(key, "a", uid="a"))["payload"]
        assert (failed["uid"], failed["status"] in ("model", "failed"), bool(failed["error"])) == ("a", True, True)
        assert "inside" not in str(client.events)
        assert (await client.prompt(key, "b"))["payload"]["text"] == "ok"
        assert len(client.events_of("message.complete")) == 2


async def test_steer_reaches_the_running_turn_or_becomes_a_prompt(server: Harness, client: RpcClient) -> None:
    key = await client.create()
    await client.call("prompt.submit", session_id=key, text="Hello")
    await client.wait_for("message.start")
    steered = await client.call("session.steer", session_id=key, text="Be brief.")
    assert steered == {"session_id": key, "steered": True, "prompt": None}
    server.model.say(None, "ok", None)
    await client.wait_for("message.complete")
    assert "Be brief." in str(server.model.requests[-1].messages)
    became = await client.call("session.steer", session_id=key, text="Another thing.", uid="s")
    assert (became["steered"], became["prompt"]["uid"]) == (False, "s")
    server.model.say("Yes.", None)
    assert (await client.wait_for("message.complete", uid="s"))["payload"]["text"] == "Yes."


async def test_prompt_without_a_session_id_uses_the_only_session_or_a_new_one() -> None:
    async with rpc_client.connect(["a", "b", "c"]) as (server, client):
        both = [client.request("prompt.submit", text=text, uid=text) for text in ("One", "Two")]
        (key,) = {(await each)["result"]["session_id"] for each in both}
        await client.wait_for("message.complete", uid="Two")
        assert len(await server.db.transcript(key)) == 4
        second = await client.create()
        refused = await client.refusal("prompt.submit", text="Three")
        assert (refused.code, refused.data) == (-32003, {"candidates": [key, second]})
        await client.call("session.close", session_id=key)
        assert (await client.call("prompt.submit", text="Three", uid="Three"))["session_id"] == second
        await client.wait_for("message.complete", uid="Three")


@pytest.mark.parametrize(
    ("limit", "value", "texts"),
    [("MAX_PROMPTS", 2, ["runs", "waits", "waits"]), ("MAX_QUEUED_CHARACTERS", 10, ["runs", "is too long"])],
)
async def test_prompts_are_limited(limit: str, value: int, texts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, limit, value)
    async with rpc_client.connect() as (server, client):
        key = await client.create()
        for text in texts:
            await client.call("prompt.submit", session_id=key, text=text)
        refused = await client.refusal("prompt.submit", session_id=key, text="one more")
        assert (refused.code, refused.data) == (-32000, {"type": "LimitReached"})
        server.model.say(*["a", None] * len(texts))
        for _ in texts:
            await client.wait_for("message.complete")

        async def is_accepted() -> bool:
            return "result" in await client.request("prompt.submit", session_id=key, text="now")

        # A prompt counts until the work after its turn is done, too.
        await polling.until_async(is_accepted)


async def test_attached_images_are_sent_with_the_next_prompt_only() -> None:
    async with rpc_client.connect(["A dot.", "Nothing."]) as (server, client):
        key = await client.create(options={"images": [IMAGE]})
        assert (await client.call("session.info", session_id=key))["options"]["images"] == 1
        await client.prompt(key, "What is it?", images=[IMAGE])
        await client.prompt(key, "And now?")
        first, _, second, _ = await server.db.transcript(key)
        kinds = [each["type"] for each in first.content if isinstance(each, dict)]
        assert kinds == ["note", "text", "image", "image"]
        assert str(server.model.requests[0].messages).count(IMAGE["data"]) == 2
        assert second.content == "And now?"
        assert (await client.call("session.info", session_id=key))["options"]["images"] == 0
        assert content_parts.text(first.content) == "What is it?"


@pytest.mark.parametrize(("data", "why"), [("%%%", "base64"), (IMAGE["data"][:40], "not a PNG")])
async def test_invalid_image_is_refused_and_changes_nothing(data: str, why: str) -> None:
    async with rpc_client.connect(["a"]) as (server, client):
        key, options = await client.start_conversation(), {"images": [{"data": data}]}
        for method, params in (
            ("prompt.submit", {"session_id": key, "text": "Look", **options}),
            ("session.options", {"session_id": key, "options": options}),
            ("session.create", {"options": options}),
        ):
            refused = await client.refusal(method, **params)
            assert (refused.code, why in refused.message) == (-32602, True)
        assert len(await server.db.transcript(key)) == 2
        await client.disconnect()
        back = await server.connect()
        assert (await back.refusal("session.resume", session_id=key, options=options)).code == -32602
        assert [(each.key, each.gone) for each in server.sessions] == [(key, True)]


@pytest.mark.parametrize("use_new_key", [False, True])
async def test_approval_stays_answerable_across_a_compaction(use_new_key: bool, store: str) -> None:
    script = [approvals.shell_reply("true"), "Done."]
    async with rpc_client.connect(script, background=False, target=store) as (server, client):
        await fill(server.db, 40)
        await client.call("session.resume", session_id="talk")
        request = await client.request_approval("talk")
        head = (await compacting_agent(server.db).compress_context(force=True)).session_id
        answer = {"session_id": head if use_new_key else "talk", "request_id": request, "answer": "once"}
        accepted = await client.call("approval.respond", **answer)
        late = await client.call("approval.respond", **answer)
        assert (accepted["accepted"], accepted["notice"]) == (True, None)
        assert (late["accepted"], bool(late["notice"])) == (False, True)
        settled = await client.wait_for("status", kind="approval.settled")
        assert settled["payload"]["data"]["allowed"]
        reply = await client.wait_for("message.complete", uid="it")
        assert (reply["session_id"], reply["payload"]["text"]) == (head, "Done.")
        assert head != "talk"


async def test_unsendable_event_is_logged(server: Harness, client: RpcClient, caplog: pytest.LogCaptureFixture) -> None:
    await fill(server.db, 1)
    await client.call("session.resume", session_id="talk")
    for words in ("\ud800 is no text", "This is text."):
        server.runtime.publish("talk", events.Notice(words))
    assert (await client.wait_for("status"))["payload"]["text"] == "This is text."
    assert [each.levelname for each in caplog.records if each.exc_info] == ["ERROR"]
