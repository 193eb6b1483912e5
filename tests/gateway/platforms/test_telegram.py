"""Telegram, through its client library against a Bot API server on loopback."""

from __future__ import annotations

import base64
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
import telegram as telegram_library
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import parser_inline
from starlette import responses

from holdfast import AsyncSessionDB, errors, types
from holdfast.gateway import gateway, platform, text_split
from holdfast.gateway.platforms import plugins
from holdfast.gateway.platforms.telegram import bot, markdown, updates
from holdfast.model import ScriptedModel
from tests.support import agents, gateways, mcp_raw_server, telegram_server
from tests.support.approvals import Shell, shell_reply
from tests.support.polling import until_async
from tests.support.telegram_server import ANN, GROUP, ME, TOKEN, BotApi, BotError

pytestmark = pytest.mark.filterwarnings("ignore::telegram.warnings.PTBDeprecationWarning")
BEN = {"id": 43, "is_bot": False, "first_name": "Ben"}
HELPER = {**BEN, "is_bot": True}
MENTION = {"chat": GROUP, "text": "@holdfast_bot Hi", "entities": [{"type": "mention", "offset": 0, "length": 13}]}
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


async def test_message_is_answered_in_its_chat(db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform) -> None:
    api.webhook = "https://bot.example.com/earlier"
    async with gateways.open_gateway(db, ScriptedModel(["**Yes** & no."]), platforms=[telegram]):
        (found,) = await settled(db, await api.say("Is 1 < 2?"))
    assert (found.text, found.sender, found.name) == ("Is 1 < 2?", "42", "Ann")
    assert (found.route, api.texts()) == ("agent:main:telegram:dm:42", ["Yes & no."])
    assert api.called("sendMessage")[0]["link_preview_options"] == {"is_disabled": True}
    stop = {"command": "stop", "description": "Stop the running turn or command; stored messages stay."}
    assert stop in api.called("setMyCommands")[0]["commands"]
    assert api.called("sendChatAction")[0] == {"chat_id": 42, "action": "typing"}


async def test_edit_replaces_a_waiting_message(db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform) -> None:
    gate, model = gateways.Gate(), ScriptedModel([agents.calls("wait"), "First.", "Second."])
    tools = [agents.tool("wait", gate)]
    async with gateways.open_gateway(db, model, platforms=[telegram], tools=tools) as (opened, _):
        first = await api.say("Wait")
        await gate.reached.wait()
        second = await api.say("Bye at nine")
        edited = {**second, "text": "Buy at nine", "edit_date": 1_700_000_001}
        await api.update(edited_message={**edited, "text": "Buy at ten"})  # In the same second.
        update = telegram_library.Update.de_json(await api.update(edited_message=edited), None)
        replacing = f"42:{second['message_id']}:{updates._version(update.edited_message)}"
        await until_async(lambda: api.confirmed == 1_004)
        gate.go.set()
        _, replaced = await settled(db, first, second)
        await api.update(edited_message={**edited, "has_protected_content": True})  # For example after a reaction.
        await until_async(lambda: api.confirmed == 1_005)
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
    assert "[Attached: 'voice.ogg', audio/ogg, 4 bytes" in two.parts[0]["text"]
    assert "[Attached: 'ab.png', application/octet-stream" in three.parts[0]["text"]
    note = "[The file 'video.mp4' was not received: it is larger than 1,000 bytes.]"
    assert [each.text for each in others] == [note] * 2


