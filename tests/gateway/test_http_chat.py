"""Chat completions over HTTP: each request is one message, answered once, in its conversation."""

from __future__ import annotations

import asyncio
import base64
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import AsyncSessionDB, content_parts, errors, types
from holdfast.gateway import message_policy, settings
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway.platforms.http import chat_completions, chat_requests, http_platform, inline_images, sse
from holdfast.model import ScriptedModel
from holdfast.store import leases
from tests.support import http_gateway, mcp_raw_server
from tests.support.agents import LoopClock, calls, says
from tests.support.gateways import HeldModel, open_gateway, wait_idle
from tests.support.http_gateway import ANN, BOB, PATH, error_of, message_words, open_web, streamed_text, text_of
from tests.support.polling import until_async

PIXEL = base64.b64decode(mcp_raw_server.PNG)
IMAGE = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
LOOKS = msgspec.structs.replace(calls("look"), parts=(content_parts.Text("Let me look."),))
KEY = {**ANN, "idempotency-key": "k"}


def named(name: str, headers: dict[str, str] = ANN) -> dict[str, str]:
    return {**headers, "x-conversation-id": name}


async def inbound_of(db: AsyncSessionDB, number: int) -> types.InboundMessage:
    found = await db.mail.inbound(number)
    assert found is not None
    return found


async def wait_stored(db: AsyncSessionDB, number: int, *, attempts: int = 0) -> None:
    async def is_stored() -> bool:
        found = await db.mail.inbound(number)
        return found is not None and found.attempts >= attempts

    await until_async(is_stored)


async def send_request(address: str, text: str, stream: bool) -> asyncio.StreamWriter:
    """Send a chat request over a new connection, which the caller can break."""
    host, _, number = address.removeprefix("http://").partition(":")
    _, writer = await asyncio.open_connection(host, int(number))
    asked = {"model": "holdfast", "stream": stream, "messages": [{"role": "user", "content": text}]}
    body = msgspec.json.encode(asked)
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {ANN['authorization']}\r\n"
    head += f"Content-Type: application/json\r\nX-Conversation-Id: one\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return writer


async def test_conversation_continues_by_its_id_for_its_owner_only(db: AsyncSessionDB) -> None:
    async with open_web(db, ScriptedModel(["Hello!", "Fine."])) as web:
        first = await web.ask("Hi")
        name = first.headers["x-conversation-id"]
        for other in (name, "20260101_000000_abcdef"):
            refused = await web.ask("Hi", headers=named(other, BOB))
            assert (refused.status_code, error_of(refused)["code"]) == (404, "conversation_not_found")
        second = await web.ask("Hi", "Something never said", "How are you?", headers=named(name))
        assert (text_of(first), text_of(second)) == ("Hello!", "Fine.")
    said = await db.transcript(name)
    assert [message_words(each) for each in said] == ["Hi", "Hello!", "How are you?", "Fine."]
    assert (await db.conversation(name)).owner == "http:ann"
    assert {each.conversation_id for each in await db.routes()} == {name}


async def test_same_idempotency_key_has_the_same_answer_also_after_a_restart(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["Once.", "Twice?"])
    async with open_web(db, model) as web:
        several = await asyncio.gather(*(web.ask("Hi", headers=KEY) for _ in range(5)))
        assert {each.text for each in several} == {several[0].text}
        assert text_of(several[0]) == "Once."
        assert text_of(await web.ask("Hi", headers=BOB | {"idempotency-key": "k"})) == "Twice?"
        refused = await web.ask("Hi", headers=KEY, max_tokens=5)
        assert (refused.status_code, error_of(refused)["code"]) == (422, "idempotency_key_reused")
    async with open_web(db, model) as web:
        assert (await web.ask("Hi", headers=KEY)).text == several[0].text
        await wait_idle(web.gateway, db)
        await db.delete_conversation(several[0].headers["x-conversation-id"])
        assert (await web.ask("Hi", headers=KEY)).status_code == 410
    assert len(model.requests) == 2


# --- streams --------------------------------------------------------------------------------------------


