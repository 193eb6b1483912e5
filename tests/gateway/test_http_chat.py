"""A request is a message like any other: stored, answered once, in the conversation it belongs to and in no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import AsyncSessionDB, content_parts, errors, types
from holdfast.gateway import access, inbound, limits, message_policy
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import settings as said
from holdfast.gateway.platforms.http import chat_completions, chat_requests, http_platform, sse
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.store import leases
from tests.support import gateways, http_gateway, polling
from tests.support.agents import calls, says

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IMAGE = f"data:image/png;base64,{PIXEL}"


LOOKS = msgspec.structs.replace(calls("look"), parts=(content_parts.Text("Let me look."),))


def words(message: types.Message) -> str:
    """What was said, without what day it is."""
    content = message.content
    return content if isinstance(content, str) else "".join(each["text"] for each in content if each["type"] == "text")


def echo(request: models.Request) -> str:
    return f"Re: {words(request.messages[-1])}"


async def test_a_conversation_goes_on_by_its_id_and_takes_only_what_is_new(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["Hello!", "Fine."])
    async with http_gateway.open_web(db, model) as open_:
        first = await open_.ask("Hi")
        name = first.headers["x-conversation-id"]
        second = await open_.ask(
            "Hi", "Something never said", "How are you?", headers=http_gateway.ANN | {"x-conversation-id": name}
        )
        assert (http_gateway.text_of(first), http_gateway.text_of(second)) == ("Hello!", "Fine.")
        assert second.headers["x-conversation-id"] == name
    (one,) = await db.routes()
    said = await db.transcript(one.conversation_id or "")
    assert [words(each) for each in said] == ["Hi", "Hello!", "How are you?", "Fine."]
    assert (await db.conversation(one.conversation_id or "")).owner == "http:ann"


async def test_nobody_reaches_a_conversation_of_another_owner(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["Hello!", "Mine."])) as open_:
        first = await open_.ask("Hi")
        (one,) = await db.routes()
        assert first.headers["x-conversation-id"] == one.conversation_id
        for name in (one.conversation_id or "", "20260101_000000_abcdef"):
            refused = await open_.ask("Hi", headers=http_gateway.BOB | {"x-conversation-id": name})
            assert (refused.status_code, http_gateway.error_of(refused)["code"]) == (404, "conversation_not_found")
        mine = await open_.ask("And?", headers=http_gateway.ANN | {"x-conversation-id": one.conversation_id or ""})
        assert http_gateway.text_of(mine) == "Mine."
    assert {each.conversation_id for each in await db.routes()} == {one.conversation_id}


async def test_the_same_key_again_is_the_same_answer_also_while_the_first_is_under_way(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["Once.", "Twice?"])
    key = {"idempotency-key": "k"}
    async with http_gateway.open_web(db, model) as open_:
        several = await asyncio.gather(*(open_.ask("Hi", headers=http_gateway.ANN | key) for _ in range(5)))
        later = await open_.ask("Hi", headers=http_gateway.ANN | key)
        assert {each.text for each in (*several, later)} == {several[0].text}
        assert http_gateway.text_of(later) == "Once."
        other = await open_.ask("Hi", headers=http_gateway.BOB | key)
        assert http_gateway.text_of(other) == "Twice?"
        refused = await open_.ask("Hi", headers=http_gateway.ANN | key, max_tokens=5)
        assert (refused.status_code, http_gateway.error_of(refused)["code"]) == (422, "idempotency_key_reused")
    assert len(model.requests) == 2
    async with http_gateway.open_web(db, model) as open_:
        assert (await open_.ask("Hi", headers=http_gateway.ANN | key)).text == later.text


async def test_what_a_key_was_used_for_is_gone_when_its_conversation_is(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["Once."])) as open_:
        first = await open_.ask("Hi", headers=http_gateway.ANN | {"idempotency-key": "k"})
        (one,) = await db.routes()
        await gateways.quiet(open_.gateway, db)
        await db.delete_conversation(one.conversation_id or "")
        again = await open_.ask("Hi", headers=http_gateway.ANN | {"idempotency-key": "k"})
        assert (first.status_code, again.status_code) == (200, 410)


async def test_a_stream_has_its_role_first_then_the_words_then_the_end(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["Hello there!"])) as open_:
        answered = await open_.ask("Hi", stream=True, stream_options={"include_usage": True})
        assert answered.headers["content-type"] == "text/event-stream; charset=utf-8"
        found = http_gateway.chunks(answered.text)
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert http_gateway.said_in(found) == "Hello there!"
    assert [each["choices"][0]["finish_reason"] for each in found[:-1]] == [None] * (len(found) - 2) + ["stop"]
    assert (found[-1]["choices"], found[-1]["usage"]["total_tokens"] > 0) == ([], True)
    assert len({(each["id"], each["created"], each["object"]) for each in found}) == 1
    assert all(each["usage"] is None for each in found[:-1])


async def test_a_stream_tells_what_was_said_between_calls_and_ends_with_the_answer(db: AsyncSessionDB) -> None:
    model = ScriptedModel([LOOKS, "It is there."])
    async with http_gateway.open_web(db, model, tools=[says("look")]) as open_:
        streamed = await open_.ask("Where?", stream=True, headers=http_gateway.ANN | {"idempotency-key": "k"})
        whole = await open_.ask("Where?", headers=http_gateway.ANN | {"idempotency-key": "k"})
    assert http_gateway.said_in(http_gateway.chunks(streamed.text)) == "Let me look.\n\nIt is there."
    assert http_gateway.text_of(whole) == "It is there."


async def test_an_answer_that_was_not_overheard_is_streamed_all_the_same() -> None:
    heard = sse.TurnStream()
    assert heard.rest("Hello") == "Hello"
    heard.pieces, heard.answer = ["Hel"], "Hel"
    assert heard.rest("Hello") == "lo"
    assert heard.rest("Other") == "\n\nOther"
    heard.pieces, heard.answer = ["Hello"], "Hello"
    assert heard.rest("Hello") == ""


async def test_a_failing_turn_is_an_error_also_in_the_middle_of_a_stream(db: AsyncSessionDB) -> None:
    wrong = errors.ModelError("The model is out of order.")
    async with http_gateway.open_web(db, ScriptedModel([wrong, wrong])) as open_:
        whole = await open_.ask("Hi")
        assert (whole.status_code, http_gateway.error_of(whole)["code"]) == (502, "turn_failed")
        assert whole.headers["x-should-retry"] == "false"
        streamed = await open_.ask("Hi", stream=True)
        *_, last = http_gateway.chunks(streamed.text)
        assert last["error"]["code"] == "turn_failed"


class Held(ScriptedModel):
    """A model that says its first word, and the rest once it is let go."""

    def __init__(self, *script: str) -> None:
        super().__init__(script)
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def stream(self, request: models.Request) -> AsyncGenerator[models.Delta, None]:
        async for delta in super().stream(request):
            yield delta
            self.reached.set()
            await self.released.wait()


async def test_a_client_with_a_key_that_goes_away_stops_no_turn_and_what_it_missed_is_kept(db: AsyncSessionDB) -> None:
    key, model = http_gateway.ANN | {"idempotency-key": "k"}, Held("Late.")
    async with http_gateway.open_web(db, model) as open_:
        asking = asyncio.create_task(open_.ask("Hi", headers=key))
        await model.reached.wait()
        asking.cancel()
        await asyncio.wait([asking])
        model.released.set()
        await gateways.quiet(open_.gateway, db)
        (row,) = await db.mail.replies(1)
        assert (row.delivered_at, row.error) == (None, chat_requests.CLIENT_GONE)
        arrival = await db.mail.inbound(1)
        assert arrival is not None
        assert arrival.outcome == "answered"
        assert http_gateway.text_of(await open_.ask("Hi", headers=key)) == "Late."
    assert len(model.requests) == 1


async def has_arrived(db: AsyncSessionDB, number: int) -> bool:
    return await db.mail.inbound(number) is not None


async def is_begun(db: AsyncSessionDB, number: int) -> bool:
    found = await db.mail.inbound(number)
    return found is not None and found.attempts > 0


async def is_settled(db: AsyncSessionDB, number: int) -> bool:
    found = await db.mail.inbound(number)
    return found is not None and not found.open


async def asked_twice(model: ScriptedModel) -> bool:
    return len(model.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
async def test_a_connection_that_breaks_stops_its_turn_and_the_next_message_does_not_wait(
    stream: bool, db: AsyncSessionDB
) -> None:
    model, name = Held("Late.", "Next."), {"x-conversation-id": "one"}
    async with http_gateway.open_web(db, model, wanted=said.Http(port=0)) as open_, open_.platform.serve() as address:
        host, _, number = address.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(number))
        asked = {"model": "holdfast", "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
        body = msgspec.json.encode(asked)
        head = f"POST {http_gateway.PATH} HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: {http_gateway.ANN['authorization']}\r\nContent-Type: application/json\r\n"
        head += f"X-Conversation-Id: one\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await model.reached.wait()
        next_one = asyncio.create_task(open_.ask("And?", headers=http_gateway.ANN | name))
        await polling.until_async(lambda: has_arrived(db, 2))
        unread = asyncio.create_task(open_.ask("Unheard", headers=http_gateway.ANN | name))
        await polling.until_async(lambda: has_arrived(db, 3))
        unread.cancel()
        writer.transport.abort()
        # The model is asked for the next message while the first answer is still held back.
        await polling.until_async(lambda: asked_twice(model))
        model.released.set()
        assert http_gateway.text_of(await next_one) == "Next."
        await gateways.quiet(open_.gateway, db)
    found = [each and each.outcome for each in [await db.mail.inbound(number) for number in (1, 2, 3)]]
    assert found == ["interrupted", "answered", "interrupted"]
    assert [await db.mail.replies(1), await db.mail.replies(3)] == [[], []]
    assert len(model.requests) == 2
    (only,) = await db.list_sessions()
    assert [words(each) for each in await db.transcript(only.id)] == ["Hi", "Late.", "And?", "Next."]


async def test_a_client_that_goes_away_leaves_the_turn_of_another_alone(db: AsyncSessionDB) -> None:
    model = Held("First.")
    async with http_gateway.open_web(db, model) as open_:
        running = asyncio.create_task(open_.ask("Hi", headers=http_gateway.ANN | {"x-conversation-id": "one"}))
        await model.reached.wait()
        (only,) = await db.list_sessions()
        by_id = http_gateway.ANN | {"x-conversation-id": only.conversation_id}
        waiting = asyncio.create_task(open_.ask("And?", headers=by_id))
        # It is begun on a route of its own, and waits in the conversation behind the first.
        await polling.until_async(lambda: is_begun(db, 2))
        waiting.cancel()
        await asyncio.wait([waiting])
        model.released.set()
        assert http_gateway.text_of(await running) == "First."
        await gateways.quiet(open_.gateway, db)
    assert (found := await db.mail.inbound(2)) is not None
    assert (found.outcome, len(model.requests)) == ("interrupted", 1)


async def test_turn_of_a_disconnected_client_is_stopped_once_the_store_accepts_it(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(chat_requests, "STOP_PAUSES", (0.0, 0.0))
    failures = [errors.StoreBusy(), errors.StoreBusy()]
    delete = inbound.InboundHandler.delete

    async def fail_twice(handler: inbound.InboundHandler, name: str, key: str) -> bool:
        if failures:
            raise failures.pop()
        return await delete(handler, name, key)

    model = Held("Late.")
    async with http_gateway.open_web(db, model) as open_:
        asked = asyncio.create_task(open_.ask("Hi"))
        await model.reached.wait()
        monkeypatch.setattr(inbound.InboundHandler, "delete", fail_twice)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await polling.until_async(lambda: is_settled(db, 1))
    assert (found := await db.mail.inbound(1)) is not None
    assert (found.outcome, failures) == ("interrupted", [])


async def test_an_answer_that_a_client_has_is_marked_delivered(db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel(["Hello!"] * 2)) as open_:
        await open_.ask("Hi")
        await open_.ask("Hi", stream=True)
        await gateways.quiet(open_.gateway, db)
        for number in (1, 2):
            (row,) = await db.mail.replies(number)
            assert row.delivered_at is not None


async def test_who_joins_a_stream_late_is_told_all_of_it(db: AsyncSessionDB) -> None:
    key, model = http_gateway.ANN | {"idempotency-key": "k"}, Held("Hello there!")
    async with http_gateway.open_web(db, model) as open_:
        first = asyncio.create_task(open_.ask("Hi", stream=True, headers=key))
        await model.reached.wait()
        second = asyncio.create_task(open_.ask("Hi", stream=True, headers=key))
        await asyncio.sleep(0)
        model.released.set()
        for answered in await asyncio.gather(first, second):
            assert http_gateway.said_in(http_gateway.chunks(answered.text)) == "Hello there!"


async def test_an_answer_that_another_process_worked_out_reaches_who_asked_here(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["From elsewhere."] * 2)
    async with http_gateway.open_web(db, model) as open_, gateways.open_gateway(db, model) as (other, _):
        await open_.gateway.router.stop(0)
        whole, streamed = await asyncio.gather(open_.ask("Hi"), open_.ask("Hi", stream=True))
        assert http_gateway.text_of(whole) == "From elsewhere."
        assert http_gateway.said_in(http_gateway.chunks(streamed.text)) == "From elsewhere."
        await gateways.quiet(other, db)
        assert [(await db.mail.replies(number))[0].error for number in (1, 2)] == [None, None]


async def test_a_stream_shows_that_somebody_is_there_while_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB
) -> None:
    monkeypatch.setattr(sse, "KEEP_ALIVE_SECONDS", 0.0)
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.01)
    shown, write = asyncio.Event(), chat_requests.StreamWriter._write

    async def noted(writing: chat_requests.StreamWriter, data: bytes, more: bool = True) -> None:
        await write(writing, data, more)
        if data == sse.COMMENT:
            shown.set()

    monkeypatch.setattr(chat_requests.StreamWriter, "_write", noted)

    model = Held("Late.")
    async with http_gateway.open_web(db, model) as open_:
        asking = asyncio.create_task(open_.ask("Hi", stream=True))
        await model.reached.wait()
        await shown.wait()
        model.released.set()
        answered = await asking
        assert sse.COMMENT.decode() in answered.text
        assert http_gateway.said_in(http_gateway.chunks(answered.text)) == "Late."


async def test_whoever_waits_when_the_server_stops_is_told_so(db: AsyncSessionDB) -> None:
    model = Held("Late.")
    async with http_gateway.open_web(db, model) as open_:
        asking = asyncio.create_task(open_.ask("Hi"))
        await model.reached.wait()
        open_.platform.stop_waiting()
        answered = await asking
        assert (answered.status_code, http_gateway.error_of(answered)["code"]) == (503, "stops")
        model.released.set()
        await gateways.quiet(open_.gateway, db)
        # Nobody has the answer, so it is not called delivered.
        assert [each.delivered_at for each in await db.mail.replies(1)] == [None]


async def test_what_another_process_left_is_nobody_s_to_answer_and_does_not_wait_for_ever(db: AsyncSessionDB) -> None:
    platform = http_platform.HttpPlatform(db)
    here = types.Outgoing(
        id=1, platform="http", chat="dm:a", address={}, text="", attachments=[], kind="reply", at=time.time()
    )
    gone = leases.encode_holder(msgspec.structs.replace(leases.current_holder(None), started="0", pid=2**22 + 1))
    alive = leases.encode_holder(leases.current_holder(None))
    elsewhere = leases.encode_holder(msgspec.structs.replace(leases.current_holder(None), host="elsewhere"))

    def owns(process: str, at: float = here.at) -> bool:
        return platform.owns(msgspec.structs.replace(here, address={"process": process, "key": "k"}, at=at))

    assert [owns(gone), owns(alive), owns(elsewhere)] == [True, False, False]
    assert owns(elsewhere, here.at - chat_requests.ORPHAN_SECONDS - 1)
    with pytest.raises(errors.SendRefused):
        await platform.send(here)


@pytest.mark.parametrize("text", ["/new", "/resume other", "//path", "/stop\nand go on", "/steer left"])
async def test_what_programs_pass_on_is_no_command(text: str, db: AsyncSessionDB) -> None:
    async with http_gateway.open_web(db, ScriptedModel([echo])) as open_:
        answered = http_gateway.text_of(await open_.ask(text))
        assert answered.removeprefix("Re: ").strip() == text


@given(st.text(max_size=20) | st.text("/ \n\tnew", max_size=9))
def test_no_text_that_a_program_passes_on_is_a_command_and_all_of_it_arrives(text: str) -> None:
    told = message_policy.message_text(chat_completions.escape_command(text))
    assert told is not None
    assert told in (text, f"\n{text}")


async def test_pictures_come_with_the_message(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["A dot."])
    async with http_gateway.open_web(db, model) as open_:
        several = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": IMAGE}}]
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": several}]
        body = {"model": "holdfast", "messages": messages, "temperature": 0.5, "unknown": {"a": 1}}
        answered = await open_.client.post(http_gateway.PATH, json=body, headers=dict(http_gateway.ANN))
        assert http_gateway.text_of(answered) == "A dot."
    content = str(model.requests[0].messages[-1].content)
    assert "Be brief." not in content
    assert "What is it?" in content
    assert "image/png" in content
    assert "Be brief." in model.requests[0].system


@pytest.mark.parametrize(
    ("verdict", "status", "code", "waits"),
    [
        (gateway_platform.AdmissionResult(False), 403, "not_allowed", None),
        (gateway_platform.AdmissionResult(False, reason="limit", retry_after=60.0), 429, "rate_limit_exceeded", "60"),
        (gateway_platform.AdmissionResult(False, reason="size"), 413, "too_large", None),
    ],
)
@pytest.mark.parametrize("say", ["", "Not so fast."])
async def test_who_is_refused_at_the_door_is_told_why(
    verdict: gateway_platform.AdmissionResult, status: int, code: str, waits: str | None, say: str, db: AsyncSessionDB
) -> None:
    async def no(_came: gateway_platform.Incoming, _route: str) -> gateway_platform.AdmissionResult:
        return msgspec.structs.replace(verdict, message=say)

    async with http_gateway.open_web(db, ScriptedModel([]), checks=[no]) as open_:
        for stream in (False, True):
            refused = await open_.ask("Hi", stream=stream)
            error = http_gateway.error_of(refused)
            assert (refused.status_code, error["code"], refused.headers.get("retry-after")) == (status, code, waits)
            assert error["message"] == say or not say
    # Nothing is sent besides, and nothing is left.
    assert set((await db.mail.counts()).values()) == {0}


async def test_people_limits_and_sizes_of_the_settings_have_their_own_refusals(db: AsyncSessionDB) -> None:
    known = access.Access(db, access.build_rules(said.GatewaySettings(deny={"http": ["bob"]})))
    guards = [known, limits.RateLimits(db, said.GatewayLimits(minute=1, person_minute=2, attachments=1))]
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4_000}}
    async with http_gateway.open_web(db, ScriptedModel(["Hello."] * 2), checks=guards) as open_:
        assert (await open_.ask("Hi", headers=http_gateway.BOB)).status_code == 403
        big = {"model": "holdfast", "messages": [{"role": "user", "content": [picture]}]}
        assert (await open_.client.post(http_gateway.PATH, json=big, headers=dict(http_gateway.ANN))).status_code == 413
        named = http_gateway.ANN | {"x-conversation-id": "garden"}
        for _ in range(2):
            http_gateway.text_of(await open_.ask("Hi", headers=named))
        refused = await open_.ask("And?", headers=named)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")


async def test_nothing_is_taken_before_a_gateway_runs(db: AsyncSessionDB) -> None:
    platform = http_platform.HttpPlatform(db, tokens=http_gateway.TOKENS)
    async with http_gateway.client_of(platform) as client:
        body = {"model": "holdfast", "messages": [{"role": "user", "content": "Hi"}]}
        refused = await client.post(http_gateway.PATH, json=body, headers=dict(http_gateway.ANN))
        assert (refused.status_code, http_gateway.error_of(refused)["code"]) == (503, "not_ready")
        health = await client.get("/health")
        assert (health.status_code, health.json()["ready"], health.json()["live"]) == (503, False, True)
