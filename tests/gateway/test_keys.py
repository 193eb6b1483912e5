"""Keys of chats: no two chats have one, and whose a conversation is can be told from its route."""

from __future__ import annotations

import hypothesis
import pytest
from hypothesis import strategies

from holdfast.gateway import platform as gateway_platform
from holdfast.gateway import routes
from holdfast.store import validation


def came(
    kind: gateway_platform.ChatKind = "dm", *chat: str, sender: str = "42", platform: str = "telegram"
) -> gateway_platform.Incoming:
    return gateway_platform.Incoming(platform=platform, key="1", kind=kind, chat=chat or ("42",), sender=sender)


@pytest.mark.parametrize(
    ("given", "shared", "route", "owner"),
    [
        (came(), False, "agent:main:telegram:dm:42", "telegram:42"),
        (came("group", "-100"), False, "agent:main:telegram:group:-100:@42", "telegram:42"),
        (came("group", "-100"), True, "agent:main:telegram:group:-100", "telegram:group:-100"),
        (came("thread", "-100", "7"), False, "agent:main:telegram:thread:-100:7:@42", "telegram:42"),
        (came("thread", "-100", "7"), True, "agent:main:telegram:thread:-100:7", "telegram:group:-100"),
        (came("dm", sender="group:-100"), False, "agent:main:telegram:dm:42", "telegram:group%3A-100"),
        (came("group", "a:@42"), True, "agent:main:telegram:group:a%3A%4042", "telegram:group:a%3A%4042"),
        (came("dm", ""), False, "agent:main:telegram:dm:%", "telegram:42"),
    ],
)
def test_a_chat_has_a_key_and_an_owner(given: gateway_platform.Incoming, shared: bool, route: str, owner: str) -> None:
    assert routes.route_of("main", given, shared) == route
    assert routes.owner_of(route, given.platform, given.sender) == owner
    assert routes.platform_of(route) == "telegram"


ids = strategies.text(strategies.sampled_from("ab:@%=-/é\n\ud800"), max_size=4) | strategies.text(
    min_size=70, max_size=80
)
chats = strategies.builds(
    gateway_platform.Incoming,
    platform=ids,
    key=strategies.just("1"),
    kind=strategies.sampled_from(["dm", "group", "thread"]),
    chat=strategies.lists(ids, min_size=1, max_size=2).map(tuple),
    sender=ids,
)


@hypothesis.given(chats, chats, strategies.booleans(), strategies.booleans())
def test_for_any_two_chats_the_keys_are_different_and_the_store_takes_them(
    one: gateway_platform.Incoming, other: gateway_platform.Incoming, first: bool, second: bool
) -> None:
    def who(each: gateway_platform.Incoming, shared: bool) -> tuple[object, ...]:
        return (each.platform, each.kind, each.chat, each.kind != "dm" and not shared and each.sender)

    mine, theirs = routes.route_of("main", one, first), routes.route_of("main", other, second)
    assert (mine == theirs) == (who(one, first) == who(other, second))
    assert validation.check_route(mine) == mine
    assert (routes.chat_of(one) == routes.chat_of(other)) == ((one.kind, one.chat) == (other.kind, other.chat))


@hypothesis.given(chats, chats)
def test_for_any_two_people_their_owners_are_different_and_no_group(
    one: gateway_platform.Incoming, other: gateway_platform.Incoming
) -> None:
    mine = routes.owner_of(routes.route_of("main", one), one.platform, one.sender)
    theirs = routes.owner_of(routes.route_of("main", other), other.platform, other.sender)
    assert (mine == theirs) == ((one.platform, one.sender) == (other.platform, other.sender))
    group = routes.owner_of(routes.route_of("main", other, shared=True), other.platform, other.sender)
    assert other.kind == "dm" or mine != group
