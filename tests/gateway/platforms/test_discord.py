"""Discord through discord.py, against a server on loopback that speaks its REST and gateway protocols."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import datetime
from typing import Any

import pytest

from holdfast import AsyncSessionDB, errors, types
from holdfast.gateway import gateway, limits, platform
from holdfast.gateway import settings as gateway_settings
from holdfast.gateway.platforms import discord, plugins
from holdfast.model import ScriptedModel
from tests.support import agents, discord_server, mcp_raw_server, platform_contract
from tests.support.approvals import Shell, shell_reply
from tests.support.discord_server import ANN, BEN, BOT, CHANNEL, DM, THREAD, TOPIC, DiscordServer
from tests.support.gateways import (
    Gate,
    delivery,
    intercept,
    open_gateway,
    run_platform,
    wait_idle,
    wait_sent,
    wait_settled,
)
from tests.support.polling import until_async

PNG = base64.b64decode(mcp_raw_server.PNG)
LATER = "2026-01-01T00:00:09.000000+00:00"


@pytest.fixture
async def server() -> AsyncIterator[DiscordServer]:
    async with discord_server.serving() as opened:
        yield opened


def load(server: DiscordServer, **settings: Any) -> Any:
    table = {"token_env": "TOKEN", "api_url": f"{server.url}/api/v10", "draft_seconds": 0.5, **settings}
    (loaded,) = plugins.load({"discord": table}, {"TOKEN": discord_server.TOKEN})
    return loaded


def running(
    db: AsyncSessionDB, server: DiscordServer, model: Any, settings: dict[str, Any] | None = None, **given: Any
) -> AbstractAsyncContextManager[gateway.Gateway]:
    """Run a gateway whose bot is connected."""
    return run_platform(db, model, load(server, **settings or {}), **given)


async def settled(db: AsyncSessionDB, *keys: str) -> list[types.InboundMessage]:
    return await wait_settled(db, *keys, platform="discord")


def edit_key(message_id: str) -> str:
    """Return the key of an edit that the server made at its usual time."""
    at = datetime.fromisoformat(discord_server.AT).timestamp()
    return f"{message_id}:{at:.6f}"


def outgoing(text: str, **fields: Any) -> types.NewOutgoing:
    known = {"platform": "discord", "chat": "c", "address": {"channel": str(DM)}}
    return types.NewOutgoing(text=text, **{**known, **fields})


def test_delivery_is_identified_by_its_store_and_refers_once_to_its_message() -> None:
    fields: dict[str, Any] = {"platform": "discord", "at": 1.0, "address": {"reply_to": "7"}}
    first, *others = [delivery(**{**fields, **each}) for each in ({}, {"at": 2.0}, {"chat": "dm:ben"}, {"id": 2})]
    assert len({discord.nonce(each) for each in (first, *others)}) == 4
    assert discord.nonce(first) == discord.nonce(delivery("Repeated", **fields))
    assert discord.reference_of(first, 5) is not None
    assert discord.reference_of(delivery(**fields, part=1), 5) is None


# --- receiving


@pytest.mark.parametrize("settings", [{}, {"message_content": True}], ids=["mentions", "all content"])
async def test_messages_of_servers_need_a_mention_and_threads_are_separate_chats(
    settings: dict[str, Any], db: AsyncSessionDB, server: DiscordServer
) -> None:
    model = ScriptedModel(["One.", "Two.", "Three."])
    async with running(db, server, model, settings):
        ignored = [server.say("Just talking", channel=CHANNEL), server.say("I am a bot", author=BOT)]
        ignored.append(server.say(f"<@{BOT}> I am a webhook", channel=CHANNEL, webhook_id=str(ANN)))
        ignored += [server.say(f"<@{BOT}>", channel=CHANNEL), server.say(f"<@{BOT}> joined", channel=CHANNEL, type=7)]
        found = await settled(db, server.say(f"<@{BOT}> Hi <@12>", channel=CHANNEL))
        found += await settled(db, server.say(f"Plans, <@{BOT}>?", channel=THREAD, author=BEN))
        quoted = {"message_reference": {"message_id": ignored[0], "channel_id": str(CHANNEL)}, "type": 19}
        quoted["referenced_message"] = server.messages[int(ignored[0])]
        found += await settled(db, server.say(f"<@{BOT}> this", channel=CHANNEL, **quoted))
    assert [await db.mail.inbound_by_key("discord", each) for each in ignored] == [None] * 5
    assert [each.text for each in found] == ["Hi <@12>", "Plans, ?", "this"]
    group, thread = f"agent:main:discord:group:{CHANNEL}:@{ANN}", f"agent:main:discord:thread:{CHANNEL}:{THREAD}:@{BEN}"
    assert [each.route for each in found] == [group, thread, group]
    sent = server.bodies("POST", f"/channels/{CHANNEL}/messages")
    assert [each["message_reference"]["message_id"] for each in sent] == [int(found[0].key), int(found[2].key)]
    assert (server.texts(CHANNEL), server.texts(THREAD)) == (["One.", "Three."], ["Two."])
    assert ("Just talking" in str(model.requests[-1].messages[-1].content)) == bool(settings)
    assert TOPIC not in str(model.requests)


async def test_free_channel_and_its_threads_need_no_mention(db: AsyncSessionDB, server: DiscordServer) -> None:
    async with running(db, server, ScriptedModel(["Hello!"]), {"free_channels": [CHANNEL]}):
        server.unavailable[f"/channels/{THREAD}"] = 429
        await settled(db, server.say("Hi", channel=THREAD))
    assert (server.texts(THREAD), server.unavailable) == (["Hello!"], {})


async def test_waiting_messages_are_edited_and_deleted(db: AsyncSessionDB, server: DiscordServer) -> None:
    gate, model, failures = Gate(), ScriptedModel([agents.calls("wait"), "One.", "Two."]), [errors.StoreBusy()]

    async def store_fails() -> None:
        if failures:
            raise failures.pop()

    async with running(db, server, model, tools=[agents.tool("wait", gate)]) as opened:
        intercept(opened.handler, "delete", store_fails)
        server.say("Wait")
        await gate.reached.wait()
        second, third = server.say("Tow"), server.say("Three")
        server.emit("MESSAGE_UPDATE", server.messages[int(second)])  # a link preview is not an edit
        server.edit(second, "Two")
        server.edit(third, "Tree")
        server.edit(third, "Trees", LATER)
        server.delete(third)
        last = server.say("/status")
        await settled(db, last)
        gate.go.set()
    asked = [str(each.content) for each in model.requests[-1].messages if each.role == "user"]
    assert len(asked) == 2
    assert "Two" in asked[1]
    assert server.texts()[-2:] == ["One.", "Two."]


async def test_attachments_are_received_up_to_a_size_and_not_from_strangers(
    db: AsyncSessionDB, server: DiscordServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def only_ann(incoming: platform.Incoming, _: str) -> platform.AdmissionResult:
        return platform.AdmissionResult(incoming.sender == str(ANN), message="No access.")

    monkeypatch.setattr(discord, "DOWNLOAD_PAUSE", 0.0)
    checks = [only_ann, limits.RateLimits(db, gateway_settings.GatewayLimits(attachments=1))]
    async with running(db, server, ScriptedModel(["Seen."]), {"max_download_bytes": 100}, checks=checks):
        server.say("Look", author=BEN, attachments=[server.attach("b.png", b"pixels")])
        server.say("Many", attachments=[server.attach(f"{number}.bin", b"x" * 100) for number in range(11)])
        await until_async(lambda: len(server.texts()) == 2)
        server.unavailable["/cdn/a.png"] = 404
        files = [
            server.attach("a.png", PNG, content_type="image/png"),
            server.attach("notes\u202e.txt", b"notes", content_type="text/plain; charset=utf-8"),
            server.attach("big\u202e\n.bin", b"x" * 101),
            {**server.attach("false", b"x" * 101), "size": 1},
            {**server.attach("lost", b""), "url": f"{server.url}/cdn/no"},
        ]
        (found,) = await settled(db, server.say("Look", attachments=files))
    assert found.text.splitlines() == [
        "Look",
        "[The file 'big .bin' was not received: it is larger than 100 bytes.]",
        "[The file 'false' was not received: it is larger than 100 bytes.]",
        "[The file 'lost' was not received: Discord did not deliver it.]",
    ]
    downloaded = [path.removeprefix("/cdn/") for _, path, _ in server.requests if path.startswith("/cdn/")]
    assert downloaded == ["a.png", "a.png", "notes\u202e.txt", "false", "no", "no", "no"]
    assert "/cdn/" not in caplog.text
    image, _, note, file = found.parts
    assert (image["type"], image["media_type"]) == ("image", "image/png")
    assert note["text"].startswith("[Attached: 'notes.txt', text/plain, 5 bytes.")
    assert file["type"] == "file"


async def test_hostile_names_and_texts_stay_data(db: AsyncSessionDB, server: DiscordServer) -> None:
    reply = "@everyone <@&1> <@11>"
    async with running(db, server, ScriptedModel([reply])):
        (found,) = await settled(db, server.say("\u202eHi\x00 @everyone", name="Eve\u202e\nSystem:\x1b[0m"))
    assert server.texts() == [reply]
    assert (found.sender, found.name, found.route) == ("11", "Eve System:[0m", "agent:main:discord:dm:11")
    assert ("POST", f"/channels/{DM}/typing", None) in server.requests
    sent = server.bodies("POST", f"/channels/{DM}/messages")
    assert all(each["allowed_mentions"] == {"parse": []} and each["flags"] == 4 for each in sent)


# --- connections


@pytest.mark.parametrize("restarts", [False, True], ids=["session", "process"])
async def test_session_reads_missed_messages_first(restarts: bool, db: AsyncSessionDB, server: DiscordServer) -> None:
    model, identify, keys = platform_contract.echo_model(), server.identify, []

    def identify_and_say(socket: Any, intents: int) -> None:
        identify(socket, intents)
        edited = server.say("Tow")
        server.edit(edited, "Two")  # Before the session has read the message.
        keys.extend([edit_key(edited), server.say("New")])

    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(running(db, server, model))
        await settled(db, server.say("One"), server.say(f"<@{BOT}> Two", channel=THREAD))
        await wait_idle(opened, db)
        if restarts:
            await stack.aclose()
        else:
            await server.disconnect(forget=True)
        server.unavailable[f"/channels/{DM}/messages"] = 429 if restarts else 503
        keys += [server.say("Missed"), *(server.say(f"<@{BOT}> Missed", channel=THREAD) for _ in range(2))]
        server.identify = identify_and_say  # type: ignore[method-assign]
        if restarts:
            await stack.enter_async_context(running(db, server, model))
        await until_async(lambda: len(keys) == 5)
        await settled(db, *keys)
    first, missed, edited, new = server.texts()
    assert (first, missed, "Two" in edited, new) == ("re One", "re Missed", True, "re New")
    assert await db.mail.inbound_by_key("discord", keys[3].partition(":")[0]) is None
    assert (len(server.texts(THREAD)), server.identified, server.unavailable) == (3, 2, {})
    # By the first message, and once for those that were missed.
    assert [path for _, path, _ in server.requests].count(f"/channels/{THREAD}") == 2


async def test_message_missed_before_a_channel_was_free_needs_mention(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    model = platform_contract.echo_model()
    for free in ([CHANNEL], []):
        async with running(db, server, model, {"free_channels": free}):
            await settled(db, server.say(f"<@{BOT}> One", channel=CHANNEL))
        missed = [server.say("Just talking", channel=CHANNEL), server.say(f"<@{BOT}> Two", channel=CHANNEL)]
        async with running(db, server, model, {"free_channels": [CHANNEL]}):
            await settled(db, missed[1])
        assert (await db.mail.inbound_by_key("discord", missed[0]) is not None) == bool(free)


async def test_missed_edit_and_edited_mention_are_received_once(db: AsyncSessionDB, server: DiscordServer) -> None:
    model, delayed = platform_contract.echo_model(), server.say("Delayed")
    async with running(db, server, model):
        mentioned = server.say("Hi", channel=CHANNEL)
        server.messages[int(mentioned)]["mentions"] = [discord_server.user(BOT)]
        server.edit(mentioned, f"<@{BOT}> Hi")
        known, same = server.say("Known"), server.say("Same")
        await settled(db, edit_key(mentioned), known, same)
        # It is stored last, so that the next process reads the messages after it.
        server.emit("MESSAGE_CREATE", server.messages[int(delayed)])
        await settled(db, delayed)
    server.edit(known, "Changed")
    server.edit(same, "Same")
    for text in ("Next", "Last"):
        async with running(db, server, model):
            if text == "Next":
                (edit,) = await settled(db, edit_key(known))
                assert platform.edited_key(edit) == known
            await settled(db, server.say(text), server.say(f"<@{BOT}> {text}", channel=CHANNEL))
    assert (len(server.texts()), sum("Changed" in each for each in server.texts())) == (6, 1)
    assert server.texts(CHANNEL)[1:] == ["re Next", "re Last"]
    for unchanged in (edit_key(same), mentioned):
        assert await db.mail.inbound_by_key("discord", unchanged) is None


@pytest.mark.parametrize("missed", [4, 5])
async def test_missed_messages_that_are_too_many_are_reported(
    missed: int,
    db: AsyncSessionDB,
    server: DiscordServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(discord, "MAX_MISSED", 4)
    async with running(db, server, platform_contract.echo_model()):
        await settled(db, server.say("One"))
    server.messages.clear()  # The position is known, though its message was deleted.
    keys = [server.say(f"Missed {number}") for number in range(missed)]
    async with running(db, server, platform_contract.echo_model()):
        await settled(db, *keys[-4:])
    is_received = await db.mail.inbound_by_key("discord", keys[0]) is not None
    is_reported = f"reads only the newest 4 missed messages of channel {DM}" in caplog.text
    assert (is_received, is_reported) == ((True, False) if missed == 4 else (False, True))


async def test_messages_are_sent_while_the_platform_starts_and_stops(db: AsyncSessionDB, server: DiscordServer) -> None:
    chat = load(server)
    async with open_gateway(db, ScriptedModel([]), platforms=[chat], grace=1.0, poll=0.02) as (opened, _):
        await db.mail.post(outgoing("Early."))
        await wait_sent(db)
        await opened.wait_ready()
        intercept(opened.router, "stop", lambda: db.mail.post(outgoing("Late.")))
    assert server.texts() == ["Early.", "Late."]
    assert chat._client is None


# --- sending


async def test_files_are_sent_up_to_a_size(db: AsyncSessionDB, server: DiscordServer) -> None:
    small, large = [await db.blobs.put(b"x" * size, "image/png") for size in (10, 11)]
    async with running(db, server, ScriptedModel([]), {"max_upload_bytes": 10}):
        for blob in (large, small):
            await db.mail.post(outgoing("", attachments=[blob.digest]))
        await wait_sent(db)
    notice, file = server.sent()
    assert file["files"] == [(f"{small.digest[:12]}.png", b"x" * 10)]
    assert notice["content"] == f"Not sent: `{large.digest[:12]}.png` (Discord accepts at most 10 B per file)"


async def test_webhook_reply_goes_to_a_user_or_a_channel(db: AsyncSessionDB, server: DiscordServer) -> None:
    async with running(db, server, ScriptedModel([])):
        for chat in (str(ANN), str(CHANNEL), "ann"):
            await db.mail.post(outgoing(f"For {chat}", chat=chat, address={"chat": chat}))
        await wait_sent(db)
    assert (server.texts(), server.texts(CHANNEL)) == ([f"For {ANN}"], [f"For {CHANNEL}"])


@pytest.mark.parametrize(
    ("failures", "attempts", "error"),
    [
        ([discord_server.respond(429, {"retry_after": 0.01}, Via="x")], 1, None),
        ([discord_server.respond(429), discord_server.respond(503)], 3, None),
        ([discord_server.drop], 2, None),
        ([discord_server.accept, discord_server.drop], 2, None),
        ([discord_server.respond(403, {"message": "Missing Access", "code": 50001})], 1, "Missing Access"),
        ([discord_server.respond(400, {"message": "Cannot reply", "code": 160002})], 1, None),
    ],
    ids=["rate limit", "temporary", "not reached", "outcome unknown", "final", "no reference"],
)
async def test_failed_send_is_repeated_without_a_duplicate(
    failures: list[Any], attempts: int, error: str | None, db: AsyncSessionDB, server: DiscordServer
) -> None:
    server.failures.extend(failures)
    async with running(db, server, ScriptedModel([])):
        posted = await db.mail.post(outgoing("Once.", address={"channel": str(DM), "reply_to": "1"}))
        await wait_sent(db)
        found = await db.mail.outgoing(posted.id)
    assert (found.attempts, found.failed_at is not None) == (attempts, error is not None)
    assert error is None or error in (found.error or "")
    assert server.texts() == ([] if error else ["Once."])


@pytest.mark.parametrize(
    "refusal",
    [
        discord_server.respond(429, {"retry_after": 500.0}, Via="x"),
        discord_server.respond(429, **{"Retry-After": "500"}),  # Of a proxy in front of Discord.
    ],
)
async def test_long_rate_limit_is_left_to_the_gateway(refusal: Any, server: DiscordServer) -> None:
    server.failures.append(refusal)
    with pytest.raises(errors.SendFailed) as failed:
        await load(server).send(delivery("Later.", platform="discord", address={"channel": str(DM)}))
    assert (failed.value.retry_after or 0) >= 500


async def test_reply_is_a_new_message_if_the_thread_of_its_draft_is_archived(server: DiscordServer) -> None:
    chat, where = load(server), {"platform": "discord", "address": {"channel": str(DM)}}
    draft = await chat.send(delivery("Half", **where))
    server.is_archived = True
    await chat.send(delivery("Done.", draft=draft, **where))
    assert server.texts() == ["Half", "Done."]


async def test_request_that_is_cancelled_during_a_global_rate_limit_blocks_no_other(
    db: AsyncSessionDB, server: DiscordServer, caplog: pytest.LogCaptureFixture
) -> None:
    chat = load(server)
    server.failures.append(discord_server.respond(429, {"retry_after": 25.0, "global": True}, Via="x"))
    async with run_platform(db, ScriptedModel(), chat):
        request = asyncio.create_task(chat.send(delivery("One", platform="discord", address={"channel": str(DM)})))
        await until_async(lambda: "Global rate limit" in caplog.text)
        request.cancel()
        async with asyncio.timeout(60):
            await chat.send(delivery("Two", platform="discord", address={"channel": str(DM)}))
    assert server.texts() == ["Two"]


# --- questions and commands


async def test_question_is_answered_by_a_button(db: AsyncSessionDB, server: DiscordServer) -> None:
    shell = Shell()
    async with running(db, server, ScriptedModel([shell_reply("make install"), "Done."]), tools=[shell.tool]):
        key = server.say(f"<@{BOT}> Install it", channel=CHANNEL)
        await until_async(lambda: any(each["components"] for each in server.sent(CHANNEL)))
        await wait_sent(db)
        question = next(each for each in server.sent(CHANNEL) if each["components"])
        assert "/approve" not in question["content"]
        other = server.press(question, "Allow once", author=BEN)
        await settled(db, f"interaction:{other}")
        assert not shell.ran
        await settled(db, f"interaction:{server.press(question, 'Allow once')}", key)
    assert shell.ran
    assert server.texts(CHANNEL)[-1] == "Done."
    assert [each["type"] for each in server.bodies("POST", "/callback")] == [6, 7]
    assert server.bodies("POST", "/callback")[1]["data"]["components"] == []


async def test_slash_commands_are_listed_and_run(db: AsyncSessionDB, server: DiscordServer) -> None:
    async with running(db, server, ScriptedModel(["Hello!"])):
        ((*listed,),) = server.bodies("PUT", "/commands")
        await settled(db, server.say("Hi"))
        data = {"name": "title", "type": 1, "options": [{"name": "arguments", "type": 3, "value": "Boats"}]}
        (found,) = await settled(db, f"interaction:{server.interact(data)}")
    by_name = {each["name"]: each for each in listed}
    assert (by_name["title"]["options"][0]["name"], by_name["status"]["type"]) == ("arguments", 1)
    assert found.text == "/title Boats"
    assert (await db.conversation(found.conversation_id or "")).title == "Boats"
    (answer,) = server.bodies("POST", "/callback")
    assert (answer["type"], answer["data"]["flags"], answer["data"]["content"]) == (4, 64, "/title Boats")


async def test_interaction_does_not_wait_for_messages_of_its_channel(db: AsyncSessionDB, server: DiscordServer) -> None:
    gate = Gate()
    async with running(db, server, ScriptedModel(["Hello!"])) as opened:
        intercept(opened.handler, "receive", lambda: gate(None))
        key = server.say(f"<@{BOT}> Hi", channel=CHANNEL)
        await gate.reached.wait()
        server.interact({"name": "status", "type": 1}, channel=CHANNEL)
        await until_async(lambda: server.bodies("POST", "/callback"))
        gate.go.set()
        await settled(db, key)


@pytest.mark.parametrize("code", [4010, 4014])
async def test_refused_connection_is_not_repeated_at_once_and_messages_are_sent_meanwhile(
    code: int,
    db: AsyncSessionDB,
    server: DiscordServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(gateway, "MIN_RESTART", 0.01)
    server.refused = code
    async with open_gateway(db, ScriptedModel(), platforms=[load(server)], poll=0.02):
        await until_async(lambda: "will connect again in 15 minutes" in caplog.text)
        await db.mail.post(outgoing("Sent meanwhile."))
        await wait_sent(db)
    assert server.texts() == ["Sent meanwhile."]
    assert "stopped receiving" not in caplog.text


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        (platform.AdmissionResult(False), "This was not accepted."),
        (platform.AdmissionResult(False, "limit", "Rate limit exceeded."), "Rate limit exceeded."),
        (errors.StoreBusy(), "This could not be stored. Please try again."),
    ],
)
async def test_refused_command_in_a_channel_shows_the_reason_to_its_user_only(
    result: platform.AdmissionResult | errors.StoreBusy, shown: str, db: AsyncSessionDB, server: DiscordServer
) -> None:
    async def refuse(*_: object) -> platform.AdmissionResult:
        if isinstance(result, errors.StoreBusy):
            raise result
        return result

    async with running(db, server, ScriptedModel([]), checks=[refuse]):
        server.interact({"name": "status", "type": 1}, channel=CHANNEL)
        await until_async(lambda: server.bodies("POST", "/callback"))
    (answer,) = server.bodies("POST", "/callback")
    assert (answer["data"]["content"], answer["data"]["flags"]) == (shown, 64)
    assert server.sent(CHANNEL) == []