async def test_files_of_strangers_are_not_downloaded_and_failing_updates_do_not_block(
    db: AsyncSessionDB,
    api: BotApi,
    telegram: bot.TelegramPlatform,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def only_ann(incoming: platform.Incoming, _: str) -> platform.AdmissionResult:
        if incoming.text == "Fail":
            raise ZeroDivisionError
        if incoming.text == "Go on" and store_errors:  # The update is repeated until it is stored.
            raise store_errors.pop()
        asked.append(incoming.kind)
        return platform.AdmissionResult(incoming.sender == "42", message="No access." * (incoming.kind == "dm"))

    asked, voice = list[str](), {"file_id": "gone", "file_unique_id": "u", "duration": 1}
    store_errors = [errors.StoreBusy() for _ in range(bot.MAX_FAILURES)]
    monkeypatch.setattr(bot, "DOWNLOAD_PAUSE", 0.0)
    no_path = responses.JSONResponse({"ok": True, "result": {"file_id": "gone", "file_unique_id": "u"}})
    failure, api.files = BotError(500, "Internal Server Error"), {"gone": b"OggS"}
    api.failures["getFile"] = [failure, no_path, failure]
    model = ScriptedModel(["Yes.", "Go on.", "More."])
    async with gateways.open_gateway(db, model, platforms=[telegram], checks=[only_ann]):
        await api.say(voice=voice, sender=BEN)
        await until_async(lambda: api.texts(43))
        assert (api.called("getFile"), asked) == ([], ["dm"])
        (found,) = await settled(db, await api.say(voice=voice))
        assert "stopped receiving" not in caplog.text
        await api.say("Fail")
        await settled(db, await api.say("Go on"))
        await settled(db, await api.say("More"))
        assert not telegram._failures, "updates that are not repeated are still counted"
    assert (api.texts(43), api.texts()) == (["No access."], ["Yes.", "Go on.", "More."])
    assert found.text == "[The file 'voice.ogg' was not received: Telegram did not deliver it.]"
    assert len(api.called("getFile")) == bot.DOWNLOAD_ATTEMPTS


async def test_poll_waits_as_long_as_telegram_asks_for(
    db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform, caplog: pytest.LogCaptureFixture
) -> None:
    api.failures["getUpdates"] = [BotError(429, "Too Many Requests", retry_after=1)]
    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), platforms=[telegram]):
        await until_async(lambda: api.called("getUpdates"))
        limited = time.monotonic()
        await settled(db, await api.say("Hi"))
        assert time.monotonic() - limited > 0.9
    assert "stopped receiving" not in caplog.text


delivery = functools.partial(gateways.delivery, platform="telegram", address={"chat": 42})


