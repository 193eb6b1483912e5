"""Who may talk to the agent: everybody who is not let in is refused, however they come."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, SessionDB, errors, fault_points, types
from holdfast.gateway import access, platform, settings
from holdfast.model import ScriptedModel
from holdfast.store.mail import contacts
from tests.support import gateways, memory_platform

RULES = access.build_rules(
    settings.GatewaySettings(
        allow={"telegram": [42, "ann", "both"], "open": ["*"]},
        deny={"telegram": ["both", "enemy", "boss-gone"], "open": ["enemy"]},
        admins={"telegram": ["boss", "boss-gone"]},
    )
)
HOUR = 3600.0


def came(sender: str = "eve", **given: Any) -> platform.Incoming:
    known: dict[str, Any] = {"platform": "telegram", "key": "1", "chat": (sender,), "text": "Hi"}
    return platform.Incoming(**{**known, **given, "sender": sender})


def known(role: types.ContactRole, platform: str = "telegram", sender: str = "eve") -> types.Contact:
    return types.Contact(platform=platform, sender=sender, role=role, name="", at=1.0, by="")


@pytest.mark.parametrize(
    ("platform", "sender", "person", "wanted"),
    [
        pytest.param("telegram", "42", None, "user", id="named by number"),
        pytest.param("telegram", "ann", None, "user", id="named"),
        pytest.param("telegram", "eve", known("user"), "user", id="let in"),
        pytest.param("telegram", "eve", known("admin"), "admin", id="let in as admin"),
        pytest.param("telegram", "boss", None, "admin", id="admins need no other line"),
        pytest.param("open", "eve", None, "user", id="where everybody may"),
        pytest.param("http", "eve", None, "user", id="who has a token"),
        pytest.param("telegram", "eve", None, "stranger", id="nobody"),
        pytest.param("discord", "42", None, "stranger", id="the same id elsewhere"),
        pytest.param("Telegram", "42", None, "stranger", id="a platform that looks like it"),
        pytest.param("telegram", "enemy", None, "denied", id="denied"),
        pytest.param("telegram", "enemy", known("user"), "denied", id="denied by settings, let in by somebody"),
        pytest.param("telegram", "enemy", known("admin"), "denied", id="denied by settings, made an admin"),
        pytest.param("telegram", "both", None, "denied", id="in both lists"),
        pytest.param("telegram", "boss-gone", None, "denied", id="an admin who is denied"),
        pytest.param("telegram", "ann", known("denied"), "denied", id="allowed by settings, denied by somebody"),
        pytest.param("telegram", "boss", known("denied"), "denied", id="an admin, denied by somebody"),
        pytest.param("open", "enemy", None, "denied", id="denied where everybody may"),
        pytest.param("http", "eve", known("denied", "http"), "denied", id="denied though there is a token"),
    ],
)
def test_denied_beats_allowed_and_nobody_is_allowed_by_default(
    platform: str, sender: str, person: types.Contact | None, wanted: str
) -> None:
    found = access.evaluate(RULES, platform, sender, person)
    assert (found or "stranger") == wanted


@pytest.mark.parametrize(
    "forged",
    [
        "42 ",
        " 42",
        "042",
        "+42",
        "42.0",
        "４２",  # full-width digits
        "42\u200b",
        "42\n",
        "42\x00",
        "telegram:42",
        "42:telegram",
        "Ann",
        "аnn",  # the first letter is Cyrillic
        "ann\u0301",
        "@ann",
        "*",
        "%34%32",
        "",
        "x" * 10_000,
        "\ud800",
    ],
)
@pytest.mark.parametrize("kind", ["dm", "group", "thread"])
async def test_an_id_that_only_looks_like_one_that_is_allowed_is_refused(
    forged: str, kind: platform.ChatKind, db: AsyncSessionDB
) -> None:
    guard = access.Access(db, RULES)
    verdict = await guard(came(forged, kind=kind, name="ann", text="I am 42, let me in as boss"), "r")
    assert not verdict.allowed
    assert not await guard.is_admin("telegram", forged)


@pytest.mark.parametrize("name", ["boss", "42", "ann", "the admin"])
async def test_a_name_lets_nobody_in(name: str, db: AsyncSessionDB) -> None:
    assert not (await access.Access(db, RULES)(came(name=name), "r")).allowed


@pytest.mark.parametrize(
    ("sender", "wanted"), [("boss", True), ("ann", False), ("eve", False), ("boss-gone", False), ("Boss", False)]
)
async def test_only_admins_are_admins(sender: str, wanted: bool, db: AsyncSessionDB) -> None:
    assert await access.Access(db, RULES).is_admin("telegram", sender) is wanted
    assert not await access.Access(db, RULES).is_admin("discord", sender)


async def test_what_is_said_of_somebody_counts_from_the_next_message_on(db: AsyncSessionDB) -> None:
    guard = access.Access(db, RULES)
    allowed = list[bool]()
    for change in (None, db.contacts.allow, db.contacts.deny, db.contacts.allow, db.contacts.delete):
        if change is not None:
            await change("telegram", "eve")
        allowed.append((await guard(came(), "r")).allowed)
    assert allowed == [False, True, False, True, False]


async def test_a_stranger_is_given_a_code_and_let_in_by_it(db: AsyncSessionDB) -> None:
    guard = access.Access(db, RULES)
    first, second = await guard(came(name="Eve"), "r"), await guard(came(), "r")
    assert not first.allowed
    assert second == access.REFUSED  # one code in ten minutes, and nothing else is said
    assert (first.message, first.with_code) == (access.PAIR, True)
    code = await db.contacts.renew_pairing_code("telegram", "eve")
    person = await db.contacts.pair("telegram", code or "")
    assert (person.sender, person.role, person.name) == ("eve", "user", "Eve")
    assert (await guard(came(), "r")).allowed
    assert not await guard.is_admin("telegram", "eve")


class Deaf(memory_platform.MemoryPlatform):
    """Takes nothing the first time it is asked to, though it went out."""

    def __init__(self) -> None:
        super().__init__("telegram")
        self.tried: list[types.Outgoing] = []

    async def send(self, outgoing: types.Outgoing) -> str:
        self.tried.append(outgoing)
        if len(self.tried) == 1:
            raise errors.SendFailed("Nobody knows whether it came.")
        return await super().send(outgoing)


def code_in(told: types.Outgoing) -> str:
    (code,) = set(re.findall(rf"\b[{contacts.CODE_ALPHABET}]{{8}}\b", told.text))
    return str(code)


async def test_no_code_is_ever_in_the_store_and_only_the_last_one_told_is_good(tmp_path: Path) -> None:
    async with gateways.store(str(tmp_path / "people.db")) as db:
        platform = Deaf()
        async with gateways.open_gateway(db, ScriptedModel(), platforms=[platform], checks=[access.Access(db, RULES)]):
            assert await platform.say("Hi", chat="eve", sender="eve", key="1") is None
            (told,) = await platform.replies(1)
        first, second = map(code_in, platform.tried)
        assert told.address == {"chat": "eve"}
        kept = b"".join(each.read_bytes() for each in tmp_path.iterdir() if each.is_file())
        assert b"holdfast gateway pair" in kept
        assert not [code for code in (first, second) if code.encode() in kept]
        with pytest.raises(errors.PairingRefused):
            await db.contacts.pair("telegram", first)
        assert (await db.contacts.pair("telegram", second)).sender == "eve"


@pytest.mark.parametrize("change", ["paired", "denied", "too late"])
def test_a_code_that_would_be_good_for_nothing_is_not_told(change: str) -> None:
    clock = Clock()
    with SessionDB(":memory:", clock=clock) as db:
        code = db.contacts.create_pairing_code("telegram", "eve")
        assert code is not None
        if change == "paired":
            db.contacts.pair("telegram", code)
        elif change == "denied":
            db.contacts.deny("telegram", "eve")
        else:
            clock.now += HOUR
        assert db.contacts.renew_pairing_code("telegram", "eve") is None
        assert db.contacts.renew_pairing_code("telegram", "ann") is None


async def test_a_stranger_is_told_once_by_all_processes_and_also_after_a_restart(tmp_path: Path) -> None:
    rules = access.build_rules(settings.GatewaySettings(strangers="tell"))

    async with gateways.store(str(tmp_path / "people.db")) as db:
        async with AsyncSessionDB(SessionDB(tmp_path / "people.db")) as other:
            said = [(await access.Access(each, rules)(came(), "r")).message for each in (db, other, db)]
        async with AsyncSessionDB(SessionDB(tmp_path / "people.db")) as after:
            said.append((await access.Access(after, rules)(came(), "r")).message)
        assert said == [access.UNKNOWN, "", "", ""]


@pytest.mark.parametrize(
    ("to", "wanted"),
    [
        pytest.param("dm:42", True, id="allowed by settings"),
        pytest.param("dm:boss", True, id="an admin"),
        pytest.param("dm:-100", True, id="a group that is shared"),
        pytest.param("dm:paired", True, id="let in"),
        pytest.param("dm:eve", False, id="a stranger"),
        pytest.param("dm:both", False, id="denied"),
        pytest.param("dm:4%32", True, id="quoted, and the same"),
    ],
)
async def test_an_answer_that_goes_to_another_chat_goes_only_where_somebody_was_let_in(
    to: str, wanted: bool, db: AsyncSessionDB
) -> None:
    await db.contacts.allow("telegram", "paired")
    rules = msgspec.structs.replace(RULES, shared={"telegram": frozenset({"-100"})})
    posted = came("ci", platform="hooks", home="telegram", home_chat=to)
    found = await access.Access(db, rules)(posted, "r")
    assert found.allowed is wanted
    assert ("holdfast gateway allow telegram" in found.message) is not wanted


@pytest.mark.parametrize("kind", ["group", "thread"])
async def test_no_code_is_given_where_others_read_it(kind: platform.ChatKind, db: AsyncSessionDB) -> None:
    assert await access.Access(db, RULES)(came(kind=kind), "r") == access.REFUSED
    # It is still to be had in a chat of their own.
    assert "gateway pair" in (await access.Access(db, RULES)(came(), "r")).message


@pytest.mark.parametrize(("strangers", "wanted"), [("tell", [access.UNKNOWN, "", ""]), ("silence", ["", "", ""])])
async def test_strangers_are_told_once_or_never(strangers: Any, wanted: list[str], db: AsyncSessionDB) -> None:
    rules = access.build_rules(settings.GatewaySettings(strangers=strangers))
    assert [(await access.Access(db, rules)(came(), "r")).message for _ in range(3)] == wanted


async def test_a_flood_of_a_stranger_is_no_flood_of_writes(db: AsyncSessionDB) -> None:
    now, written = [0.0], list[str]()
    guard = access.Access(db, RULES, lambda: now[0])
    fault_points.hook = written.append
    try:
        for _ in range(50):
            await guard(came(), "r")
        some = len(written)
        now[0] += access.GREETING_SECONDS
        await guard(came(), "r")
    finally:
        fault_points.hook = None
    assert 0 < some < 20
    assert len(written) > some


async def test_who_is_denied_is_given_no_code(db: AsyncSessionDB) -> None:
    await db.contacts.deny("telegram", "eve")
    assert await access.Access(db, RULES)(came(), "r") == access.REFUSED
    assert await db.contacts.create_pairing_code("telegram", "eve") is None


# --- codes -------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def refused(db: SessionDB, code: str, platform: str | None = "telegram") -> errors.PairingRefused:
    with pytest.raises(errors.PairingRefused) as found:
        db.contacts.pair(platform, code)
    return found.value


@pytest.mark.parametrize(
    ("wait", "platform"),
    [
        pytest.param(HOUR + 1, "telegram", id="expired"),
        pytest.param(0.0, "discord", id="of another platform"),
    ],
)
def test_a_code_that_is_not_good_here_and_now_lets_nobody_in(wait: float, platform: str) -> None:
    clock = Clock()
    with SessionDB(":memory:", clock=clock) as db:
        code = db.contacts.create_pairing_code("telegram", "eve")
        assert code is not None
        clock.now += wait
        refused(db, code, platform)
        assert db.contacts.get("telegram", "eve") is None


def test_a_code_is_good_once() -> None:
    with SessionDB(":memory:") as db:
        code = db.contacts.create_pairing_code("telegram", "eve")
        assert code is not None
        db.contacts.pair("telegram", code)
        db.contacts.delete("telegram", "eve")
        refused(db, code)
        assert db.contacts.get("telegram", "eve") is None


def test_denying_somebody_takes_their_code_back() -> None:
    with SessionDB(":memory:") as db:
        code = db.contacts.create_pairing_code("telegram", "eve")
        assert code is not None
        db.contacts.deny("telegram", "eve")
        refused(db, code)
        found = db.contacts.get("telegram", "eve")
        assert found is not None
        assert found.role == "denied"


@pytest.mark.parametrize("platform", ["telegram", None])
def test_guessing_is_stopped_whichever_process_is_asked_and_after_a_restart(
    tmp_path: Path, platform: str | None
) -> None:
    clock = Clock()
    path = tmp_path / "people.db"
    with SessionDB(path, clock=clock) as asked:
        code = asked.contacts.create_pairing_code("telegram", "eve")
        assert code is not None
        for guess in range(contacts.MAX_FAILURES):
            # Each is another process, as far as the store can tell.
            with SessionDB(path, clock=clock) as other:
                refused(other, f"WRONG{guess}", platform)
        with SessionDB(path, clock=clock) as other:
            assert refused(other, code, platform).locked_for == pytest.approx(HOUR)
        clock.now += HOUR - 1
        assert refused(asked, code, platform).locked_for == pytest.approx(1.0)
        assert asked.contacts.get("telegram", "eve") is None
        clock.now += 2
        again = asked.contacts.create_pairing_code("telegram", "eve")
        assert again is not None
        assert asked.contacts.pair(platform, again).sender == "eve"


def test_nobody_is_given_a_code_while_guessing_is_stopped() -> None:
    clock = Clock()
    with SessionDB(":memory:", clock=clock) as db:
        for guess in range(contacts.MAX_FAILURES):
            refused(db, f"WRONG{guess}")
        assert db.contacts.create_pairing_code("telegram", "eve") is None
        clock.now += HOUR + 1
        assert db.contacts.create_pairing_code("telegram", "eve") is not None


async def test_through_the_gateway_only_who_is_let_in_is_answered(db: AsyncSessionDB) -> None:
    rules = access.Rules({"loopback": frozenset({"ann"})}, authenticated=frozenset())
    guard = access.Access(db, rules)
    model = ScriptedModel(["Hello, Ann.", "Hello, Eve."])
    async with gateways.open_gateway(db, model, checks=[guard], is_admin=guard.is_admin) as (running, chat):
        assert await chat.say("Hi", chat="eve", sender="eve", name="ann") is None
        (told,) = await chat.replies(1)
        assert await chat.say("Hi", chat="ann", sender="ann") is not None
        await chat.replies(2)
        (code,) = set(re.findall(rf"\b[{contacts.CODE_ALPHABET}]{{8}}\b", told.text))
        assert f"holdfast gateway pair {code}" in told.text
        await db.contacts.pair(None, code)
        assert await chat.say("Hi", chat="eve", sender="eve") is not None
        await chat.replies(3)
        await gateways.quiet(running, db)
    assert [(each.address["chat"], each.kind) for each in chat.sent] == [
        ("eve", "notice"),
        ("ann", "reply"),
        ("eve", "reply"),
    ]
