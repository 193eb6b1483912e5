"""Telegram, through its client library against a Bot API server on loopback."""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import httpx2
import pytest
import telegram as telegram_library
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import parser_inline

from holdfast import AsyncSessionDB, content_parts, errors, types
from holdfast.agent import memory as agent_memory
from holdfast.gateway import gateway, platform
from holdfast.gateway.platforms import plugins
from holdfast.gateway.platforms.telegram import bot, markdown, updates
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from tests.support import agents, compaction, gateways, mcp_raw_server, telegram_server
from tests.support.approvals import Shell, shell_reply
from tests.support.polling import until_async
from tests.support.telegram_server import ANN, GROUP, ME, TOKEN, BotApi, BotError

pytestmark = pytest.mark.filterwarnings("ignore::telegram.warnings.PTBDeprecationWarning")
BEN = {"id": 43, "is_bot": False, "first_name": "Ben"}
SECRET = "secret-of-the-webhook"
PNG = base64.b64decode(mcp_raw_server.PNG)


def load(api: BotApi, token: str = TOKEN, **settings: Any) -> bot.TelegramPlatform:
    """Return the platform as the program loads it: by its entry point."""
    table = {"token_env": "TOKEN", "api_url": api.url, "draft_seconds": 0.01, **settings}
    (found,) = plugins.load({"telegram": table}, {"TOKEN": token, "SECRET": SECRET})
    assert isinstance(found, bot.TelegramPlatform)
    return found


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    async with telegram_server.serve() as served:
        yield served


@pytest.fixture
async def telegram(api: BotApi) -> AsyncIterator[bot.TelegramPlatform]:
    found = load(api)
    yield found
    await found.close()


@pytest.fixture(autouse=True)
def _restart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MIN_RESTART", 0.01)


async def settled(db: AsyncSessionDB, *messages: dict[str, Any]) -> list[types.InboundMessage]:
    """Return the inbound messages of these Telegram messages when they are settled and all replies are sent."""
    keys = [updates.message_key(each["chat"]["id"], each["message_id"]) for each in messages]
    found = await gateways.wait_settled(db, *keys, platform="telegram")
    await gateways.wait_sent(db)
    return found


