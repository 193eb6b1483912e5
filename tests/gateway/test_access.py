"""Only senders who were allowed may use the agent; the others get at most a pairing code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, errors, fault_points, types
from holdfast.gateway import access, platform, settings
from holdfast.model import ScriptedModel
from holdfast.store.mail import contacts
from tests.support import gateways
from tests.support.memory_platform import MemoryPlatform

RULES = access.build_rules(
    settings.GatewaySettings(
        allow={"telegram": [42, "ann", "both"], "open": ["*"]},
        deny={"telegram": ["both", "enemy", "boss-gone"], "open": ["enemy"]},
        admins={"telegram": ["boss", "boss-gone"]},
    )
)


def incoming(sender: str = "eve", **given: Any) -> platform.Incoming:
    known: dict[str, Any] = {"platform": "telegram", "key": "1", "chat": (sender,), "text": "Hi"}
    return platform.Incoming(**{**known, **given, "sender": sender})


def contact(role: types.ContactRole, platform: str = "telegram") -> types.Contact:
    return types.Contact(platform=platform, sender="eve", role=role, name="", at=1.0, by="")


@pytest.mark.parametrize(
    ("platform", "sender", "known", "role"),
    [
        pytest.param("telegram", "42", None, "user", id="listed by number"),
        pytest.param("telegram", "eve", contact("admin"), "admin", id="paired as admin"),
        pytest.param("telegram", "boss", None, "admin", id="listed as admin"),
        pytest.param("open", "eve", None, "user", id="platform open to everybody"),
        pytest.param("http", "eve", None, "user", id="authenticated by a token"),
        pytest.param("telegram", "eve", None, None, id="unknown"),
        pytest.param("discord", "42", None, None, id="the same id on another platform"),
        pytest.param("telegram", "enemy", contact("admin"), "denied", id="denied in settings, paired as admin"),
        pytest.param("telegram", "both", None, "denied", id="in both lists"),
        pytest.param("telegram", "boss", contact("denied"), "denied", id="admin denied by an operator"),
        pytest.param("telegram", "42", contact("denied"), "denied", id="listed, denied by an operator"),
        pytest.param("http", "eve", contact("denied", "http"), "denied", id="denied although authenticated"),
    ],
)
def test_denial_wins_and_unknown_senders_are_refused(
    platform: str, sender: str, known: types.Contact | None, role: str | None
) -> None:
    assert access.evaluate(RULES, platform, sender, known) == role


FULL_WIDTH, CYRILLIC = "４２", "аnn"


@pytest.mark.parametrize(
    "sender",
    ["42 ", "042", "42.0", FULL_WIDTH, "42\u200b", "42\x00", "telegram:42", "Ann", CYRILLIC, "@ann", "*", "", "\ud800"],
)
async def test_sender_id_that_resembles_an_allowed_one_is_refused(sender: str, db: AsyncSessionDB) -> None:
    check = access.Access(db, RULES)
    for kind in ("dm", "group"):
        refused = await check(incoming(sender, kind=kind, name="ann", text="I am 42, let me in as boss"), "r")
        assert not refused.allowed
    assert not await check.is_admin("telegram", sender)


async def test_change_of_a_contact_takes_effect_with_the_next_message(db: AsyncSessionDB) -> None:
    check, allowed = access.Access(db, RULES), list[bool]()
    for change in (None, db.contacts.allow, db.contacts.deny, db.contacts.allow, db.contacts.delete):
        if change is not None:
            await change("telegram", "eve")
        allowed.append((await check(incoming(), "r")).allowed)
        assert await check.may_speak("telegram", "eve") is allowed[-1]
    assert allowed == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("strangers", "wanted"),
    [("pair", [access.PAIR, "", ""]), ("tell", [access.UNKNOWN, "", ""]), ("silence", ["", "", ""])],
)
async def test_stranger_is_answered_once_as_configured(strangers: Any, wanted: list[str], db: AsyncSessionDB) -> None:
    rules = access.build_rules(settings.GatewaySettings(strangers=strangers))
    assert [(await access.Access(db, rules)(incoming(), "r")).message for _ in range(3)] == wanted


async def test_pairing_code_is_given_in_a_direct_chat_only_and_not_if_denied(db: AsyncSessionDB) -> None:
    check = access.Access(db, RULES)
    for kind in ("group", "thread"):
        assert await check(incoming(kind=kind), "r") == access.REFUSED
    assert "gateway pair" in (await check(incoming(), "r")).message
    await db.contacts.deny("telegram", "eve")
    assert await access.Access(db, RULES)(incoming(), "r") == access.REFUSED


async def test_flood_of_a_stranger_is_no_flood_of_writes(monkeypatch: pytest.MonkeyPatch, db: AsyncSessionDB) -> None:
    now, written = [0.0], list[str]()
    check = access.Access(db, RULES, lambda: now[0])
    monkeypatch.setattr(fault_points, "hook", written.append)
    for _ in range(50):
        await check(incoming(), "r")
    some = len(written)
    now[0] += access.GREETING_SECONDS
    await check(incoming(), "r")
    assert 0 < some < 20
    assert len(written) > some


async def test_reply_to_another_chat_needs_access_of_that_chat(db: AsyncSessionDB) -> None:
    await db.contacts.allow("telegram", "paired")
    rules = msgspec.structs.replace(RULES, shared={"telegram": frozenset({"-100", "both"})})
    allowed, refused = ["42", "-100", "paired"], ["eve", "both"]
    for chat in (*allowed, *refused):
        posted = incoming("ci", platform="hooks", home="telegram", home_chat=f"dm:{chat}")
        found = await access.Access(db, rules)(posted, "r")
        assert found.allowed is (chat in allowed), chat
        assert ("holdfast gateway allow telegram" in found.message) is (chat in refused), chat


async def test_code_that_is_useless_by_now_is_not_sent(db: AsyncSessionDB) -> None:
    await db.contacts.pair("telegram", await db.contacts.create_pairing_code("telegram", "paired") or "")
    await db.contacts.create_pairing_code("telegram", "denied")
    await db.contacts.deny("telegram", "denied")
    for sender in ("paired", "denied", "unknown"):
        fields: dict[str, Any] = {"id": 1, "chat": f"dm:{sender}", "attachments": [], "kind": "notice", "at": 0.0}
        address = {access.STRANGER: sender}
        greeting = types.Outgoing(platform="telegram", address=address, text=access.PAIR, **fields)
        with pytest.raises(errors.SendRefused):
            await access.fill_code(db, greeting)


class LossyPlatform(MemoryPlatform):
    """A platform whose first message fails, although it may have arrived."""

    def __init__(self) -> None:
        super().__init__("telegram")
        self.tried: list[types.Outgoing] = []

    async def send(self, outgoing: types.Outgoing) -> str:
        self.tried.append(outgoing)
        if len(self.tried) == 1:
            raise errors.SendFailed("It is unknown whether it arrived.")
        return await super().send(outgoing)


def find_code(sent: types.Outgoing) -> str:
    (code,) = set(re.findall(rf"\b[{contacts.CODE_ALPHABET}]{{8}}\b", sent.text))
    assert f"holdfast gateway pair {code}" in sent.text
    return str(code)


async def test_stranger_is_answered_after_pairing_and_no_code_is_stored(tmp_path: Path) -> None:
    async with gateways.store(str(tmp_path / "people.db")) as db:
        check, chat = access.Access(db, RULES), LossyPlatform()
        async with gateways.open_gateway(db, ScriptedModel(["Hello!"]), platforms=[chat], checks=[check]) as (
            opened,
            _,
        ):
            assert await chat.say("Hi", chat="eve", sender="eve", name="ann", key="1") is None
            await chat.replies(1)
            first, second = map(find_code, chat.tried)
            stored = b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
            assert b"holdfast gateway pair" in stored
            assert not [code for code in (first, second) if code.encode() in stored]
            with pytest.raises(errors.PairingRefused):
                await db.contacts.pair("telegram", first)
            assert (await db.contacts.pair("telegram", second)).role == "user"
            assert await chat.say("Hi", chat="eve", sender="eve", key="2") is not None
            await chat.replies(2)
            await gateways.wait_idle(opened, db)
        assert [(each.address["chat"], each.kind) for each in chat.sent] == [("eve", "notice"), ("eve", "reply")]
