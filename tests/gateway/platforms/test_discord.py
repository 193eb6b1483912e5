"""Discord through discord.py, against a server on loopback that speaks its REST and gateway protocols."""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, errors, types
from holdfast.gateway import gateway, platform
from holdfast.gateway.platforms import plugins
from holdfast.model import ScriptedModel, base
from tests.support import agents, compaction, discord_server, mcp_raw_server
from tests.support.approvals import Shell, shell_reply
from tests.support.discord_server import ANN, BEN, BOT, CHANNEL, DM, THREAD, TOPIC, DiscordServer
from tests.support.gateways import Gate, HeldModel, intercept, open_gateway, wait_idle, wait_sent, wait_settled
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


@asynccontextmanager
async def running(
    db: AsyncSessionDB, server: DiscordServer, model: Any, settings: dict[str, Any] | None = None, **given: Any
) -> AsyncIterator[gateway.Gateway]:
    """Run a gateway whose bot is connected."""
    async with open_gateway(db, model, platforms=[load(server, **settings or {})], poll=0.02, **given) as (opened, _):
        await opened.wait_ready()
        yield opened


async def settled(db: AsyncSessionDB, *keys: str) -> list[types.InboundMessage]:
    return await wait_settled(db, *keys, platform="discord")


def outgoing(text: str, **fields: Any) -> types.NewOutgoing:
    return types.NewOutgoing(
        **{"platform": "discord", "chat": "c", "address": {"channel": str(DM)}, "text": text} | fields
    )


# --- receiving


