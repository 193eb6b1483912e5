"""The platform port: plug-ins, drafts, questions with choices, edits, deletions, attachments and rate limits."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, config, errors, events, types
from holdfast.gateway import gateway, gateway_context, inbound, outbox, platform, routes, turn_progress
from holdfast.gateway import settings as gateway_settings
from holdfast.gateway.platforms import plugins
from holdfast.model import ScriptedModel
from tests.support.agents import LoopClock
from tests.support.approvals import Shell, shell_reply
from tests.support.gateways import (
    HeldModel,
    intercept,
    new_inbound,
    open_gateway,
    open_turn,
    settle,
    texts,
    wait_sent,
    wait_settled,
)
from tests.support.memory_platform import MemoryPlatform
from tests.support.polling import until_async


class Chatty(MemoryPlatform):
    """A platform with drafts, choices and rate limits."""

    def __init__(self, context: platform.PlatformContext | None = None) -> None:
        super().__init__(context.name if context else "loopback")
        self.context, self.deleted = context, list[str]()
        self.questions: list[tuple[platform.Delivery, platform.ApprovalQuestion]] = []

    draft_seconds = 0.01
    pace = platform.Pace()

    async def edit_draft(self, address: dict[str, Any], draft: str, text: str) -> None:
        pass

    async def delete_draft(self, address: dict[str, Any], draft: str) -> None:
        self.deleted.append(draft)

    async def send_question(self, delivery: platform.Delivery, question: platform.ApprovalQuestion) -> str:
        self.questions.append((delivery, question))
        return await self.send(delivery)


def make(context: platform.PlatformContext) -> Chatty:
    if "token_env" not in context.settings:
        raise errors.SettingInvalid("`token_env` is required.")
    return Chatty(context)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with an entry point for the platform `chatty`."""
    info = tmp_path / "chatty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chatty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[holdfast.platforms]\nchatty = {__name__}:make\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    assert "chatty" in metadata.entry_points(group=gateway_settings.PLUGIN_GROUP).names


@pytest.mark.usefixtures("package")
def test_platform_is_loaded_by_entry_point_with_its_settings_table() -> None:
    said = config.validate({"gateway": {"chatty": {"token_env": "CHATTY_TOKEN"}}}).gateway
    table = {"token_env": "CHATTY_TOKEN"}
    assert (said.platforms, said.variables, said.has_http) == ({"chatty": table}, ["CHATTY_TOKEN"], False)
    (found,) = plugins.load(said.platforms, {"CHATTY_TOKEN": "secret", "OTHER": "x"})
    assert isinstance(found, Chatty)
    assert found.context == ("chatty", table, {"CHATTY_TOKEN": "secret"})
    with pytest.raises(errors.SettingInvalid, match="CHATTY_TOKEN is not set"):
        plugins.load(said.platforms, {})
    with pytest.raises(errors.SettingInvalid, match=r"gateway\.chatty: `token_env` is required"):
        plugins.load({"chatty": {}}, {})
    with pytest.raises(errors.SettingInvalid, match="found none"):
        plugins.load({"other": {}}, {})
    with pytest.raises(errors.SettingInvalid, match="htpp"):
        config.validate({"gateway": {"htpp": {}}})


class Observing(MemoryPlatform):
    """A platform that observes turns, and fails to."""

    def __init__(self) -> None:
        super().__init__("far")
        self.seen: list[str] = []

    def on_event(self, arrival: types.InboundMessage, event: object) -> None:
        self.seen.append(f"{arrival.key} {type(event).__name__}")
        raise RuntimeError("the screen is broken")

    async def send_typing(self, address: dict[str, object]) -> None:
        self.seen.append(f"typing {address['chat']}")


async def test_platform_observes_the_turn_and_its_failures_do_not_matter(db: AsyncSessionDB) -> None:
    chat = Observing()
    async with open_gateway(db, ScriptedModel(["Yes."]), platforms=[chat]):
        await chat.say("Hi", key="1")
        assert texts(await chat.replies(1)) == ["Yes."]
    order = [each for each in chat.seen if each.split()[-1] in ("TurnStarted", "TextDelta", "TurnFinished")]
    assert (order, "typing local" in chat.seen) == (["1 TurnStarted", "1 TextDelta", "1 TurnFinished"], True)


class Unreachable(MemoryPlatform):
    """A platform that cannot connect at first, and never reports that it is ready."""

    def __init__(self) -> None:
        super().__init__("far")
        self.attempts, self.listed = 0, 0

    async def wait_ready(self) -> None:
        await asyncio.Event().wait()

    async def show_commands(self, listed: object) -> None:
        self.attempts += 1
        if self.attempts == 1:
            raise ConnectionError("there is no network")
        self.listed += 1

    async def run(self, handler: platform.Handler) -> None:
        if self.attempts < 3:
            self.attempts += 1
            raise ConnectionError("there is no network")
        await super().run(handler)