async def test_message_is_acknowledged_after_it_is_stored_and_answered(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    async def store_fails() -> None:
        assert api.confirmed <= 1_000
        if len(api.called("getUpdates")) < 3:
            raise errors.StoreUnreachable("No connection.")

    gateways.intercept(db.mail, "add_inbound", store_fails)
    async with gateways.open_gateway(db, ScriptedModel(["**Yes** & no."]), platforms=[telegram]):
        said = await api.say("Is 1 < 2?")
        (found,) = await settled(db, said)
        await until_async(lambda: api.confirmed == 1_001)
    assert (found.text, found.sender, found.name, found.route) == (
        "Is 1 < 2?",
        "42",
        "Ann",
        "agent:main:telegram:dm:42",
    )
    assert api.texts() == ["Yes & no."]
    assert api.called("sendMessage")[0]["link_preview_options"] == {"is_disabled": True}
    assert {"command": "stop", "description": "Stop the running turn or command; stored messages stay."} in (
        api.called("setMyCommands")[0]["commands"]
    )
    assert api.called("sendChatAction")[0] == {"chat_id": 42, "action": "typing"}


async def test_redelivered_updates_are_answered_once_and_polling_resumes(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    model = ScriptedModel([f"Reply {number}." for number in range(1, 4)])
    api.failures["getUpdates"] = [BotError(502, "Bad Gateway"), BotError(409, "Conflict: terminated")]
    async with gateways.open_gateway(db, model, platforms=[telegram]):
        said = [await api.say(f"Message {number}") for number in range(1, 4)]
        await settled(db, *said)
        await until_async(lambda: api.confirmed == 1_003)
        api.confirmed = 0
        await api.update(message=said[0])
        await until_async(lambda: api.confirmed == 1_004)
        await settled(db, *said)
    assert api.texts() == ["Reply 1.", "Reply 2.", "Reply 3."]
    assert len(model.requests) == 3


async def test_reply_is_streamed_by_edits_of_one_message(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    model = gateways.HeldModel("*Hello* there!")
    async with gateways.open_gateway(db, model, platforms=[telegram]):
        said = await api.say("Hi")
        api.failures["editMessageText"] = [BotError(400, "Bad Request: message is not modified")]
        await until_async(lambda: api.called("editMessageText"))
        model.released.set()
        await settled(db, said)
    assert len(api.called("sendMessage")) == 1
    assert api.texts() == ["Hello there!"]


async def test_deleted_draft_is_replaced_by_a_new_message(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    model = gateways.HeldModel("Hello there!")
    async with gateways.open_gateway(db, model, platforms=[telegram]):
        said = await api.say("Hi")
        await until_async(lambda: api.messages)
        api.messages.clear()
        model.released.set()
        await settled(db, said)
        await telegram.delete_draft({"chat": 42}, "777")  # It is deleted already, which is no error.
    assert api.texts() == ["Hello there!"]


async def test_edit_replaces_the_message_that_waits(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    gate, model = gateways.Gate(), ScriptedModel([agents.calls("wait"), "First.", "Second."])
    tools = [agents.tool("wait", gate)]
    async with gateways.open_gateway(db, model, platforms=[telegram], tools=tools) as (opened, _):
        first = await api.say("Wait")
        await gate.reached.wait()
        second = await api.say("Bye at nine")
        edited = {**second, "text": "Buy at nine", "edit_date": 1_700_000_001}
        update = telegram_library.Update.de_json(await api.update(edited_message=edited), None)
        replacing = f"42:{second['message_id']}:{updates._version(update.edited_message)}"
        await until_async(lambda: api.confirmed == 1_003)
        gate.go.set()
        _, replaced = await settled(db, first, second)
        await api.update(edited_message={**edited, "has_protected_content": True})  # For example after a reaction.
        await until_async(lambda: api.confirmed == 1_004)
        await gateways.wait_idle(opened, db)
        (edit,) = await gateways.wait_settled(db, replacing, platform="telegram")
    assert (replaced.outcome, edit.outcome, edit.text) == ("replaced", "answered", "Buy at nine")
    assert api.texts() == ["First.", "Second."]


async def test_files_are_received_with_their_types_up_to_a_size(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.files = {"photo": PNG, "voice": b"OggS", "damaged": b"\x89PNG", "large": b"x" * 1_001}
    monkeypatch.setattr(bot, "MAX_DOWNLOAD", 1_000)
    base = {"file_unique_id": "u"}
    model = ScriptedModel(["One.", "Two.", "Three.", "Four.", "Five."])
    async with gateways.open_gateway(db, model, platforms=[telegram]):
        sizes = [{**base, "file_id": name, "width": 1, "height": 1} for name in ("small", "photo")]
        photo = await api.say(photo=sizes, caption="What is it?")
        voice = await api.say(voice={**base, "file_id": "voice", "duration": 1, "mime_type": "audio/ogg"})
        document = {**base, "file_id": "damaged", "file_name": "a\u202eb.png", "mime_type": "image/png"}
        damaged = await api.say(document=document)
        video = {**base, "file_id": "large", "width": 1, "height": 1, "duration": 1}
        large = [await api.say(video={**video, **stated}) for stated in ({"file_size": 1_002}, {})]
        one, two, three, *others = await settled(db, photo, voice, damaged, *large)
    assert (one.text, [part["type"] for part in one.parts]) == ("What is it?", ["image", "file"])
    with db.db.blobs.open(one.parts[0]["blob"]) as stored:
        assert stored.read() == PNG
    assert "[Attached: voice.ogg, audio/ogg, 4 bytes" in two.parts[0]["text"]
    assert "[Attached: ab.png, application/octet-stream" in three.parts[0]["text"]
    assert [each.text for each in others] == [
        f"[The file 'video.mp4' was not downloaded: {size} bytes.]" for size in ("1,002", "1,001")
    ]


async def test_files_of_strangers_are_not_downloaded_and_failing_ones_do_not_block(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    async def only_ann(incoming: platform.Incoming, _: str) -> platform.AdmissionResult:
        asked.append(incoming.kind)
        return platform.AdmissionResult(incoming.sender == "42", message="No access." * (incoming.kind == "dm"))

    asked, voice = list[str](), {"file_id": "gone", "file_unique_id": "u", "duration": 1}
    api.failures["getFile"] = [BotError(500, "Internal Server Error")] * bot.MAX_DOWNLOAD_ATTEMPTS
    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), platforms=[telegram], checks=[only_ann]):
        await api.say(voice=voice, sender=BEN)
        await until_async(lambda: api.texts(43))
        assert (api.called("getFile"), asked) == ([], ["dm"])
        (found,) = await settled(db, await api.say(voice=voice))
    assert (api.texts(43), api.texts()) == (["No access."], ["Yes."])
    assert "was not downloaded: Telegram did not deliver it" in found.text
    assert len(api.called("getFile")) == bot.MAX_DOWNLOAD_ATTEMPTS


def delivery(text: str = "", *files: platform.OutgoingFile, **fields: Any) -> platform.Delivery:
    base = {
        "id": 1,
        "platform": "telegram",
        "chat": "dm:42",
        "address": {"chat": 42},
        "kind": "reply",
        "attachments": [],
        "at": 0.0,
    }
    return platform.Delivery(text=text, files=files, **{**base, **fields})


def outgoing_file(name: str, media_type: str, size: int = 6) -> platform.OutgoingFile:
    async def read() -> bytes:
        return b"pixels"

    return platform.OutgoingFile(name, media_type, size, "digest", read)


async def test_files_are_sent_and_accepted_ones_are_not_repeated(api: BotApi, telegram: bot.TelegramPlatform) -> None:
    photo, voice = outgoing_file("a.png", "image/png"), outgoing_file("b.ogg", "audio/ogg")
    assert await telegram.send(delivery("<b>One</b>", photo)) == "1"
    api.failures["sendVoice"] = [BotError(502, "Bad Gateway")]
    api.failures["sendPhoto"] = [BotError(400, "Bad Request: PHOTO_INVALID_DIMENSIONS")]
    both = delivery("y" * 2_000, photo, voice, id=2)
    with pytest.raises(errors.SendFailed, match="Bad Gateway"):
        await telegram.send(both)
    assert await telegram.send(both) == "2"
    assert [each.get("sent") for each in api.messages.values()] == [
        ("photo", ("a.png", b"pixels")),
        None,
        ("document", ("a.png", b"pixels")),
        ("voice", ("b.ogg", b"pixels")),
    ]
    assert api.texts() == ["One", "y" * 2_000, "", ""]
    with pytest.raises(errors.SendRefused, match="60,000,000 bytes"):
        await telegram.send(delivery("", outgoing_file("c.bin", "application/zip", 60_000_000), id=3))
    draft = await telegram.send(delivery("…", id=4))
    await telegram.send(delivery("", photo, id=5, draft=draft))
    assert int(draft) not in api.messages


async def test_reply_follows_a_group_that_became_a_supergroup(api: BotApi, telegram: bot.TelegramPlatform) -> None:
    moved = BotError(400, "Bad Request: group chat was upgraded to a supergroup chat", migrate_to_chat_id=-100)
    address = {"chat": -5, "thread": 3, "reply_to": 8}
    for number, (method, draft) in enumerate((("editMessageText", "7"), ("sendMessage", None)), 1):
        api.failures[method] = [moved]
        await telegram.send(delivery(f"Reply {number}", id=number, draft=draft, address=address))
    assert api.texts(-100) == ["Reply 1", "Reply 2"]
    assert not {"message_thread_id", "reply_parameters"} & set(api.called("sendMessage")[-1])


@pytest.mark.parametrize(
    ("failure", "error", "seconds"),
    [
        (BotError(429, "Too Many Requests", retry_after=7), errors.SendFailed, 7.0),
        (BotError(500, "Internal Server Error"), errors.SendFailed, None),
        (BotError(401, "Unauthorized"), errors.SendFailed, None),
        (BotError(403, "Forbidden: bot was blocked by the user"), errors.SendRefused, None),
        (BotError(400, "Bad Request: chat not found"), errors.SendRefused, None),
    ],
)
async def test_errors_are_final_or_retried(
    failure: BotError, error: type[Exception], seconds: float | None, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    api.failures["sendMessage"] = [failure]
    with pytest.raises(error) as caught:
        await telegram.send(delivery("Hi"))
    assert getattr(caught.value, "retry_after", None) == seconds
    assert TOKEN not in repr(caught.value)
    assert await telegram.send(delivery("Hi")) == "1"


async def test_draft_waits_after_a_rate_limit_and_repeated_edits_succeed(
    api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    clock, draft = agents.LoopClock(), await telegram.send(delivery("…"))
    api.failures["editMessageText"] = [BotError(429, "Too Many Requests", retry_after=9)]
    edit = asyncio.create_task(telegram.edit_draft({"chat": 42}, draft, "Hi"))
    await until_async(lambda: api.called("editMessageText"))
    await clock.finish(edit)
    for _ in range(2):
        assert await telegram.send(delivery("Hi", draft=draft)) == draft
    api.failures["editMessageText"] = [BotError(400, "Bad Request: chat not found")]
    with pytest.raises(errors.SendRefused):
        await telegram.send(delivery("Ho", draft=draft))
    assert api.texts() == ["Hi"]


async def test_send_with_unknown_outcome_is_repeated_and_not_lost(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    api.failures["sendMessage"] = [telegram_server.BotError(504, "Gateway Timeout").response]
    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), platforms=[telegram]):
        await settled(db, await api.say("Hi"))
    assert (len(api.called("sendMessage")), api.texts()[-1]) == (2, "Yes.")


async def test_buttons_answer_a_question_and_forged_data_does_not(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    shell, model = Shell(), ScriptedModel([shell_reply("make <install>"), "Done."])
    async with gateways.open_gateway(db, model, platforms=[telegram], tools=[shell.tool]):
        said = await api.say("Install it")
        await until_async(lambda: any("reply_markup" in each for each in api.messages.values()))
        await gateways.wait_sent(db)
        number, question = next((n, each) for n, each in api.messages.items() if "reply_markup" in each)
        rows = question["reply_markup"]["inline_keyboard"]
        api.failures["answerCallbackQuery"] = [BotError(400, "Bad Request: query is too old")]
        await api.press(number, "/approve 1 forged")
        await api.press(number, rows[0][0]["callback_data"])
        await settled(db, said)
    assert [row[0]["text"] for row in (rows[0], rows[-1])] == ["Allow once", "Deny"]
    assert "make <install>" in question["text"]
    assert shell.ran == ["make <install>"]
    assert [each["callback_query_id"] for each in api.called("answerCallbackQuery")] == ["q1", "q2"]
    assert await db.mail.inbound_by_key("telegram", "button:q1") is None


async def test_long_reply_is_split_by_utf16_units(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    text = "\n\n".join(f"{number}. {'🙂' * 900} @someone" for number in range(9))
    async with gateways.open_gateway(db, ScriptedModel([text]), platforms=[telegram]):
        await settled(db, await api.say("Hi"))
    parts = api.texts()
    assert len(parts) == 5
    assert "".join(parts).count("🙂") == 8_100
    assert "@someone" not in "".join(parts)


MENTION = {"chat": GROUP, "text": "@holdfast_bot Hi", "entities": [{"type": "mention", "offset": 0, "length": 13}]}
REPLY = {"message_id": 5, "date": 1, "chat": GROUP, "from": ME, "text": "Which one?"}
CREATED = {**REPLY, "text": None, "forum_topic_created": {"name": "Plans", "icon_color": 1}}
FORWARDED = {"type": "hidden_user", "date": 1, "sender_user_name": "x"}


def command(text: str) -> dict[str, Any]:
    return {"text": text, "entities": telegram_server.entities_of(text)}


@pytest.mark.parametrize(
    ("fields", "mentioned", "text"),
    [
        ({}, True, "Hi"),
        (command("/start x"), True, "/help"),
        ({"chat": GROUP}, False, "Hi"),
        (MENTION, True, "Hi"),
        ({**MENTION, "text": "@holdfast_bat Hi"}, False, "@holdfast_bat Hi"),
        ({"chat": GROUP, "reply_to_message": REPLY}, True, "Hi"),
        ({"chat": GROUP, "reply_to_message": {**REPLY, "from": ANN}}, False, "Hi"),
        ({"chat": GROUP, "reply_to_message": CREATED}, False, "Hi"),
        ({"chat": GROUP, **command("/stop")}, True, "/stop"),
        ({"chat": GROUP, **command("/ban x")}, False, "/ban x"),
        ({"chat": GROUP, **command("/stop@Holdfast_bot")}, True, "/stop"),
        ({"chat": GROUP, **command("/stop@other_bot")}, False, ""),
        ({**command("/new"), "forward_origin": FORWARDED}, True, "//new"),
        ({**command("/new"), "via_bot": {**BEN, "is_bot": True}}, True, "//new"),
    ],
)
def test_group_messages_address_the_bot(fields: dict[str, Any], mentioned: bool, text: str) -> None:
    found = read(BotApi().message(**{"text": "Hi", **fields}))
    assert found is not None
    assert (found.mentioned, found.text) == (mentioned, text)


def read(message: dict[str, Any]) -> platform.Incoming | None:
    update = telegram_library.Update.de_json({"update_id": 1, "message": message}, None)
    return updates.read_message("telegram", telegram_library.User.de_json(ME, None), update, answers_all=False)


def test_chat_sender_and_quote_of_a_message() -> None:
    api = BotApi()
    topic = read(api.message("Hi", chat=GROUP, is_topic_message=True, message_thread_id=7))
    assert topic is not None
    assert (topic.kind, topic.chat, topic.address) == (
        "thread",
        ("-100", "7"),
        {"chat": -100, "thread": 7, "reply_to": 1},
    )
    reply = read(api.message("Hi", chat=GROUP, message_thread_id=5, reply_to_message={**REPLY, "from": BEN}))
    assert reply is not None
    assert (reply.kind, reply.reply_to) == ("group", platform.Quote("-100:5", "Which one?", "Ben"))
    private = read(api.message("Hi", is_topic_message=True, message_thread_id=7))
    assert private is not None
    assert (private.kind, private.chat, private.address) == ("dm", ("42", "7"), {"chat": 42, "thread": 7})
    # Anonymous admins share the id of one user, so that the chat they speak for is the sender.
    anonymous = read(api.message("Hi", chat=GROUP, sender={**ME, "id": 1087968824}, sender_chat=GROUP))
    assert anonymous is not None
    assert anonymous.sender == "-100"
    assert read(api.message("Hi", sender={**BEN, "is_bot": True})) is None
    assert read(api.message("Hi", sender_chat=GROUP, is_automatic_forward=True)) is None


def test_hostile_names_and_topics_are_cleaned_or_ignored() -> None:
    api, name = BotApi(), "A\u202en\x00n\n/stop"
    group, created = {**GROUP, "title": name}, {**CREATED, "forum_topic_created": {"name": name, "icon_color": 1}}
    person, quoted = {**ANN, "first_name": name}, {**REPLY, "from": {**BEN, "first_name": name}}
    hostile = read(api.message("Hi", chat=group, sender=person, reply_to_message=quoted))
    assert hostile is not None
    assert hostile.reply_to is not None
    assert (hostile.name, hostile.reply_to.name) == ("Ann /stop", "Ann /stop")
    anonymous = {"sender": {**ME, "id": 1087968824}, "sender_chat": group, "reply_to_message": created}
    topic = read(api.message("Hi", chat=group, is_topic_message=True, message_thread_id=7, **anonymous))
    assert topic is not None
    assert "stop" not in repr(topic)


async def test_group_reply_goes_to_its_topic(db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform) -> None:
    async with gateways.open_gateway(db, ScriptedModel(["One.", "Two."]), platforms=[telegram]):
        await api.say("Not for the bot", chat=GROUP)
        one = await api.say("@Holdfast_bot Hi", chat=GROUP, is_topic_message=True, message_thread_id=7)
        two = await api.say("@Holdfast_bot Hi", chat=GROUP, sender=BEN)
        first, second = await settled(db, one, two)
    assert first.route == "agent:main:telegram:thread:-100:7:@42"
    assert second.route == "agent:main:telegram:group:-100:@43"
    sent = {each["message_thread_id"]: each for each in api.called("sendMessage") if "message_thread_id" in each}
    assert sent[7]["reply_parameters"] == {"message_id": one["message_id"], "allow_sending_without_reply": True}
    assert sorted(api.texts(-100)) == ["One.", "Two."]


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# Title\nSome *text* & `a<b`", "<b>Title</b>\nSome <i>text</i> &amp; <code>a&lt;b</code>"),
        ("```py\nx < 1\n```", '<pre><code class="language-py">x &lt; 1</code></pre>'),
        ('```"><b>\nx\n```', "<pre>x</pre>"),
        ("- a\n  - b\n\n2) c", "• a\n  • b\n\n2) c"),
        ("- - a", "• • a"),
        ("> a\n> > b\n\n---", "<blockquote>a\nb</blockquote>\n\n———"),
        ("|a|b|\n|-|-|\n|1|<|", "<pre>|a|b|\n|-|-|\n|1|&lt;|</pre>"),
        ("~~**x**~~ <b>y</b>", "<s><b>x</b></s> &lt;b&gt;y&lt;/b&gt;"),
        ('[x](https://a.b/?q="&r) [y](tg://user?id=42)', '<a href="https://a.b/?q=%22&amp;r">x</a> y'),
        ("[![](http://i)](http://b)", '<a href="http://b">link</a>'),
        ("@**ann** a@b.c `@x`", "@\u2060<b>ann</b> a@b.c <code>@x</code>"),
        ("[x]: http://a", "[x]: http://a"),
        (">" * 30 + " deep", "<blockquote>deep</blockquote>"),
    ],
)
def test_markdown_becomes_html(text: str, html: str) -> None:
    assert markdown.render(text) == html


@pytest.mark.parametrize("text", ["![" * 2_000, "[" * 4_000, "![[](<" * 600])
def test_rendering_of_hostile_text_takes_a_bounded_number_of_steps(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, skip = Counter[str](), parser_inline.ParserInline.skipToken

    def count(parser: parser_inline.ParserInline, state: Any) -> None:
        steps["skipped"] += 1
        skip(parser, state)

    monkeypatch.setattr(parser_inline.ParserInline, "skipToken", count)
    assert markdown.visible_text(markdown.render(text)) == text
    assert 0 < steps["skipped"] < 50 * len(text)


@given(st.text(st.sampled_from(list("ab1.-)*_~`#>|[]()!<&;@\\:/ \n\t🙂")), max_size=60))
def test_rendered_text_is_valid_and_not_longer_than_measured(text: str) -> None:
    if not text.strip():
        return
    shown = telegram_server.parse_markup(markdown.render(text)).visible
    assert markdown.utf16_length(shown) <= markdown.measure(text)
    assert shown == markdown.visible_text(markdown.render(text))


async def test_webhook_needs_its_secret_and_stores_each_update_once(db: AsyncSessionDB, api: BotApi) -> None:
    address = "https://bot.example.com/telegram"
    telegram = load(api, webhook_url=address, webhook_secret_env="SECRET", webhook_port=0)
    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), platforms=[telegram]) as (opened, _):
        await opened.wait_ready()
        said = api.message("Hi")
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{telegram.webhook_port}") as client:
            for secret, status in (("wrong", 403), ("é", 403), (SECRET, 200), (SECRET, 200)):
                headers = {bot.SECRET_HEADER: secret.encode()}
                answered = await client.post("/telegram", json={"update_id": 1, "message": said}, headers=headers)
                assert answered.status_code == status
            assert (await client.post("/", json={}, headers=headers)).status_code == 404
            api.failures["getFile"] = [BotError(500, "Internal Server Error")]
            voice = api.message(voice={"file_id": "v", "file_unique_id": "u", "duration": 1})
            answered = await client.post("/telegram", json={"update_id": 2, "message": voice}, headers=headers)
            assert answered.status_code == 503  # Telegram delivers it again.
        await settled(db, said)
    (given,) = api.called("setWebhook")
    assert (given["url"], given["secret_token"], given["max_connections"]) == (address, SECRET, 1)
    assert (api.texts(), api.called("getUpdates")) == (["Yes."], [])


async def test_token_is_never_logged(db: AsyncSessionDB, api: BotApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.WARNING, "uvicorn")  # The log of the server in this process.
    telegram = load(api, token="654321:another-token")
    async with gateways.open_gateway(db, ScriptedModel(), platforms=[telegram]):
        await until_async(lambda: caplog.text.count("refused the token in TOKEN") > 1)
    assert "another-token" not in caplog.text + repr(telegram)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"colour": "red"}, "unknown field `colour`"),
        ({"api_url": "http://example.com"}, "`api_url` must begin with https"),
        ({"webhook_url": "https://a.b"}, "`webhook_secret_env`"),
        ({"webhook_url": "http://a.b", "webhook_secret_env": "SECRET"}, "`webhook_url` must begin"),
        ({"token_env": "OTHER"}, "OTHER does not contain a token"),
    ],
)
def test_invalid_settings_are_reported_without_secrets(settings: dict[str, str], why: str) -> None:
    secrets = {"TOKEN": TOKEN, "SECRET": SECRET, "OTHER": "x"}
    with pytest.raises(errors.SettingInvalid, match=why) as caught:
        plugins.load({"telegram": {"token_env": "TOKEN", **settings}}, secrets)
    assert TOKEN not in str(caught.value)


def test_missing_extra_is_reported_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if "platforms.telegram" in each]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "telegram", None)
    with pytest.raises(errors.SettingInvalid, match=r"not installed. Run: .*\[telegram\]"):
        plugins.load({"telegram": {"token_env": "TOKEN"}}, {"TOKEN": TOKEN})


