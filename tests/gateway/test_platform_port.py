"""The platform port: a platform loaded by entry point, with every optional ability."""

from __future__ import annotations

import asyncio
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, config, errors, types
from holdfast.gateway import gateway_context, inbound, outbox, platform, worker
from holdfast.gateway import settings as gateway_settings
from holdfast.gateway.platforms import plugins
from holdfast.model import ScriptedModel
from tests.gateway.test_http_chat import Held
from tests.support import gateways, memory_platform, polling
from tests.support.agents import Stuck, calls, tool
from tests.support.approvals import Shell, runs


class Chatty(memory_platform.MemoryPlatform):
    """A platform with drafts, choices, its own text format and rate limits."""

    def __init__(self, context: platform.PlatformContext | None = None) -> None:
        super().__init__(context.name if context else "loopback", 40)
        self.context, self.edits, self.deleted = context, list[tuple[str, str]](), list[str]()
        self.questions: list[tuple[platform.Delivery, platform.ApprovalQuestion]] = []

    draft_seconds = 0.01
    pace = platform.Pace()

    def render(self, text: str) -> str:
        return text.replace("**", "*")

    def measure(self, text: str) -> int:
        return 2 * len(text)

    async def edit_draft(self, address: dict[str, Any], draft: str, text: str) -> None:
        self.edits.append((draft, text))

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
    assert (said.platforms, said.variables, said.has_http) == (
        {"chatty": {"token_env": "CHATTY_TOKEN"}},
        ["CHATTY_TOKEN"],
        False,
    )
    (found,) = plugins.load(said.platforms, {"CHATTY_TOKEN": "secret", "OTHER": "x"})
    assert isinstance(found, Chatty)
    assert found.context == ("chatty", {"token_env": "CHATTY_TOKEN"}, {"CHATTY_TOKEN": "secret"})
    with pytest.raises(errors.SettingInvalid, match="CHATTY_TOKEN is not set"):
        plugins.load(said.platforms, {})
    with pytest.raises(errors.SettingInvalid, match=r"gateway\.chatty: `token_env` is required"):
        plugins.load({"chatty": {}}, {})
    with pytest.raises(errors.SettingInvalid, match="found none"):
        plugins.load({"other": {}}, {})
    with pytest.raises(errors.SettingInvalid, match="htpp"):
        config.validate({"gateway": {"htpp": {}}})


async def test_text_is_measured_and_rendered_by_the_platform(db: AsyncSessionDB) -> None:
    chat = Chatty()
    model = ScriptedModel(["**One** sentence here.\n\nAnd **another**."])
    async with gateways.open_gateway(db, model, platforms=[chat]):
        await chat.say("Hi", key="1")
        (inbound,) = await gateways.settled(db, "1")
        await polling.until_async(lambda: _sent(db, inbound.id))
    replies = [each for each in chat.sent if each.kind == "reply"]
    assert " ".join(each.text for each in replies).split() == ["*One*", "sentence", "here.", "And", "*another*."]
    assert len(replies) > 1
    assert all(chat.measure(each.text) <= chat.limit for each in replies)
    stored = await db.mail.replies(inbound.id)
    assert "**another**" in "".join(each.text for each in stored)


async def _sent(db: AsyncSessionDB, inbound_id: int) -> bool:
    return not any(each.open for each in await db.mail.replies(inbound_id))


async def test_reply_replaces_the_draft_that_a_dead_process_left(db: AsyncSessionDB) -> None:
    chat = Chatty()
    place = {"platform": "loopback", "chat": "dm:local", "address": {"chat": "local"}}
    new = types.NewInboundMessage(
        key="1",
        route="agent:main:loopback:dm:local",
        sender="local",
        text="Hi",
        **place,  # type: ignore[arg-type]
    )
    inbound, _ = await db.mail.add_inbound(new)
    # An earlier process sent the draft, stored its id, and died.
    draft = await outbox.post_draft(db, gateway_context.reply_address(inbound), inbound.id)
    assert draft is not None
    await db.mail.mark_delivered(draft.id, "draft-1")
    async with gateways.open_gateway(db, ScriptedModel(["Hello!"]), platforms=[chat]):
        await gateways.settled(db, "1")
        await polling.until_async(lambda: _sent(db, inbound.id))
    (reply,) = chat.sent
    assert (reply.text, reply.draft, reply.is_draft) == ("Hello!", "draft-1", False)
    assert chat.deleted == []


async def test_draft_of_a_turn_without_a_reply_is_deleted(db: AsyncSessionDB) -> None:
    chat = Chatty()
    place = {"platform": "loopback", "chat": "dm:local", "address": {"chat": "local"}}
    new = types.NewInboundMessage(
        key="1",
        route="agent:main:loopback:dm:local",
        sender="local",
        text="Hi",
        **place,  # type: ignore[arg-type]
    )
    inbound, _ = await db.mail.add_inbound(new)
    draft = await outbox.post_draft(db, gateway_context.reply_address(inbound), inbound.id)
    assert draft is not None
    await db.mail.mark_delivered(draft.id, "draft-1")
    async with gateways.open_gateway(db, ScriptedModel([]), platforms=[chat]) as (opened, _):
        assert await opened.handler.delete("loopback", "1")
        await gateways.settled(db, "1")
        await polling.until_async(lambda: _sent(db, inbound.id))
    assert (chat.sent, chat.deleted) == ([], ["draft-1"])