async def test_type_of_a_file_decides_how_it_is_sent(api: BotApi, telegram: bot.TelegramPlatform) -> None:
    api.failures["sendPhoto"] = [BotError(400, "Bad Request: PHOTO_INVALID_DIMENSIONS")]
    files = [
        ("document", "a.png", "image/png"),  # It was refused as a photo.
        ("photo", "a.png", "image/png"),
        ("document", "a.gif", "image/gif"),
        ("voice", "b.ogg", "audio/ogg"),
        ("audio", "b.mp3", "audio/mpeg"),
    ]
    for _, name, media_type in files:
        await telegram.send(delivery("", files=(gateways.outgoing_file(name, media_type),)))
    assert [each["sent"] for each in api.messages.values()] == [(kind, (name, b"pixels")) for kind, name, _ in files]
    with pytest.raises(errors.SendRefused, match="60,000,000 bytes"):
        await telegram.send(delivery("", files=(gateways.outgoing_file("c.bin", "application/zip", size=60_000_000),)))
    draft = await telegram.send(delivery("…"))
    for _ in range(2):  # It is deleted already, which is no error.
        await telegram.delete_draft({"chat": 42}, draft)
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
        (BotError(400, f"Bad Request: no method /bot{TOKEN}/sendMessage"), errors.SendRefused, None),
    ],
)
async def test_errors_are_final_or_retried(
    failure: BotError, error: type[Exception], seconds: float | None, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    api.failures["sendMessage"] = [failure]
    with pytest.raises(error) as caught:
        await telegram.send(delivery("Hi"))
    assert getattr(caught.value, "retry_after", None) == seconds
    assert TOKEN.partition(":")[2].lower() not in repr(caught.value).lower()
    assert await telegram.send(delivery("Hi")) == "1"


async def test_draft_is_edited_after_a_failure(db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform) -> None:
    model = gateways.HeldModel("Hello there!")
    api.failures["editMessageText"] = [BotError(502, "Bad Gateway"), BotError(429, "Too Many Requests", retry_after=1)]
    async with gateways.open_gateway(db, model, platforms=[telegram]):
        said = await api.say("Hi")
        await until_async(lambda: any("Hello" in each for each in api.texts()))
        assert len(api.called("editMessageText")) == 3
        model.released.set()
        await settled(db, said)


async def test_repeated_edit_of_a_draft_succeeds(api: BotApi, telegram: bot.TelegramPlatform) -> None:
    draft = await telegram.send(delivery("…"))
    for _ in range(2):
        assert await telegram.send(delivery("Hi", draft=draft)) == draft
    api.failures["editMessageText"] = [BotError(400, "Bad Request: chat not found")]
    with pytest.raises(errors.SendRefused):
        await telegram.send(delivery("Ho", draft=draft))
    assert api.texts() == ["Hi"]


@pytest.mark.parametrize("fields", [{}, MENTION])
async def test_buttons_answer_a_question_and_forged_data_does_not(
    fields: dict[str, Any], db: AsyncSessionDB, api: BotApi, telegram: bot.TelegramPlatform
) -> None:
    shell, model = Shell(), ScriptedModel([shell_reply("make <install>"), "Done."])
    async with gateways.open_gateway(db, model, platforms=[telegram], tools=[shell.tool]):
        said = await api.say(**{"text": "Install it", **fields})
        await until_async(lambda: any("reply_markup" in each for each in api.messages.values()))
        await gateways.wait_sent(db)
        number, question = next((n, each) for n, each in api.messages.items() if "reply_markup" in each)
        rows = question["reply_markup"]["inline_keyboard"]
        api.failures["answerCallbackQuery"] = [BotError(400, "Bad Request: query is too old")]
        await api.press(number, "/approve 1 forged")
        await api.press(number, rows[0][0]["callback_data"])
        await settled(db, said)
        await until_async(lambda: api.confirmed > api.updates[-1]["update_id"])
    # In a group, anyone can press: the buttons stay for those who may answer.
    assert ("reply_markup" in question) is bool(fields)
    assert [row[0]["text"] for row in (rows[0], rows[-1])] == ["Allow once", "Deny"]
    assert "make <install>" in question["text"]
    assert shell.ran == ["make <install>"]
    assert [each["callback_query_id"] for each in api.called("answerCallbackQuery")] == ["q1", "q2"]
    assert await db.mail.inbound_by_key("telegram", "button:q1") is None


REPLY = {"message_id": 5, "date": 1, "chat": GROUP, "from": ME, "text": "Which one?"}
CREATED = {**REPLY, "text": None, "forum_topic_created": {"name": "Plans", "icon_color": 1}}
FORWARDED = {"type": "hidden_user", "date": 1, "sender_user_name": "x]"}
NEWS = {"id": -200, "type": "channel", "title": "News"}
CHANNEL = {"type": "channel", "date": 1, "chat": NEWS, "message_id": 3}


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
        ({**command("/new"), "forward_origin": FORWARDED}, True, '[Forwarded message of "x]": "/new"]'),
        ({"text": 'a"]\n', "forward_origin": CHANNEL}, True, r'[Forwarded message of "News": "a\"]\n"]'),
        ({**command("/new"), "via_bot": {**HELPER, "username": "b"}}, True, '[Text of the bot "@b": "/new"]'),
    ],
)
def test_group_messages_address_the_bot(fields: dict[str, Any], mentioned: bool, text: str) -> None:
    found = read(BotApi().message(**{"text": "Hi", **fields}))
    assert (found.mentioned, found.text) == (mentioned, text)


def read(message: dict[str, Any]) -> platform.Incoming | None:
    update = telegram_library.Update.de_json({"update_id": 1, "message": message}, None)
    return updates.read_message("telegram", telegram_library.User.de_json(ME, None), update, answers_all=False)