async def test_direct_message_is_answered_once_however_often_it_arrives(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    async with running(db, server, ScriptedModel(["Hello!", "Again."])) as opened:
        key = server.say("Hi")
        server.repeat()
        (found,) = await settled(db, key)
        server.repeat()
        await settled(db, server.say("And?"))
        await wait_idle(opened, db)
    assert server.texts() == ["Hello!", "Again."]
    assert (found.sender, found.name, found.route) == ("11", "Ann", "agent:main:discord:dm:11")
    assert ("POST", f"/channels/{DM}/typing", None) in server.requests


async def test_messages_of_servers_need_a_mention_and_threads_are_separate_chats(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    model = ScriptedModel(["One.", "Two.", "Three."])
    async with running(db, server, model) as opened:
        ignored = [server.say("Just talking", channel=CHANNEL), server.say("I am a bot", author=BOT)]
        ignored += [server.say(f"<@{BOT}>", channel=CHANNEL), server.say(f"<@{BOT}> joined", channel=CHANNEL, type=7)]
        found = await settled(db, server.say(f"<@{BOT}> Hi <@12>", channel=CHANNEL))
        found += await settled(db, server.say(f"Plans, <@{BOT}>?", channel=THREAD, author=BEN))
        quoted = {"message_reference": {"message_id": ignored[0], "channel_id": str(CHANNEL)}, "type": 19}
        quoted["referenced_message"] = server.messages[int(ignored[0])]
        found += await settled(db, server.say(f"<@{BOT}> this", channel=CHANNEL, **quoted))
        await wait_idle(opened, db)
        assert [await db.mail.inbound_by_key("discord", each) for each in ignored] == [None] * 4
    assert [each.text for each in found] == ["Hi <@12>", "Plans, ?", "this"]
    group, thread = f"agent:main:discord:group:{CHANNEL}:@{ANN}", f"agent:main:discord:thread:{CHANNEL}:{THREAD}:@{BEN}"
    assert [each.route for each in found] == [group, thread, group]
    assert (server.texts(CHANNEL), server.texts(THREAD)) == (["One.", "Three."], ["Two."])
    assert "Just talking" in str(model.requests[-1].messages[-1].content)
    assert TOPIC not in str(model.requests)


async def test_free_channel_needs_no_mention_and_its_threads_are_found(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    async with running(db, server, ScriptedModel(["Hello!"]), {"free_channels": [CHANNEL]}) as opened:
        server.unavailable.add(f"/channels/{THREAD}")
        await settled(db, server.say("Hi", channel=THREAD))
        await wait_idle(opened, db)
    assert (server.texts(THREAD), server.unavailable) == (["Hello!"], set())


async def test_waiting_messages_are_edited_and_deleted(db: AsyncSessionDB, server: DiscordServer) -> None:
    gate, model = Gate(), ScriptedModel([agents.calls("wait"), "One.", "Two."])
    async with running(db, server, model, tools=[agents.tool("wait", gate)]) as opened:
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
        await wait_idle(opened, db)
    asked = [str(each.content) for each in model.requests[-1].messages if each.role == "user"]
    assert len(asked) == 2
    assert "Two" in asked[1]
    assert server.texts()[-2:] == ["One.", "Two."]


async def test_attachments_are_received_up_to_a_size_and_not_from_strangers(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    async def only_ann(incoming: platform.Incoming, _: str) -> platform.AdmissionResult:
        return platform.AdmissionResult(incoming.sender == str(ANN), message="No access.")

    model = ScriptedModel(["Seen."])
    async with running(db, server, model, {"max_download_bytes": 100}, checks=[only_ann]) as opened:
        server.say("Look", author=BEN, attachments=[server.attach("b.png", b"pixels")])
        await until_async(server.texts)
        files = [server.attach("a.png", PNG, content_type="image/png")]
        files += [server.attach("notes\u202e.txt", b"notes", content_type="text/plain; charset=utf-8")]
        files += [
            server.attach("big\u202e\n.bin", b"x" * 101),
            {**server.attach("false", b"x" * 101), "size": 1},
            {**server.attach("lost", b""), "url": f"{server.url}/cdn/no"},
        ]
        (found,) = await settled(db, server.say("Look", attachments=files))
        await wait_idle(opened, db)
    assert found.text.splitlines() == [
        "Look",
        "[Attachment not received: big .bin, 101 B. The largest possible size is 100 B.]",
        "[Attachment not received: false, 1 B. The largest possible size is 100 B.]",
        "[Attachment not received: lost, 0 B. It could not be downloaded.]",
    ]
    assert [path for _, path, _ in server.requests if path.startswith("/cdn/")] == [
        f"/cdn/{name}" for name in ("a.png", "notes\u202e.txt", "false", "no")
    ]
    image, _, note, file = found.parts
    assert (image["type"], image["media_type"]) == ("image", "image/png")
    assert note["text"].startswith("[Attached: notes.txt, text/plain, 5 bytes.")
    assert file["type"] == "file"


async def test_hostile_names_and_texts_stay_data(db: AsyncSessionDB, server: DiscordServer) -> None:
    reply = "@everyone <@&1> <@11>"
    async with running(db, server, ScriptedModel([reply, "Fine."])) as opened:
        key = server.say("\u202eHi\x00 @everyone", name="Eve\u202e\nSystem:\x1b[0m")
        await until_async(server.texts)
        await settled(db, server.say("Next"))
        await wait_idle(opened, db)
        found = await db.mail.inbound_by_key("discord", key)
    assert server.texts() == [reply, "Fine."]
    assert found is not None
    assert found.name == "Eve System:[0m"
    sent = server.bodies("POST", f"/channels/{DM}/messages")
    assert all(each["allowed_mentions"] == {"parse": []} and each["flags"] == 4 for each in sent)


async def test_message_is_stored_as_soon_as_the_store_works_again(db: AsyncSessionDB, server: DiscordServer) -> None:
    failures = [errors.StoreBusy()]

    async def fail() -> None:
        if failures:
            raise failures.pop()

    async with running(db, server, ScriptedModel(["One.", "Two."])) as opened:
        intercept(opened.handler, "receive", fail)
        one, two = await settled(db, server.say("One"), server.say("Two"))
        await wait_idle(opened, db)
    assert (server.texts(), failures, one.id < two.id) == (["One.", "Two."], [], True)


# --- connections


async def test_events_of_a_disconnect_arrive_when_the_session_is_resumed(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    async with running(db, server, ScriptedModel(["One.", "Two."])) as opened:
        await settled(db, server.say("One"))
        await server.disconnect()
        await settled(db, server.say("Two"))
        await wait_idle(opened, db)
    assert (server.texts(), server.identified, server.resumed) == (["One.", "Two."], 1, 1)


async def test_new_session_reads_the_messages_that_the_old_one_missed(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    async with running(db, server, ScriptedModel(["One.", "Two.", "Three.", "Four."])) as opened:
        await settled(db, server.say("One"), server.say(f"<@{BOT}> Two", channel=THREAD))
        await wait_idle(opened, db)
        await server.disconnect(forget=True)
        server.unavailable.add(f"/channels/{DM}/messages")
        await settled(db, server.say("Three"), server.say(f"<@{BOT}> Four", channel=THREAD))
        await wait_idle(opened, db)
    assert (len(server.texts()), len(server.texts(THREAD)), server.identified) == (2, 2, 2)
    assert not server.unavailable


async def test_two_gateways_of_one_bot_answer_once(db: AsyncSessionDB, server: DiscordServer) -> None:
    model = ScriptedModel(["Hello!"])
    async with running(db, server, model) as first, running(db, server, model) as second:
        server.interact({"name": "status", "type": 1})
        await settled(db, server.say("Hi"))
        await until_async(lambda: len(server.bodies("POST", "/callback")) == 2)
        for each in (first, second):
            await wait_idle(each, db)
    assert len(server.sent()) == 2
    assert server.texts().count("Hello!") == 1


async def test_due_messages_are_sent_while_the_platform_starts_and_stops(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    chat = load(server)
    async with open_gateway(db, ScriptedModel([]), platforms=[chat], grace=1.0, poll=0.02) as (opened, _):
        await db.mail.post(outgoing("Early."))
        await wait_sent(db)
        await opened.wait_ready()
        intercept(opened.router, "stop", lambda: db.mail.post(outgoing("Late.")))
    assert server.texts() == ["Early.", "Late."]
    assert chat._client is None


# --- sending


async def test_long_reply_is_split_by_utf16_units(db: AsyncSessionDB, server: DiscordServer) -> None:
    text = "🙂" * 2_500
    async with running(db, server, ScriptedModel([text])) as opened:
        await settled(db, server.say("Hi"))
        await wait_idle(opened, db)
    assert [len(each) for each in server.texts()] == [1_000, 1_000, 500]


async def test_reply_is_streamed_into_a_draft(db: AsyncSessionDB, server: DiscordServer) -> None:
    model = HeldModel("Hello there!")
    async with running(db, server, model) as opened:
        key = server.say("Hi")
        await until_async(lambda: server.bodies("PATCH", ""))
        (draft,) = server.sent()
        model.released.set()
        await settled(db, key)
        await wait_idle(opened, db)
    assert (server.texts(), server.sent()[0]["id"]) == (["Hello there!"], draft["id"])


async def test_reply_is_sent_anew_if_its_draft_was_deleted(db: AsyncSessionDB, server: DiscordServer) -> None:
    model = HeldModel("Hello there!")
    async with running(db, server, model) as opened:
        key = server.say("Hi")
        await until_async(server.sent)
        server.delete(server.sent()[0]["id"])
        model.released.set()
        await settled(db, key)
        await wait_idle(opened, db)
    assert server.texts() == ["Hello there!"]


async def test_files_are_sent_up_to_a_size(db: AsyncSessionDB, server: DiscordServer) -> None:
    blobs = [await db.blobs.put(bytes([number]), "image/png") for number in range(11)]
    large = await db.blobs.put(b"x" * 11, "image/png")
    async with running(db, server, ScriptedModel([]), {"max_upload_bytes": 10}):
        await db.mail.post(outgoing("Look", attachments=[each.digest for each in (*blobs, large)]))
        await wait_sent(db)
    first, second, notice = server.sent()
    assert [len(each["files"]) for each in (first, second)] == [10, 1]
    assert first["files"][3] == (f"{blobs[3].digest[:12]}.png", b"\x03")
    assert notice["content"].startswith("Not sent, because Discord accepts at most 10 B per file:")


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
    ],
    ids=["rate limit", "temporary", "not reached", "outcome unknown", "final"],
)
async def test_failed_send_is_repeated_without_a_duplicate(
    failures: list[Any], attempts: int, error: str | None, db: AsyncSessionDB, server: DiscordServer
) -> None:
    server.failures.extend(failures)
    async with running(db, server, ScriptedModel([])):
        posted = await db.mail.post(outgoing("Once."))
        await wait_sent(db)
        found = await db.mail.outgoing(posted.id)
    assert found is not None
    assert (found.attempts, found.failed_at is not None) == (attempts, error is not None)
    assert error is None or error in (found.error or "")
    assert server.texts() == ([] if error else ["Once."])


async def test_long_rate_limit_is_left_to_the_gateway(db: AsyncSessionDB, server: DiscordServer) -> None:
    server.failures.append(discord_server.respond(429, {"retry_after": 500.0}, Via="x"))
    async with running(db, server, ScriptedModel([])):
        posted = await db.mail.post(outgoing("Later."))
        found = posted

        async def is_postponed() -> bool:
            nonlocal found
            found = await db.mail.outgoing(posted.id) or posted
            return bool(found.attempts and found.error)

        await until_async(is_postponed)
    assert found.due_at - posted.at >= 500
    assert server.texts() == []


# --- questions and commands


async def test_question_is_answered_by_a_button(db: AsyncSessionDB, server: DiscordServer) -> None:
    shell = Shell()
    async with running(db, server, ScriptedModel([shell_reply("make install"), "Done."]), tools=[shell.tool]) as opened:
        key = server.say(f"<@{BOT}> Install it", channel=CHANNEL)
        await until_async(lambda: any(each["components"] for each in server.sent(CHANNEL)))
        await wait_sent(db)
        question = next(each for each in server.sent(CHANNEL) if each["components"])
        assert "/approve" not in question["content"]
        other = server.press(question, "Allow once", author=BEN)
        await settled(db, f"interaction:{other}")
        assert not shell.ran
        await settled(db, f"interaction:{server.press(question, 'Allow once')}", key)
        await wait_idle(opened, db)
    assert shell.ran
    assert server.texts(CHANNEL)[-1] == "Done."
    assert [each["type"] for each in server.bodies("POST", "/callback")] == [6, 7]
    assert server.bodies("POST", "/callback")[1]["data"]["components"] == []


async def test_slash_commands_are_listed_and_run(db: AsyncSessionDB, server: DiscordServer) -> None:
    async with running(db, server, ScriptedModel(["Hello!"])) as opened:
        ((*listed,),) = server.bodies("PUT", "/commands")
        await settled(db, server.say("Hi"))
        data = {"name": "title", "type": 1, "options": [{"name": "arguments", "type": 3, "value": "Boats"}]}
        (found,) = await settled(db, f"interaction:{server.interact(data)}")
        await wait_idle(opened, db)
    by_name = {each["name"]: each for each in listed}
    assert (by_name["title"]["options"][0]["name"], by_name["status"]["type"]) == ("arguments", 1)
    assert found.text == "/title Boats"
    assert (await db.conversation(found.conversation_id or "")).title == "Boats"
    (answer,) = server.bodies("POST", "/callback")
    assert (answer["type"], answer["data"]["flags"], answer["data"]["content"]) == (4, 64, "/title Boats")


async def test_interaction_does_not_wait_for_the_messages_of_its_channel(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    reached, go = asyncio.Event(), asyncio.Event()
    async with running(db, server, ScriptedModel(["Hello!"])) as opened:
        receive = opened.handler.receive

        async def wait(incoming: platform.Incoming) -> types.InboundMessage | None:
            if incoming.text == "Hi":
                reached.set()
                await go.wait()
            return await receive(incoming)

        opened.handler.receive = wait  # type: ignore[method-assign]
        key = server.say("Hi")
        await reached.wait()
        server.interact({"name": "status", "type": 1})
        await until_async(lambda: server.bodies("POST", "/callback"))
        go.set()
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


@pytest.mark.parametrize("error", [None, errors.StoreBusy()])
async def test_interaction_that_is_not_stored_is_reported(
    error: errors.StoreError | None, db: AsyncSessionDB, server: DiscordServer
) -> None:
    async with running(db, server, ScriptedModel([])) as opened:

        async def receive(_: Any) -> None:
            if error is not None:
                raise error

        opened.handler.receive = receive  # type: ignore[method-assign]
        server.interact({"name": "status", "type": 1})
        await until_async(lambda: server.bodies("POST", "/callback"))
    (answer,) = server.bodies("POST", "/callback")
    expected = "This could not be stored. Please try again." if error else "This was not accepted."
    assert (answer["data"]["content"], server.sent()) == (expected, [])


# --- settings


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"token_env": "TOKEN", "token": "x"}, "unknown field `token`"),
        ({"token_env": "OTHER"}, "OTHER is not set"),
        ({"token_env": "EMPTY"}, "EMPTY does not contain a token"),
        ({"token_env": "TOKEN", "api_url": "http://discord.test/api"}, r"api_url"),
    ],
)
def test_invalid_settings_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.SettingInvalid, match=message):
        plugins.load({"discord": table}, {"TOKEN": "secret", "EMPTY": " "})


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "discord", None)
    monkeypatch.delitem(sys.modules, "holdfast.gateway.platforms.discord", raising=False)
    with pytest.raises(errors.SettingInvalid, match=r"not installed\. Run: .*\[discord\]"):
        plugins.load({"discord": {"token_env": "TOKEN"}}, {"TOKEN": "secret"})