async def test_question_has_an_id_and_choices(db: AsyncSessionDB) -> None:
    chat, shell = Chatty(), Shell()
    model = ScriptedModel([runs("make install"), "Done."])
    async with gateways.open_gateway(db, model, platforms=[chat], tools=[shell.tool]):
        await chat.say("Install it", key="1")
        while not chat.questions:
            await asyncio.sleep(0.01)
        delivery, question = chat.questions[0]
        assert (question.number, question.choices[0].text) == (1, "/approve 1")
        assert question.choices[-1] == platform.QuestionChoice("Deny", "/deny 1")
        assert "/approve" not in delivery.text
        await polling.until_async(lambda: _delivered(db, delivery.id))
        await chat.say(question.choices[0].text, key="2")
        await gateways.settled(db, "1", "2")
    assert shell.ran


async def _delivered(db: AsyncSessionDB, id_: int) -> bool:
    found = await db.mail.outgoing(id_)
    return found is not None and found.delivered_at is not None


def inbound_of(id_: int, key: str, *extras: dict[str, Any], attempts: int = 0) -> types.InboundMessage:
    return types.InboundMessage(
        id=id_,
        platform="loopback",
        key=key,
        route="r",
        home="loopback",
        chat="c",
        sender="ann",
        address={},
        text="Hi",
        parts=list(extras),
        name="",
        at=0.0,
        attempts=attempts,
    )


def test_waiting_message_is_replaced_by_its_edit() -> None:
    edit = inbound_of(2, "2", {"type": "edit", "key": "1"})
    assert worker.withdrawal(inbound_of(1, "1"), [edit]) == "replaced"
    assert worker.withdrawal(inbound_of(1, "1", attempts=1), [edit]) is None
    assert worker.withdrawal(inbound_of(3, "3"), [edit]) is None


async def test_edit_reply_and_deletion_reach_the_turn(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["One.", "Two."])
    async with gateways.open_gateway(db, model) as (_, chat):
        await chat.say("The boats leave at nine", key="1", name="Ann")
        await chat.replies(1)
        await chat.say("Which ones?", key="2", reply_to="1")
        await chat.replies(2)
        await gateways.settled(db, "1", "2")
        assert chat.handler is not None
        assert not await chat.handler.delete("loopback", "1")
        assert not await chat.handler.delete("loopback", "unknown")
    sent = str(model.requests[-1].messages[-1].content)
    assert "The boats leave at nine" in sent
    assert "reply to an earlier message" in sent


async def test_attachments_have_a_name_a_type_and_a_reader(db: AsyncSessionDB) -> None:
    chat = memory_platform.MemoryPlatform()
    blob = await db.blobs.put(b"pixels", "image/png")
    new = types.NewOutgoing(platform="loopback", chat="c", address={"chat": "c"}, attachments=[blob.digest])
    await db.mail.post(new)
    async with gateways.open_gateway(db, ScriptedModel([]), platforms=[chat]):
        (sent,) = await chat.replies(1)
        (file,) = sent.files
        assert (file.name, file.media_type, file.size) == (f"{blob.digest[:12]}.png", "image/png", 6)
        assert await file.read() == b"pixels"


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


async def test_streamed_reply_edits_one_draft_and_the_reply_replaces_it(db: AsyncSessionDB) -> None:
    chat, model = Chatty(), Held("Hello there!")
    async with gateways.open_gateway(db, model, platforms=[chat]):
        await chat.say("Hi", key="1")
        (draft,) = await chat.replies(1)
        while not chat.edits:
            await asyncio.sleep(0.01)
        model.released.set()
        (found,) = await gateways.settled(db, "1")
        await polling.until_async(lambda: _sent(db, found.id))
    _, reply = chat.sent
    sent = f"loopback-{draft.id}"
    assert (draft.text, draft.is_draft, draft.draft) == (outbox.DRAFT_TEXT, True, None)
    assert {each for each, _ in chat.edits} == {sent}
    assert all("Hello there!".startswith(text.strip()) for _, text in chat.edits)
    assert (reply.text, reply.is_draft, reply.draft) == ("Hello there!", False, sent)
    assert chat.deleted == []


async def test_draft_of_a_stopped_process_is_finished_by_the_next_one(db: AsyncSessionDB) -> None:
    first, second = Chatty(), Chatty()
    async with gateways.open_gateway(db, Held("Hello there!"), platforms=[first]):
        await first.say("Hi", key="1")
        while not first.edits:
            await asyncio.sleep(0.01)
    async with gateways.open_gateway(db, ScriptedModel(["Good day!"]), platforms=[second]):
        (found,) = await gateways.settled(db, "1")
        await polling.until_async(lambda: _sent(db, found.id))
    (draft,), (reply,) = first.sent, second.sent
    assert draft.is_draft
    assert (reply.text, reply.is_draft, reply.draft) == ("Good day!", False, f"loopback-{draft.id}")
    assert second.deleted == []


async def test_deletion_that_another_process_receives_stops_the_turn(db: AsyncSessionDB) -> None:
    stuck = Stuck()
    model = ScriptedModel([calls("wait"), "Third."])
    async with gateways.open_gateway(db, model, tools=[tool("wait", stuck)]) as (opened, chat):
        await chat.say("One", key="1")
        await stuck.reached.wait()
        await chat.say("Two", key="2")
        elsewhere = inbound.InboundHandler(db, lambda _: None)
        assert await elsewhere.delete("loopback", "2")
        assert await elsewhere.delete("loopback", "1")
        one, two = await gateways.settled(db, "1", "2")
        await chat.say("Three", key="3")
        await gateways.settled(db, "3")
        await gateways.quiet(opened, db)
        assert not await elsewhere.delete("loopback", "1")
    assert (one.outcome, two.outcome, stuck.cancelled) == ("interrupted", "interrupted", True)
    assert gateways.texts(chat.sent) == ["Third."]
    assert "Two" not in str(model.requests[-1].messages)
