"""Routes: no two chats share one, the owner follows from it, and it is bound to a conversation until a reset."""

from __future__ import annotations

import time
from collections.abc import Iterator

import hypothesis
import pytest
from hypothesis import strategies

from holdfast import AsyncSessionDB
from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import routes, settings
from holdfast.store import validation
from tests.support import conversations, gateways
from tests.support.gateways import ROUTE

HOUR = 3600.0

SENDER = routes.Principal("telegram:42", "telegram:42")


def incoming(kind: gateway_platform.ChatKind = "dm", *chat: str, sender: str = "42") -> gateway_platform.Incoming:
    return gateway_platform.Incoming(platform="telegram", key="1", kind=kind, chat=chat or ("42",), sender=sender)


@pytest.mark.parametrize(
    ("given", "shared", "route", "owner"),
    [
        (incoming(), False, "agent:main:telegram:dm:42", "telegram:42"),
        (incoming("group", "-100"), False, "agent:main:telegram:group:-100:@42", "telegram:42"),
        (incoming("group", "-100"), True, "agent:main:telegram:group:-100", "telegram:group:-100"),
        (incoming("thread", "-100", "7"), False, "agent:main:telegram:thread:-100:7:@42", "telegram:42"),
        (incoming("thread", "-100", "7"), True, "agent:main:telegram:thread:-100:7", "telegram:group:-100"),
        (incoming("dm", sender="group:-100"), False, "agent:main:telegram:dm:42", "telegram:group%3A-100"),
        (incoming("group", "a:@42"), True, "agent:main:telegram:group:a%3A%4042", "telegram:group:a%3A%4042"),
    ],
)
def test_chat_has_a_route_and_an_owner(given: gateway_platform.Incoming, shared: bool, route: str, owner: str) -> None:
    assert routes.route_of("main", given, shared) == route
    assert routes.identity_of(route, given.platform, given.sender) == owner
    assert routes.platform_of(route) == "telegram"
    assert routes.has_profile("main", route)
    assert not routes.has_profile("mai", route)
    assert not routes.has_profile("main:telegram", route)


short_ids = strategies.text(strategies.sampled_from("ab:@%=-/é\n\ud800"), max_size=4)
ids = short_ids | strategies.text(min_size=70, max_size=80)
chats = strategies.builds(
    gateway_platform.Incoming,
    platform=ids,
    key=strategies.just("1"),
    kind=strategies.sampled_from(["dm", "group", "thread"]),
    chat=strategies.lists(ids, min_size=1, max_size=2).map(tuple),
    sender=ids,
)


def owner_of(given: gateway_platform.Incoming, shared: bool = False) -> str:
    return routes.identity_of(routes.route_of("main", given, shared), given.platform, given.sender)


@hypothesis.given(chats, chats, strategies.booleans(), strategies.booleans())
def test_routes_and_owners_of_any_two_chats_are_different(
    one: gateway_platform.Incoming, other: gateway_platform.Incoming, first: bool, second: bool
) -> None:
    def identity(each: gateway_platform.Incoming, shared: bool) -> tuple[object, ...]:
        return (each.platform, each.kind, each.chat, each.kind != "dm" and not shared and each.sender)

    mine, theirs = routes.route_of("main", one, first), routes.route_of("main", other, second)
    assert (mine == theirs) == (identity(one, first) == identity(other, second))
    assert validation.check_route(mine) == mine
    assert (routes.chat_of(one) == routes.chat_of(other)) == ((one.kind, one.chat) == (other.kind, other.chat))
    owner, another = (owner_of(each) for each in (one, other))
    assert (owner == another) == ((one.platform, one.sender) == (other.platform, other.sender))
    assert other.kind == "dm" or owner != owner_of(other, shared=True)


async def begin(db: AsyncSessionDB, name: str = "talk", *, bind: bool = True) -> None:
    await db.create_session(name, source="test", owner=SENDER.owner)
    await db.append_message(name, role="user", content="Hi")
    if bind:
        await db.bind_route(ROUTE, name, version=0)


@pytest.mark.parametrize("idle", [1.9, 2.0])
async def test_chat_begins_a_new_conversation_when_its_policy_says_so(idle: float) -> None:
    clock = conversations.Clock()
    async with gateways.store(clock=clock) as db:
        await begin(db)
        clock.advance(idle * HOUR)
        found = await routes.RouteBindings(db, settings.ResetPolicy("idle", hours=2), clock).target(ROUTE, SENDER)
        assert (found != "talk") is (idle == 2.0)
        assert (await db.route(ROUTE)).conversation_id == (None if idle == 2.0 else "talk")
        assert (await db.conversation("talk")).live


async def test_chat_is_not_reset_while_a_process_of_its_conversation_runs() -> None:
    clock = conversations.Clock()
    async with gateways.store(clock=clock) as db:
        await begin(db)
        await db.processes.record_start(conversations.process("p1", "talk"))
        clock.advance(100 * HOUR)
        bindings = routes.RouteBindings(db, settings.ResetPolicy("idle", hours=1), clock)
        assert await bindings.target(ROUTE, SENDER) == "talk"
        await db.processes.record_end("p1", "exited", 0, "It ended.")
        assert await bindings.target(ROUTE, SENDER) != "talk"


async def test_id_of_a_deleted_conversation_is_not_reused(db: AsyncSessionDB) -> None:
    bindings = routes.RouteBindings(db, settings.ResetPolicy(), time.time)
    coming = await bindings.target(ROUTE, SENDER)
    await begin(db, coming, bind=False)
    await db.delete_conversation(coming)
    assert await bindings.target(ROUTE, SENDER) != coming


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A time zone with daylight saving time."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M"))


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("last", "now", "due"),
    [
        ("2026-05-01 03:59", "2026-05-01 04:00", True),
        ("2026-05-01 04:00", "2026-05-01 23:59", False),
        ("2026-04-01 12:00", "2026-05-02 03:00", True),
        ("2026-03-28 05:00", "2026-03-29 03:30", False),  # the night with 23 hours
        ("2026-03-28 05:00", "2026-03-29 04:00", True),
        ("2026-10-24 05:00", "2026-10-25 03:59", False),  # the night with 25 hours
        ("2026-10-24 05:00", "2026-10-25 04:00", True),
    ],
)
def test_chat_is_reset_daily_at_the_local_hour(last: str, now: str, due: bool) -> None:
    assert routes.is_reset_due(settings.ResetPolicy("daily", hour=4), at(last), at(now)) is due