async def test_wrong_token_is_reported_without_it(
    db: AsyncSessionDB, server: DiscordServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    table = {"token_env": "TOKEN", "api_url": f"{server.url}/api/v10"}
    chats = plugins.load({"discord": table}, {"TOKEN": "wrong-secret"})
    async with open_gateway(db, ScriptedModel([]), platforms=chats):
        await until_async(lambda: "stopped receiving" in caplog.text)
    assert "Improper token" in caplog.text
    assert "wrong-secret" not in caplog.text + repr(chats)


# --- everything at once


class Echo(ScriptedModel):
    """A model that repeats the last message."""

    async def stream(self, request: base.Request) -> Any:
        yield base.ContentDelta(f"re {content_parts.text(request.messages[-1].content)}")
        yield base.FinishDelta("stop")


async def test_burst_at_the_compaction_threshold_has_one_continuation(
    db: AsyncSessionDB, server: DiscordServer
) -> None:
    slow, reached, go = compaction.blocked_summary()
    given = {"summarizer": compaction.FakeSummarizer(), "remembers": True, "reviews": True}
    async with running(db, server, Echo(window=compaction.WINDOW), **given) as opened:
        (first,) = await settled(db, server.say("First"))
        await wait_idle(opened, db)
        here = first.conversation_id or ""
        exchange = [types.NewMessage(role=role, content="It is windy there. " * 24) for role in ("user", "assistant")]
        await db.append_messages(here, exchange * 40)
        elsewhere = compaction.compacting_agent(db, compaction.FakeSummarizer(slow), session_id=here)
        compacting = asyncio.create_task(elsewhere.compress_context())
        await reached.wait()
        keys = [server.say(f"Burst {number}") for number in range(5)]
        await server.disconnect()
        await db.mail.add_inbox_entry(here, "n1", "The build ended with 0.", kind="process")
        opened.router.wake()
        keys += [server.say(f"<@{BOT}> Other {number}", channel=CHANNEL, author=BEN) for number in range(3)]
        keys += [server.say(f"<@{BOT}> Thread", channel=THREAD)]
        go.set()
        await compacting
        await settled(db, *keys)
        await until_async(lambda: any("The build ended" in each for each in server.texts()))
        await wait_idle(opened, db)
    own = [each for each in server.texts() if "The build ended" not in each]
    assert own == ["re First", *(f"re Burst {number}" for number in range(5))]
    assert len(server.texts()) == 7
    assert server.texts(CHANNEL) == [f"re Other {number}" for number in range(3)]
    assert server.texts(THREAD) == ["re Thread"]
    sessions = await db.sessions(here)
    assert [len(await db.continuations(each.id)) for each in sessions] == [1] * (len(sessions) - 1) + [0]
    assert len(sessions) > 1
    assert (await db.admin.fsck()).ok
