"""How much may come in from one chat, counted for all processes together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB, SessionDB, types
from holdfast.gateway import inbound, limits, platform, settings
from holdfast.store import validation
from tests.support import gateways

NOW = 1_000_000.0
ROUTE = "agent:main:loopback:dm:ann"


def came(text: str = "Hi", **given: Any) -> platform.Incoming:
    return platform.Incoming(platform="loopback", key="next", chat=("ann",), sender="ann", text=text, **given)


async def arrived(db: AsyncSessionDB, count: int, at: float = NOW, route: str = ROUTE) -> None:
    for number in range(count):
        await db.mail.add_inbound(
            types.NewInboundMessage(
                platform="loopback",
                key=f"{route}:{at}:{number}",
                route=route,
                chat="dm:ann",
                sender="ann",
                address={},
                text="x",
                at=at,
            )
        )


def guard(db: AsyncSessionDB, **said: Any) -> limits.RateLimits:
    return limits.RateLimits(db, settings.GatewayLimits(**said), lambda: NOW)


@pytest.mark.parametrize(
    ("before", "at", "text", "wanted"),
    [
        (2, NOW, "Hi", True),
        (3, NOW, "Hi", False),
        pytest.param(3, NOW - 61, "Hi", True, id="a minute ago"),
        pytest.param(5, NOW - 61, "Hi", False, id="too many in a day"),
        pytest.param(5, NOW - 86_401, "Hi", True, id="yesterday"),
        pytest.param(5, NOW, "/stop", True, id="stop is heard"),
        pytest.param(5, NOW, "/deny no", True, id="so is an answer"),
        pytest.param(6, NOW, "/stop", False, id="but not for ever"),
        pytest.param(3, NOW, "/new", False, id="other commands wait"),
        pytest.param(3, NOW, "//stop", False, id="that is no command"),
    ],
)
async def test_what_is_too_much_is_refused(before: int, at: float, text: str, wanted: bool, db: AsyncSessionDB) -> None:
    await arrived(db, before, at)
    found = await guard(db, minute=3, day=5)(came(text), ROUTE)
    assert found.allowed is wanted
    assert bool(found.message) is not wanted


async def test_another_chat_has_its_own_count(db: AsyncSessionDB) -> None:
    await arrived(db, 3, route=f"{ROUTE}x")
    assert (await guard(db, minute=3)(came(), ROUTE)).allowed


async def test_who_is_over_a_limit_is_told_once_in_its_time(db: AsyncSessionDB) -> None:
    now = [NOW]
    asked = limits.RateLimits(db, settings.GatewayLimits(minute=1), lambda: now[0])
    await arrived(db, 1)
    said = [(await asked(came(), ROUTE)).message for _ in range(3)]
    now[0] += 61
    await arrived(db, 1, now[0])
    said.append((await asked(came(), ROUTE)).message)
    assert [bool(each) for each in said] == [True, False, False, True]


async def test_what_another_process_took_in_counts_and_a_restart_forgets_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mail.db"

    async with gateways.store(str(path)) as db:
        async with AsyncSessionDB(SessionDB(path)) as other:
            await arrived(other, 3)
        assert not (await guard(db, minute=3)(came(), ROUTE)).allowed


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (came("x" * (validation.MAX_TEXT + 1)), "too long"),
        (came(attachments=(platform.Attachment(b"x" * 1_001),)), "too large"),
        (came(attachments=(platform.Attachment(b"x" * 600), platform.Attachment(b"x" * 600))), "too large"),
        (came("x" * validation.MAX_TEXT, attachments=(platform.Attachment(b"x" * 1_000),)), ""),
    ],
    ids=["text", "a file", "files together", "just fits"],
)
async def test_what_could_never_be_stored_is_said_so_and_not_brought_again(
    given: platform.Incoming, said: str, db: AsyncSessionDB
) -> None:
    found = await guard(db, attachments=1)(given, ROUTE)
    assert found.allowed is not bool(said)
    assert said in found.message


@pytest.mark.parametrize(("limit", "said"), [("person_minute", "minute"), ("person_day", "day")])
async def test_who_has_many_chats_is_still_one_person(limit: str, said: str, db: AsyncSessionDB) -> None:
    for number in range(4):
        await arrived(db, 1, route=f"{ROUTE}:{number}")
    asked = guard(db, **{limit: 4})
    verdict = await asked(came(), f"{ROUTE}:new")
    assert (verdict.allowed, verdict.reason) == (False, "limit")
    assert f"4 messages per {said} from one person" in verdict.message
    assert not (await asked(came(), f"{ROUTE}:newer")).message
    assert (await asked(came("/stop"), f"{ROUTE}:new")).allowed
    assert (await guard(db, **{limit: 5})(came(), f"{ROUTE}:new")).allowed


async def test_deletions_do_not_count_against_the_limits(db: AsyncSessionDB) -> None:
    await arrived(db, 1)
    assert await inbound.InboundHandler(db, lambda _: None).delete("loopback", f"{ROUTE}:{NOW}:0")
    assert len(await db.mail.open_inbound(ROUTE)) == 2
    assert (await guard(db, minute=2, person_minute=2)(came(), ROUTE)).allowed


async def test_message_id_that_looks_like_a_deletion_counts_against_the_limits(db: AsyncSessionDB) -> None:
    incoming = platform.Incoming(platform="loopback", key="delete:1", chat=("ann",), sender="ann", text="Hi")
    await inbound.InboundHandler(db, lambda _: None).receive(incoming)
    assert await db.mail.count_inbound_from("loopback", "ann", 0.0) == 1