def test_chat_sender_and_quote_of_a_message() -> None:
    api = BotApi()
    topic = read(api.message("Hi", chat=GROUP, is_topic_message=True, message_thread_id=7))
    assert (topic.kind, topic.chat) == ("thread", ("-100", "7"))
    assert topic.address == {"chat": -100, "thread": 7, "reply_to": 1}
    reply = read(api.message("Hi", chat=GROUP, message_thread_id=5, reply_to_message={**REPLY, "from": BEN}))
    assert (reply.kind, reply.reply_to) == ("group", platform.Quote("-100:5", "Which one?", "Ben"))
    selected = read(api.message("Hi", external_reply={"origin": CHANNEL}, quote={"text": "words", "position": 0}))
    assert selected.reply_to == platform.Quote("external:3", "words", "News")
    private = read(api.message("Hi", is_topic_message=True, message_thread_id=7))
    assert (private.kind, private.chat, private.address) == ("dm", ("42", "7"), {"chat": 42, "thread": 7})
    # Anonymous admins share the id of one user, so that the chat they speak for is the sender.
    anonymous = read(api.message("Hi", chat=GROUP, sender={**ME, "id": 1087968824}, sender_chat=NEWS))
    assert (anonymous.sender, anonymous.name) == ("-200", "News")
    assert read(api.message("Hi", sender=HELPER)) is None
    assert read(api.message("Hi", sender_chat=GROUP, is_automatic_forward=True)) is None


def test_hostile_names_and_topics_are_cleaned_or_ignored() -> None:
    api, name = BotApi(), "A\u202en\x00n\n/stop"
    group, created = {**GROUP, "title": name}, {**CREATED, "forum_topic_created": {"name": name, "icon_color": 1}}
    person, quoted = {**ANN, "first_name": name}, {**REPLY, "from": {**BEN, "first_name": name}}
    hostile = read(api.message("Hi", chat=group, sender=person, reply_to_message=quoted))
    assert (hostile.name, hostile.reply_to.name) == ("Ann /stop", "Ann /stop")
    anonymous = {"sender": {**ME, "id": 1087968824}, "sender_chat": group, "reply_to_message": created}
    topic = read(api.message("Hi", chat=group, is_topic_message=True, message_thread_id=7, **anonymous))
    assert (topic.name, topic.reply_to) == ("Ann /stop", None)


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
    shown = telegram_server.visible_text(markdown.render(text))
    assert text_split.utf16_length(shown) <= markdown.measure(text)
    assert shown == markdown.visible_text(markdown.render(text))


async def test_webhook_needs_its_secret_and_stores_each_update_once(db: AsyncSessionDB, api: BotApi) -> None:
    async def store_fails() -> None:
        raise errors.StoreBusy

    address = "https://bot.example.com/telegram"
    telegram = load(api, webhook_url=address, webhook_secret_env="SECRET", webhook_port=0)
    async with gateways.open_gateway(db, ScriptedModel(["Yes."]), platforms=[telegram]) as (opened, _):
        await opened.wait_ready()
        said = api.message("Hi")
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{telegram.webhook_port}") as client:
            for secret, status in ((None, 403), ("wrong", 403), ("é", 403), (SECRET, 200), (SECRET, 200)):
                headers = {} if secret is None else {bot.SECRET_HEADER: secret.encode()}
                answered = await client.post("/telegram", json={"update_id": 1, "message": said}, headers=headers)
                assert answered.status_code == status
            assert (await client.post("/", json={}, headers=headers)).status_code == 404
            gateways.intercept(db.mail, "add_inbound", store_fails)
            update = {"update_id": 2, "message": api.message("Again")}
            answered = await client.post("/telegram", json=update, headers=headers)
            assert answered.status_code == 503  # Telegram delivers it again.
        await settled(db, said)
    (given,) = api.called("setWebhook")
    assert (given["url"], given["secret_token"], given["max_connections"]) == (address, SECRET, 1)
    assert (api.texts(), api.called("getUpdates")) == (["Yes."], [])
