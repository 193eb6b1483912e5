"""The door: who is let in, what is stored of it, and what strangers are told."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import AsyncSessionDB, content_parts, errors
from holdfast.gateway import inbound, platform
from holdfast.model import ScriptedModel
from tests.support import gateways

PICTURE = b"\x89PNG not really"


def came(**given: Any) -> platform.Incoming:
    known: dict[str, Any] = {"platform": "loopback", "key": "1", "chat": ("42",), "sender": "42", "text": "Hi"}
    return platform.Incoming(**{**known, "address": {"chat": "42"}, **given})


def opened(
    db: AsyncSessionDB, *guards: platform.AdmissionCheck, poked: list[str] | None = None
) -> inbound.InboundHandler:
    told: list[str] = [] if poked is None else poked
    return inbound.InboundHandler(db, told.append, checks=guards)


async def stranger(_came: platform.Incoming, _route: str) -> platform.AdmissionResult:
    return platform.AdmissionResult(False, message="I do not know you.")


async def enemy(_came: platform.Incoming, _route: str) -> platform.AdmissionResult:
    return platform.AdmissionResult(False)


async def friend(_came: platform.Incoming, _route: str) -> platform.AdmissionResult:
    return platform.AdmissionResult(True)


async def test_what_came_in_is_stored_before_the_router_hears_of_it(db: AsyncSessionDB) -> None:
    poked: list[str] = []
    found = await opened(db, friend, poked=poked).receive(came())
    assert found is not None
    assert (found.route, found.chat, found.open) == ("agent:main:loopback:dm:42", "dm:42", True)
    assert poked == [found.route]


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(came(kind="group", chat=("g",), mentioned=False), id="what people say to each other"),
        pytest.param(came(text=" \n"), id="nothing"),
    ],
)
async def test_what_is_not_for_the_agent_leaves_nothing_behind(given: platform.Incoming, db: AsyncSessionDB) -> None:
    assert await opened(db, stranger).receive(given) is None
    assert set((await db.mail.counts()).values()) == {0}


async def test_who_is_refused_is_told_once_and_nothing_is_stored(db: AsyncSessionDB) -> None:
    async with gateways.open_gateway(db, ScriptedModel(), checks=[friend, stranger, enemy]) as (running, chat):
        for _ in range(3):
            assert await chat.say("Let me in", key="1", chat="42", sender="42") is None
        await gateways.quiet(running, db)
        assert [(each.text, each.kind, each.address) for each in chat.sent] == [
            ("I do not know you.", "notice", {"chat": "42"})
        ]
    assert await db.mail.open_routes() == []


async def test_who_is_refused_in_silence_hears_nothing(db: AsyncSessionDB) -> None:
    assert await opened(db, enemy).receive(came()) is None
    assert set((await db.mail.counts()).values()) == {0}


async def test_what_was_let_in_is_not_judged_again_when_it_is_delivered_again(db: AsyncSessionDB) -> None:
    first = await opened(db, friend).receive(came())
    again = await opened(db, stranger).receive(came())
    assert first is not None
    assert again == first


async def test_a_picture_is_a_part_of_the_message_and_a_file_can_be_read(db: AsyncSessionDB) -> None:
    picture = platform.Attachment(PICTURE, "image/png", "cat.png")
    file = platform.Attachment(b"one,two", "text/csv", "my\u202e\ntable.csv")
    model = ScriptedModel(["Nice."])
    async with gateways.open_gateway(db, model) as (running, chat):
        await chat.say("First", key="0")
        await chat.replies(1)
        await running.handler.receive(came(attachments=(picture, file), text=""))
        (found,) = await gateways.settled(db, "1")
    assert found.parts[0]["type"] == "image"
    with db.db.blobs.open(found.parts[0]["blob"]) as kept:
        assert kept.read() == PICTURE
    assert found.parts[1]["text"].startswith("[Attached: my table.csv, text/csv, 7 bytes;")
    assert isinstance(content_parts.parse(found.parts)[0], content_parts.Image)


@pytest.mark.parametrize("key", ["", "x" * 500, "a\nb", "\ud800"])
async def test_any_id_a_platform_may_give_is_known_again(key: str, db: AsyncSessionDB) -> None:
    way = opened(db)
    first, again = await way.receive(came(key=key)), await way.receive(came(key=key))
    other = await way.receive(came(key=f"{key}."))
    assert first is not None
    assert other is not None
    assert again == first != other


async def test_where_it_cannot_be_stored_nothing_is_acknowledged(db: AsyncSessionDB) -> None:
    poked: list[str] = []
    with pytest.raises(errors.InvalidArgument):
        await opened(db, poked=poked).receive(came(text="x" * 1_000_001))
    assert poked == []
