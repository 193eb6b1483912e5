"""The inbound handler stores admitted messages once; rate limits count for all processes together."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, SessionDB, errors
from holdfast.gateway import inbound, limits, platform, settings, worker
from holdfast.model import ScriptedModel
from holdfast.store import validation
from tests.support import gateways, mcp_raw_server
from tests.support.gateways import new_inbound

NOW = 1_000_000.0
ROUTE = "agent:main:loopback:dm:ann"
PICTURE = base64.b64decode(mcp_raw_server.PNG)


def incoming(text: str = "Hi", **given: Any) -> platform.Incoming:
    known: dict[str, Any] = {"platform": "loopback", "key": "1", "chat": ("ann",), "sender": "ann"}
    return platform.Incoming(text=text, **{**known, "address": {"chat": "ann"}, **given})


def handler(
    db: AsyncSessionDB, *checks: platform.AdmissionCheck, notified: list[str] | None = None
) -> inbound.InboundHandler:
    return inbound.InboundHandler(db, ([] if notified is None else notified).append, checks=checks)


async def admit(_incoming: platform.Incoming, _route: str) -> platform.AdmissionResult:
    return platform.AdmissionResult(True)


async def refuse(_incoming: platform.Incoming, _route: str) -> platform.AdmissionResult:
    return platform.AdmissionResult(False, message="You have no access.")


async def refuse_silently(_incoming: platform.Incoming, _route: str) -> platform.AdmissionResult:
    return platform.AdmissionResult(False)


async def test_message_is_stored_before_the_router_is_notified_and_not_checked_again(db: AsyncSessionDB) -> None:
    notified: list[str] = []
    found = await handler(db, admit, notified=notified).receive(incoming())
    assert (found.route, found.chat, found.open) == (ROUTE, "dm:ann", True)
    assert notified == [found.route]
    assert await handler(db, refuse).receive(incoming()) == found


@pytest.mark.parametrize(
    ("given", "check"),
    [
        pytest.param(incoming(kind="group", chat=("g",), mentioned=False), refuse, id="not addressed to the agent"),
        pytest.param(incoming(" \n"), refuse, id="empty"),
        pytest.param(incoming(), refuse_silently, id="refused silently"),
    ],
)
async def test_ignored_message_leaves_nothing_behind(
    given: platform.Incoming, check: platform.AdmissionCheck, db: AsyncSessionDB
) -> None:
    assert await handler(db, check).receive(given) is None
    assert set((await db.mail.counts()).values()) == {0}


async def test_files_are_downloaded_once_after_the_admission_and_checked_for_size(db: AsyncSessionDB) -> None:
    downloads: list[str] = []

    def message(key: str, size: int) -> platform.Incoming:
        async def download() -> platform.Incoming:
            downloads.append(key)
            return incoming("", key=key, attachments=(platform.Attachment(b"x" * size),))

        return incoming("", key=key, complete=download)

    limit = limits.RateLimits(db, settings.GatewayLimits(attachments=1))
    assert await handler(db, refuse, limit).receive(message("1", 1)) is None
    for _ in range(2):
        assert await handler(db, admit, limit).receive(message("2", 1_000)) is not None
    found = await handler(db, limit).submit(message("3", 1_001))
    assert isinstance(found, platform.AdmissionResult)
    assert (found.reason, downloads) == ("size", ["2", "3"])


async def test_refused_sender_is_notified_once_and_nothing_is_stored(db: AsyncSessionDB) -> None:
    checks = [admit, refuse, refuse_silently]
    async with gateways.open_gateway(db, ScriptedModel(), checks=checks) as (running, chat):
        for _ in range(3):
            assert await chat.say("Let me in", key="1", chat="42", sender="42") is None
        await gateways.wait_idle(running, db)
        (sent,) = chat.sent
    assert (sent.text, sent.kind, sent.address) == ("You have no access.", "notice", {"chat": "42"})
    assert await db.mail.open_routes() == []


@pytest.mark.parametrize("key", ["", "x" * 500, "a\nb", "\ud800"])
async def test_any_message_id_of_a_platform_is_recognised(key: str, db: AsyncSessionDB) -> None:
    first, again, other = [await handler(db).receive(incoming(key=each)) for each in (key, key, f"{key}.")]
    assert None not in (first, other)
    assert again == first != other


@pytest.mark.parametrize(
    "given", [incoming("x" * 1_000_001), incoming(sender="a\0"), incoming(address={"x": "x" * 99_999})]
)
async def test_message_that_can_never_be_stored_is_rejected(given: platform.Incoming, db: AsyncSessionDB) -> None:
    notified: list[str] = []
    with pytest.raises(errors.InvalidArgument):
        await handler(db, notified=notified).submit(given)
    assert await handler(db, notified=notified).receive(given) is None  # Else the platform would deliver it forever.
    assert notified == []


@pytest.mark.parametrize(
    ("data", "stated", "kind"),
    [
        (PICTURE, "text/plain", "image/png"),
        (b"heic", "image/heic", "application/octet-stream"),
        (PICTURE[:-9], "image/png", "application/octet-stream"),
        (b"text", "Text/Plain; charset=utf-8", "text/plain"),
        (b"text", "foo bar", "text/csv"),
        (b"text", "", "text/csv"),
    ],
)
async def test_only_a_complete_image_is_one(data: bytes, stated: str, kind: str, db: AsyncSessionDB) -> None:
    attachment = platform.Attachment(data, stated, "table.csv")
    found = await handler(db).receive(incoming(attachments=(attachment,)))
    blob = await db.blobs.get(found.parts[-1]["blob"])
    assert (blob.media_type, found.parts[0]["type"]) == (kind, "image" if kind == "image/png" else "text")
    is_unseen = stated.startswith("image/") and kind == inbound.UNKNOWN_TYPE
    assert ("You cannot see the image" in found.parts[0].get("text", "")) == is_unseen


async def test_edit_without_a_change_is_ignored(db: AsyncSessionDB) -> None:
    one, other = (platform.Attachment(data, "text/csv", "table.csv") for data in (b"1", b"2"))

    async def edit(key: str, text: str, file: platform.Attachment) -> bool:
        found = await handler(db).receive(incoming(text, key=f"1:{key}", edits="1", attachments=(file,)))
        return found is not None

    await handler(db).receive(incoming("One", key="1", attachments=(one,)))
    assert not await edit("2", "One", one)
    assert await edit("3", "One", other)
    assert await edit("4", "Two", one)
    assert await edit("5", "One", one), "back to the first text"
    for settled in await db.mail.open_inbound(ROUTE):
        await db.mail.settle_inbound(None, settled.id, "replaced" if settled.key == "1" else "ignored")
    assert await edit("6", "One", one), "back to the first text after another one was settled"


async def test_refusal_goes_to_the_chat_that_the_reply_would_go_to(db: AsyncSessionDB) -> None:
    woken: list[str] = []
    at = inbound.InboundHandler(db, lambda _: None, checks=[refuse], wake_sender=woken.append)
    assert await at.receive(incoming(home="telegram", home_chat="dm:42")) is None
    (refusal,) = await db.mail.due_outgoing("telegram")
    assert (refusal.chat, woken) == ("dm:42", ["telegram"])


async def test_deletion_of_a_message_withdraws_its_edits(db: AsyncSessionDB) -> None:
    at = handler(db)
    for key, text, edits in (("1", "One", ""), ("2", "Two", "1"), ("3", "Three", "1")):
        await at.receive(incoming(text, key=key, edits=edits))
    waiting = await db.mail.open_inbound(ROUTE)
    assert [worker.withdrawal(each, waiting[n:]) for n, each in enumerate(waiting, 1)] == ["replaced", "replaced", None]
    begun = msgspec.structs.replace(waiting[0], attempts=1)
    assert worker.withdrawal(begun, waiting[1:]) is None
    assert await at.delete("loopback", "1")
    waiting = await db.mail.open_inbound(ROUTE)
    withdrawn = [worker.withdrawal(each, waiting[n:]) for n, each in enumerate(waiting[:3], 1)]
    assert (set(withdrawn), withdrawn[2]) == ({"replaced", "interrupted"}, "interrupted")


async def store(db: AsyncSessionDB, count: int, at: float = NOW, route: str = ROUTE) -> None:
    for number in range(count):
        await db.mail.add_inbound(new_inbound(f"{route}:{at}:{number}", "x", route=route, sender="ann", at=at))


def rate_limits(db: AsyncSessionDB, **said: Any) -> limits.RateLimits:
    return limits.RateLimits(db, settings.GatewayLimits(**said), lambda: NOW)


@pytest.mark.parametrize(
    ("before", "at", "text", "wanted"),
    [
        pytest.param(3, NOW, "Hi", False, id="too many in a minute"),
        pytest.param(3, NOW - 61, "Hi", True, id="a minute ago"),
        pytest.param(5, NOW - 61, "Hi", False, id="too many in a day"),
        pytest.param(5, NOW - 86_401, "Hi", True, id="yesterday"),
        pytest.param(5, NOW, "/stop", True, id="stop"),
        pytest.param(6, NOW, "/stop", False, id="too many stops"),
        pytest.param(3, NOW, "//stop", False, id="not a command"),
    ],
)
async def test_message_over_a_limit_is_refused(before: int, at: float, text: str, wanted: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "mail.db")
    async with gateways.store(path) as db:
        async with AsyncSessionDB(SessionDB(path)) as other:
            await store(other, before, at)
        found = await rate_limits(db, minute=3, day=5)(incoming(text), ROUTE)
        assert found.allowed is wanted
        assert bool(found.message) is not wanted
        assert (await rate_limits(db, minute=3)(incoming(), f"{ROUTE}x")).allowed
        assert (await rate_limits(db, minute=3)(incoming(platform="http"), ROUTE)).allowed


async def test_sender_over_a_limit_is_notified_once_in_its_time(db: AsyncSessionDB) -> None:
    now = [NOW]
    check = limits.RateLimits(db, settings.GatewayLimits(minute=1), lambda: now[0])
    await store(db, 1)
    said = [(await check(incoming(), ROUTE)).message for _ in range(3)]
    now[0] += 61
    await store(db, 1, now[0])
    said.append((await check(incoming(), ROUTE)).message)
    now[0] -= 3_600  # The clock is set back.
    said.append((await check(incoming(), ROUTE)).message)
    assert [bool(each) for each in said] == [True, False, False, True, True]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (incoming("x" * (validation.MAX_TEXT + 1)), "too long"),
        (incoming(attachments=(platform.Attachment(b"x" * 600), platform.Attachment(b"x" * 600))), "too large"),
        (incoming("x" * validation.MAX_TEXT, attachments=(platform.Attachment(b"x" * 1_000),)), ""),
    ],
    ids=["text", "files together", "just fits"],
)
async def test_message_that_is_too_large_is_refused(given: platform.Incoming, said: str, db: AsyncSessionDB) -> None:
    found = await rate_limits(db, attachments=1)(given, ROUTE)
    assert found.allowed is not bool(said)
    assert said in found.message


@pytest.mark.parametrize(("limit", "said"), [("person_minute", "minute"), ("person_day", "day")])
async def test_limits_of_a_person_count_all_their_chats(limit: str, said: str, db: AsyncSessionDB) -> None:
    for number in range(4):
        await store(db, 1, route=f"{ROUTE}:{number}")
    check = rate_limits(db, **{limit: 4})
    refused = await check(incoming(), f"{ROUTE}:new")
    assert (refused.allowed, refused.reason) == (False, "limit")
    assert f"4 messages per {said} from one person" in refused.message
    assert not (await check(incoming(), f"{ROUTE}:newer")).message
    assert (await check(incoming("/stop"), f"{ROUTE}:new")).allowed
    assert (await rate_limits(db, **{limit: 5})(incoming(), f"{ROUTE}:new")).allowed


async def test_deletions_do_not_count_against_the_limits_but_similar_ids_do(db: AsyncSessionDB) -> None:
    await store(db, 1)
    assert await handler(db).delete("loopback", f"{ROUTE}:{NOW}:0")
    assert len(await db.mail.open_inbound(ROUTE)) == 2
    assert (await rate_limits(db, minute=2, person_minute=2)(incoming(), ROUTE)).allowed
    before = await db.mail.count_inbound_from("loopback", "ann", 0.0)
    await handler(db).receive(incoming(key="delete:1"))
    assert await db.mail.count_inbound_from("loopback", "ann", 0.0) == before + 1