async def test_unreachable_platform_delays_no_other_one(db: AsyncSessionDB, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "MIN_RESTART", 0.01)
    far, near = Unreachable(), MemoryPlatform()
    async with open_gateway(db, ScriptedModel(["Yes."]), platforms=[near, far]) as (opened, _):
        await opened.wait_ready(0.05)
        await settle(db, near, "Hi", key="1")
        await until_async(lambda: far.handler is not None)
    assert far.listed == 1


class Limited(MemoryPlatform):
    """A platform that asks for a pause when it connects, and for each typing indicator."""

    runs = typed = 0

    async def run(self, handler: platform.Handler) -> None:
        self.runs += 1
        if self.runs == 1:
            raise errors.SendFailed("Too many requests.", retry_after=1e9)
        await super().run(handler)

    async def send_typing(self, address: dict[str, object]) -> None:
        self.typed += 1
        raise errors.SendFailed("Too many requests.", retry_after=1e9)


async def test_pauses_that_a_platform_asks_for_are_kept_up_to_a_limit(db: AsyncSessionDB) -> None:
    async def check_pause(count: Callable[[], int]) -> None:
        await until_async(lambda: count() == 1)
        clock.advance(platform.MAX_RETRY_AFTER - 60)
        await asyncio.sleep(0.01)
        assert count() == 1
        clock.advance(120)
        await until_async(lambda: count() == 2)

    clock, chat, model = LoopClock(), Limited(), HeldModel("Yes.")
    async with open_gateway(db, model, platforms=[chat]):
        await check_pause(lambda: chat.runs)
        await until_async(lambda: chat.handler is not None)
        await chat.say("Hi", key="1")
        await check_pause(lambda: chat.typed)
        model.released.set()
        await chat.replies(1)


class Closing(MemoryPlatform):
    """A platform with a connection that all sends need; closing it fails."""

    is_open = True

    async def send(self, delivery: platform.Delivery) -> str:
        assert self.is_open
        return await super().send(delivery)

    async def close(self) -> None:
        self.is_open = False
        raise RuntimeError("the line is busy")


async def test_platform_is_closed_after_the_last_message_was_sent(db: AsyncSessionDB) -> None:
    chats = [Closing("far"), Closing("near")]
    async with open_gateway(db, ScriptedModel(), platforms=chats, grace=1.0) as (opened, _):
        late = types.NewOutgoing(platform="far", chat="c", address={"chat": "c"}, text="Late.")
        intercept(opened.router, "stop", lambda: db.mail.post(late))
    assert texts(chats[0].sent) == ["Late."]
    assert not any(each.is_open for each in chats)


async def test_draft_of_a_dead_process_is_deleted_with_its_message(db: AsyncSessionDB) -> None:
    chat = Chatty()
    found, _ = await db.mail.add_inbound(new_inbound("1", "Hi"))
    draft = await outbox.post_draft(db, gateway_context.reply_address(found), found.id)
    await db.mail.mark_delivered(draft.id, "draft-1")
    assert await inbound.InboundHandler(db, lambda _: None).delete("loopback", "1")
    async with open_gateway(db, ScriptedModel(), platforms=[chat]):
        await wait_settled(db, "1")
        await wait_sent(db)
    assert (chat.sent, chat.deleted) == ([], ["draft-1"])


async def test_reply_is_stored_after_a_draft_that_is_being_stored(db: AsyncSessionDB) -> None:
    waits, _ = await db.mail.add_inbound(new_inbound("1", "Hi"))
    post, begun, go = db.mail.post, asyncio.Event(), asyncio.Event()

    async def write(*args: Any, **given: Any) -> types.Outgoing:
        begun.set()
        await go.wait()
        return await post(*args, **given)

    # Like a write in a thread, it is not cancelled with the task that waits for it.
    db.mail.post = lambda *args, **given: asyncio.shield(write(*args, **given))  # type: ignore[method-assign]
    async with (
        open_gateway(db, ScriptedModel(), platforms=[Chatty()]) as (opened, _),
        opened.runtimes.use(routes.Principal("a", "a")) as used,
    ):
        where = gateway_context.reply_address(waits)
        progress = turn_progress.TurnProgress(opened.router._context, used, "talk", where, waits, "own")
        for number, event in enumerate((events.MessageStored(1, "own", "user"), events.TextDelta("Hello")), 1):
            progress.on_emitted(events.Emitted("talk", number, event))
        await begun.wait()
        closing = asyncio.create_task(progress.close())
        await asyncio.wait([closing], timeout=0.1)
        assert not closing.done()
        go.set()
        await closing
        assert await outbox.find_draft(db, waits.id) is not None


class Refusing(Chatty):
    """A platform that accepts no files."""

    async def send(self, delivery: platform.Delivery) -> str:
        if delivery.files:
            raise errors.SendRefused("No files.")
        return await super().send(delivery)


class RefusingSeparately(Refusing):
    separate_files = True


NOTICE = "Not sent: `a.csv` (No files)"