async def test_stream_has_its_role_then_the_text_then_the_end(db: AsyncSessionDB) -> None:
    async with open_web(db, ScriptedModel(["Hello there!"])) as web:
        answered = await web.ask("Hi", stream=True, stream_options={"include_usage": True})
        assert answered.headers["content-type"] == "text/event-stream; charset=utf-8"
        found = http_gateway.chunks(answered.text)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert streamed_text(answered) == "Hello there!"
    assert [each["choices"][0]["finish_reason"] for each in found[:-1]] == [None] * (len(found) - 2) + ["stop"]
    assert (found[-1]["choices"], found[-1]["usage"]["total_tokens"] > 0) == ([], True)
    assert len({(each["id"], each["created"], each["object"]) for each in found}) == 1
    assert all(each["usage"] is None for each in found[:-1])


async def test_stream_has_the_text_between_calls_and_the_answer(db: AsyncSessionDB) -> None:
    async with open_web(db, ScriptedModel([LOOKS, "It is there."]), tools=[says("look")]) as web:
        streamed = await web.ask("Where?", stream=True, headers=KEY)
        whole = await web.ask("Where?", headers=KEY)
    assert streamed_text(streamed) == "Let me look.\n\nIt is there."
    assert text_of(whole) == "It is there."


async def test_failed_turn_is_an_error_also_within_a_stream(db: AsyncSessionDB) -> None:
    wrong = errors.ModelError("The model is out of order.")
    async with open_web(db, ScriptedModel([wrong, wrong])) as web:
        whole = await web.ask("Hi")
        assert (whole.status_code, error_of(whole)["code"]) == (502, "turn_failed")
        assert whole.headers["x-should-retry"] == "false"
        *_, last = http_gateway.chunks((await web.ask("Hi", stream=True)).text)
        assert last["error"]["code"] == "turn_failed"


async def test_second_reader_of_a_stream_gets_all_of_it(db: AsyncSessionDB) -> None:
    model = HeldModel("Hello there!")
    async with open_web(db, model) as web:
        first = asyncio.create_task(web.ask("Hi", stream=True, headers=KEY))
        await model.reached.wait()
        second = asyncio.create_task(web.ask("Hi", stream=True, headers=KEY))
        await asyncio.sleep(0)
        model.released.set()
        for answered in await asyncio.gather(first, second):
            assert streamed_text(answered) == "Hello there!"


async def test_idle_stream_has_comments(db: AsyncSessionDB) -> None:
    clock, model, sent = LoopClock(), HeldModel("Late."), list[bytes]()
    async with open_web(db, model) as web:
        app = web.platform.app

        async def record(scope: Any, receive: Any, send: Any) -> None:
            def send_recorded(message: Any) -> Any:
                sent.append(message.get("body"))
                return send(message)

            await app(scope, receive, send_recorded)

        web.platform.app = record
        async with http_gateway.client_of(web.platform) as web.client:
            asking = asyncio.create_task(web.ask("Hi", stream=True))
            await model.reached.wait()
            await clock.finish(until_async(lambda: sse.COMMENT in sent), within=20.0)
            model.released.set()
            assert streamed_text(await asking) == "Late."


# --- clients that disconnect ------------------------------------------------------------------------------