class Echo:
    """Repeats the last message, and finds nothing to remember in reviews."""

    name, window = "echo/model", compaction.WINDOW

    def __init__(self) -> None:
        self.reviews = 0

    async def stream(self, request: models.Request) -> AsyncGenerator[models.Delta, None]:
        is_review = request.system == agent_memory.INSTRUCTIONS
        self.reviews += is_review
        yield models.ContentDelta(
            "nothing" if is_review else f"re {content_parts.text(request.messages[-1].content).strip()}"
        )
        yield models.FinishDelta("stop")

    async def close(self) -> None:
        pass


async def test_everything_at_once_continues_one_conversation_and_answers_each_message_once(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    await compaction.fill(db, owner="telegram:42")
    await db.bind_route("agent:main:telegram:dm:42", "talk", version=0)
    summarize, started, proceed = compaction.blocked_summary()
    model, summarizer = Echo(), compaction.FakeSummarizer(summarize)
    options = {"summarizer": summarizer, "remembers": True, "reviews": True}
    async with gateways.open_gateway(db, model, platforms=[telegram], **options) as (opened, _):
        said = [await api.say("One")]
        await started.wait()
        said += [await api.say(text) for text in ("Two", "Three", "Four")]
        said += [await api.say("@Holdfast_bot Five", chat=GROUP, sender=BEN), await api.say("Six", sender=BEN)]
        await db.mail.add_inbox_entry("talk", "n1", "The build ended with 0.", kind="process")
        opened.router.wake()
        for each in said:  # Telegram delivers all of them again.
            await api.update(message=each)
        proceed.set()
        found = await settled(db, *said)
        await until_async(lambda: api.confirmed == 1_000 + 2 * len(said))
        await gateways.wait_idle(opened, db)
    assert [each.outcome for each in found] == ["answered"] * len(said)
    replies = [each for each in api.texts() if "The build ended" not in each]
    assert (replies, len(api.texts())) == (["re One", "re Two", "re Three", "re Four"], 5)
    assert (api.texts(43), api.texts(-100)) == (["re Six"], ["re Five"])
    assert (len(await db.continuations("talk")), model.reviews > 0) == (1, True)
    assert {each.conversation_id for each in found[:4]} == {"talk"}
    assert (await db.admin.fsck()).ok