@pytest.mark.parametrize(
    ("kind", "text", "sent", "deleted"),
    [
        (Refusing, "", (NOTICE, None), ["draft-1"]),
        (Refusing, "Here.", (f"Here.\n\n{NOTICE}", "draft-1"), []),
        # Earlier versions queued a text and files as one message. The text may have replaced the draft.
        (RefusingSeparately, "Here.", (NOTICE, None), []),
    ],
)
async def test_notice_about_a_refused_file_follows_the_text_or_the_deletion_of_the_draft(
    kind: type[Refusing], text: str, sent: tuple[str, str | None], deleted: list[str], db: AsyncSessionDB
) -> None:
    chat, blob = kind(), await db.blobs.put(b"a,b", "text/csv")
    found, _ = await db.mail.add_inbound(new_inbound("1", "Hi"))
    to = gateway_context.reply_address(found)
    draft = await outbox.post_draft(db, to, found.id)
    await db.mail.mark_delivered(draft.id, "draft-1")
    place = {"platform": to.platform, "chat": to.chat, "address": to.address}
    file = types.NewOutgoing(text=text, attachments=[blob.digest], file_names={blob.digest: "a.csv"}, **place)
    await db.mail.settle_inbound(None, found.id, "answered", outgoing=[file])
    async with open_gateway(db, ScriptedModel(), platforms=[chat]):
        await wait_sent(db)
    assert chat.deleted == deleted
    assert [(each.text, each.draft, each.files) for each in chat.sent] == [(*sent, ())]


async def test_choice_answers_its_own_question_only(db: AsyncSessionDB) -> None:
    chat, shell = Chatty(), Shell()
    model = ScriptedModel([shell_reply("make one"), shell_reply("make two", "c2"), "Done."])
    async with open_gateway(db, model, platforms=[chat], tools=[shell.tool]):
        await chat.say("One", key="1")
        await until_async(lambda: chat.questions)
        await settle(db, chat, "/stop", key="2")
        await settle(db, chat, "/new", key="3")
        await chat.say("Two", key="4")
        await until_async(lambda: len(chat.questions) == 2)
        await wait_sent(db)
        (_, old), (delivery, new) = chat.questions
        assert (old.number, new.number, "/approve" in delivery.text) == (1, 1, False)
        # The buttons of the first conversation are still shown.
        for key, choice in (("5", old.choices[0]), ("6", old.choices[-1])):
            await settle(db, chat, choice.text, key=key)
        assert shell.ran == []
        await chat.say(new.choices[0].text, key="7")
        await wait_settled(db, "4", "7")
        await wait_sent(db)
    assert shell.ran == ["make two"]
    assert " ".join(" ".join(texts(chat.sent)).split()).count("This approval is no longer pending.") == 2
    assert [each.label for each in new.choices][-1] == "Deny"
    assert all(len(each.text) <= 64 for each in new.choices)  # Telegram's limit of a button.


async def test_quoted_message_reaches_the_model_and_settled_ones_cannot_be_deleted(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["One.", "Two."])
    async with open_gateway(db, model) as (opened, chat):
        await settle(db, chat, "The boats leave at nine", key="1", name="Ann")
        await settle(db, chat, "Which ones?", key="2", reply_to="1")
        assert not await opened.handler.delete("loopback", "1")
        assert not await opened.handler.delete("loopback", "unknown")
    sent = str(model.requests[-1].messages[-1].content)
    assert "The boats leave at nine" in sent
    assert "reply to an earlier message" in sent


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_deletion_received_here_or_by_another_process_stops_the_turn(elsewhere: bool, db: AsyncSessionDB) -> None:
    async with open_turn(db, ["Third."], poll=0.02 if elsewhere else 60.0) as turn:
        await turn.chat.say("Two", key="2")
        handler = inbound.InboundHandler(db, lambda _: None) if elsewhere else turn.gateway.handler
        assert await handler.delete("loopback", "2")
        assert await handler.delete("loopback", "1")
        one, two = await wait_settled(db, "1", "2")
        await turn.chat.say("Three", key="3")
        await turn.finish("3")
        assert not await handler.delete("loopback", "1")
    assert (one.outcome, two.outcome) == ("interrupted", "interrupted")
    assert texts(turn.chat.sent) == ["Third."]
    assert "Two" not in str(turn.model.requests[-1].messages)


def test_pacer_delays_messages_before_the_platform_refuses_them() -> None:
    now = [0.0]
    pacer = outbox.Pacer(platform.Pace(platform.Rate(3, 3.0), platform.Rate(1, 2.0)), lambda: now[0])
    assert (pacer.try_take("a"), pacer.try_take("a")) == (0.0, 2.0)
    assert (pacer.try_take("b"), pacer.try_take("c")) == (0.0, 0.0)
    assert pacer.try_take("d") == 1.0
    now[0] = 1.0
    assert (pacer.try_take("d"), pacer.try_take("a")) == (0.0, 1.0)
    now[0] = 10.0
    pacer.forget_idle()
    assert pacer._chats == {}