async def test_turn_with_a_key_goes_on_without_its_client_and_the_answer_is_kept(db: AsyncSessionDB) -> None:
    model = HeldModel("Late.")
    async with open_web(db, model) as web:
        asking = asyncio.create_task(web.ask("Hi", headers=KEY))
        await model.reached.wait()
        asking.cancel()
        await asyncio.wait([asking])
        model.released.set()
        await wait_idle(web.gateway, db)
        (row,) = await db.mail.replies(1)
        assert (row.delivered_at, row.error) == (None, chat_requests.CLIENT_GONE)
        assert (await inbound_of(db, 1)).outcome == "answered"
        assert text_of(await web.ask("Hi", headers=KEY)) == "Late."
        await web.ask("Hi", stream=True)
        await wait_idle(web.gateway, db)
        (row,) = await db.mail.replies(2)
        assert row.delivered_at is not None
    assert len(model.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_broken_connection_stops_its_turn_and_not_the_next_message(stream: bool, db: AsyncSessionDB) -> None:
    model = HeldModel("Late.", "Next.")
    async with open_web(db, model, wanted=settings.Http(port=0)) as web, web.platform.serve() as address:
        first = await send_request(address, "Hi", stream)
        await model.reached.wait()
        next_one = asyncio.create_task(web.ask("And?", headers=named("one")))
        await wait_stored(db, 2)
        unread = await send_request(address, "Unheard", stream)
        await wait_stored(db, 3)
        unread.transport.abort()
        await wait_stored(db, 4)  # the withdrawal
        first.transport.abort()
        # The model is asked for the next message while the first answer is still held back.
        await until_async(lambda: len(model.requests) == 2)
        model.released.set()
        assert text_of(await next_one) == "Next."
        await wait_idle(web.gateway, db)
    found = [(await inbound_of(db, number)).outcome for number in (1, 2, 3)]
    assert found == ["interrupted", "answered", "interrupted"]
    assert [await db.mail.replies(1), await db.mail.replies(3)] == [[], []]
    (only,) = await db.list_sessions()
    assert [message_words(each) for each in await db.transcript(only.id)] == ["Hi", "Late.", "And?", "Next."]


async def test_client_that_disconnects_leaves_the_turn_of_another_alone(db: AsyncSessionDB) -> None:
    model = HeldModel("First.")
    async with open_web(db, model) as web:
        running = asyncio.create_task(web.ask("Hi", headers=named("one")))
        await model.reached.wait()
        (only,) = await db.list_sessions()
        waiting = asyncio.create_task(web.ask("And?", headers=named(only.conversation_id)))
        # It is begun on a route of its own, and waits in the conversation behind the first.
        await wait_stored(db, 2, attempts=1)
        waiting.cancel()
        await asyncio.wait([waiting])
        model.released.set()
        assert text_of(await running) == "First."
        await wait_idle(web.gateway, db)
    assert ((await inbound_of(db, 2)).outcome, len(model.requests)) == ("interrupted", 1)


async def test_answer_of_another_process_reaches_the_client(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["From elsewhere."] * 2)
    async with open_web(db, model, poll=0.02) as web, open_gateway(db, model, poll=0.02) as (other, _):
        await web.gateway.router.stop(0)
        whole, streamed = await asyncio.gather(web.ask("Hi"), web.ask("Hi", stream=True))
        assert (text_of(whole), streamed_text(streamed)) == ("From elsewhere.", "From elsewhere.")
        await wait_idle(other, db)
        assert [(await db.mail.replies(number))[0].error for number in (1, 2)] == [None, None]


async def test_waiting_client_is_answered_when_the_server_stops(db: AsyncSessionDB) -> None:
    model = HeldModel("Late.")
    async with open_web(db, model) as web:
        asking = asyncio.create_task(web.ask("Hi"))
        await model.reached.wait()
        web.platform.stop_waiting()
        answered = await asking
        assert (answered.status_code, error_of(answered)["code"]) == (503, "stops")
        model.released.set()
        await wait_idle(web.gateway, db)
        assert [each.delivered_at for each in await db.mail.replies(1)] == [None]


async def test_reply_of_a_dead_process_is_taken_over_and_refused(db: AsyncSessionDB) -> None:
    platform, holder = http_platform.HttpPlatform(db), leases.current_holder(None)
    fields: dict[str, Any] = {"id": 1, "address": {}, "attachments": [], "kind": "reply", "at": time.time()}
    reply = types.Outgoing(platform="http", chat="dm:a", text="", **fields)
    dead, elsewhere = {"started": "0", "pid": 2**22 + 1}, {"host": "elsewhere"}

    def owns(at: float = reply.at, **changed: Any) -> bool:
        process = leases.encode_holder(msgspec.structs.replace(holder, **changed))
        return platform.owns(msgspec.structs.replace(reply, address={"process": process, "key": "k"}, at=at))

    assert [owns(**dead), owns(), owns(**elsewhere)] == [True, False, False]
    assert owns(reply.at - chat_requests.ORPHAN_SECONDS - 1, **elsewhere)
    with pytest.raises(errors.SendRefused):
        await platform.send(reply)


# --- contents ---------------------------------------------------------------------------------------------


@given(st.text(max_size=20) | st.text("/ \n\tnew", max_size=9))
def test_any_text_of_a_client_arrives_and_is_not_a_command(text: str) -> None:
    parsed = message_policy.message_text(chat_completions.escape_command(text))
    assert parsed in (text, f"\n{text}")


async def test_pictures_and_instructions_come_with_the_message(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["A dot."])
    async with open_web(db, model) as web:
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
        body = {"messages": messages, "temperature": 0.5, "unknown": {"a": 1}}
        assert text_of(await web.post(body)) == "A dot."
    content = str(model.requests[0].messages[-1].content)
    assert "Be brief." not in content
    assert "What is it?" in content
    assert base64.b64encode(PIXEL).decode() in content
    assert "Be brief." in model.requests[0].system


@pytest.mark.parametrize(
    ("size", "kind", "wanted"),
    [
        (inline_images.MAX_EMBEDDED, "image/png", "![Image](data:image/png;base64,"),
        (inline_images.MAX_EMBEDDED + 1, "image/png", "[Image, image/png, 262,145 bytes: see the conversation.]"),
        (1, "image/svg+xml", "![Image](data:image/svg+xml;base64,"),
        (1, "text/html", "[File, text/html, 1 bytes: files are not sent over HTTP.]"),
    ],
)
async def test_only_small_pictures_are_embedded(size: int, kind: str, wanted: str, db: AsyncSessionDB) -> None:
    blob = await db.blobs.put(b"x" * size, kind)
    assert (await inline_images.render_all(db, [blob.digest])).startswith(wanted)
    assert await inline_images.render_all(db, ["0" * 64]) == inline_images.MISSING
    assert await inline_images.render_all(db, []) == ""


@pytest.mark.parametrize(("text", "stream"), [("A dot.", False), ("A dot.", True), ("", False)])
async def test_answer_has_images(text: str, stream: bool, monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    blob = await db.blobs.put(PIXEL, "image/png")
    async with open_web(db, ScriptedModel([]), poll=0.02) as web:
        await web.gateway.router.stop(0)
        asking = asyncio.create_task(web.ask("Draw a dot", stream=stream))
        await wait_stored(db, 1)
        found = await inbound_of(db, 1)
        place: dict[str, Any] = {"platform": "http", "chat": found.chat, "address": found.address}
        reply = types.NewOutgoing(text=text, attachments=[blob.digest], **place)
        await db.mail.settle_inbound(None, 1, "answered", outgoing=[reply])
        answered = await asking
    shown = f"![Image]({IMAGE})"
    assert (streamed_text if stream else text_of)(answered) == (f"{text}\n\n{shown}" if text else shown)


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "status", "code", "retry_after"),
    [
        (gateway_platform.AdmissionResult(False, message="No."), 403, "not_allowed", None),
        (gateway_platform.AdmissionResult(False, reason="limit", retry_after=60), 429, "rate_limit_exceeded", "60"),
        (gateway_platform.AdmissionResult(False, reason="size"), 413, "too_large", None),
    ],
)
async def test_refused_request_has_a_reason_and_leaves_nothing_behind(
    result: gateway_platform.AdmissionResult, status: int, code: str, retry_after: str | None, db: AsyncSessionDB
) -> None:
    async def refuse(_incoming: gateway_platform.Incoming, _route: str) -> gateway_platform.AdmissionResult:
        return result

    async with open_web(db, ScriptedModel([]), checks=[refuse]) as web:
        for stream in (False, True):
            refused = await web.ask("Hi", stream=stream)
            error = error_of(refused)
            assert (refused.status_code, error["code"]) == (status, code)
            assert refused.headers.get("retry-after") == retry_after
            assert error["message"] == result.message or not result.message
    assert set((await db.mail.counts()).values()) == {0}


async def test_nothing_is_accepted_before_a_gateway_runs(db: AsyncSessionDB) -> None:
    platform = http_platform.HttpPlatform(db, tokens=http_gateway.TOKENS)
    async with http_gateway.client_of(platform) as client:
        body = {"model": "holdfast", "messages": [{"role": "user", "content": "Hi"}]}
        refused = await client.post(PATH, json=body, headers=dict(ANN))
        assert (refused.status_code, error_of(refused)["code"]) == (503, "not_ready")
        health = await client.get("/health")
        assert (health.status_code, health.json()["ready"], health.json()["live"]) == (503, False, True)
