"""/link: one person uses the same conversations from several chats and the terminal."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, content_parts, events, types
from holdfast.agent import turn_lease
from holdfast.gateway import commands, gateway, platform, routes, worker
from holdfast.model import ScriptedModel
from holdfast.runtime import linked_chats
from holdfast.store.mail import contacts
from tests.support import agents, gateways, http_gateway, memory_platform, runtimes
from tests.support.gateways import texts, wait_settled


class Phone(memory_platform.MemoryPlatform):
    """A chat of one person on one platform: each message is answered before the next."""

    count = 0

    async def ask(self, text: str, **fields: Any) -> str:
        """Send a message and return the reply, which is the next message that is not a copy."""
        self.count += 1
        known = len(self.sent)
        await self.say(text, key=str(self.count), **fields)
        await self.replies(known + 1)
        return self.sent[-1].text

    async def link(self, other: Phone) -> str:
        """Link another chat to this one, and return the reply there."""
        return await other.ask(f"/link {find_code(await self.ask('/link'))}")


def find_code(text: str) -> str:
    (code,) = re.findall(rf"/link ([{contacts.CODE_ALPHABET}]{{8}})", text)
    return str(code)


@asynccontextmanager
async def open_phones(
    db: AsyncSessionDB, kind: Callable[[str], Phone] = Phone, others: Sequence[Phone] = (), **given: Any
) -> AsyncIterator[tuple[gateway.Gateway, Phone, Phone]]:
    one, two = kind("red"), kind("blue")
    model = ScriptedModel([f"Reply {number}." for number in range(1, 20)])
    async with gateways.open_gateway(db, model, platforms=[one, two, *others], **given) as (opened, _):
        yield opened, one, two


@asynccontextmanager
async def open_linked(*args: Any, **given: Any) -> AsyncIterator[tuple[gateway.Gateway, Phone, Phone]]:
    """Open two chats, and link the second to the first, which has a conversation."""
    async with open_phones(*args, **given) as (opened, red, blue):
        await red.ask("Hello")
        await red.link(blue)
        yield opened, red, blue


async def test_turn_is_copied_once_to_every_linked_chat(db: AsyncSessionDB) -> None:
    green, web = Phone("green"), Phone("http")
    async with open_phones(db, others=[green, web]) as (opened, red, blue):
        await red.ask("Hello")
        for other in (blue, green, web):
            assert (await red.link(other)).startswith("Linked. This chat continues in: Hello")
        await red.ask("Again")
        for other in (blue, green):
            assert texts(await other.replies(3))[1:] == ["You on red: Again", "Reply 2."]
        await gateways.wait_idle(opened, db)
        assert len(web.sent) == 1, "an HTTP client receives nothing but the response to its request"


async def test_copy_of_a_repeated_turn_has_the_reply_of_the_earlier_attempt(db: AsyncSessionDB) -> None:
    # The copies are stored as by another process.
    async with open_phones(db, poll=0.02) as (_, red, blue):
        for text in ("Hello", "Again"):
            await red.ask(text)
        await red.link(blue)
        (head,) = await db.list_sessions()
        said, *_ = await db.transcript(head.id)
        home = await db.mail.last_chat(head.id)
        result = agents.turn_result(final_response="Reply 2.", messages=(said,))
        await linked_chats.TurnCopies(db, head.id, home.route, lambda _: None).finish(result)
        assert texts(await blue.replies(3))[1:] == ["You on red: Hello", "Reply 2."]


@pytest.mark.parametrize("by", ["the chat", "the first chat", "an operator"])
async def test_unlinked_chat_is_separated_and_the_first_keeps_its_conversation(by: str, db: AsyncSessionDB) -> None:
    async with open_linked(db) as (_, red, blue):
        match by:
            case "the chat":
                assert await blue.ask("/link off") == commands.UNLINKED
                assert await blue.ask("/link off") == commands.NOT_LINKED
            case "the first chat":
                assert await red.ask("/link off") == commands.UNLINKED_OTHERS
            case _:  # The route of the chat still leads to the conversation.
                await db.contacts.unlink("blue", "local")
        await blue.ask("On my own")
        assert "Hello" not in await blue.ask("/sessions")
        await red.ask("Still here")
        assert [text for text in texts(red.sent) if "On my own" in text] == []
        assert {each.platform for each in await db.contacts.links()} <= {"red"}
        assert {head.owner: head.last_seq for head in await db.list_sessions()} == {"red:local": 4, "blue:local": 2}


async def test_new_code_neither_changes_nor_restores_a_link(db: AsyncSessionDB) -> None:
    async with open_linked(db) as (opened, _, blue):
        find_code(await blue.ask("/link"))
        assert await db.contacts.linked_owner("blue", "local") == "red:local"
        stale = await db.mail.inbound_by_key("blue", str(blue.count))
        assert stale.linked_owner == "red:local"
        await db.contacts.unlink("blue", "local")
        async with opened.runtimes.use(routes.principal_of(stale)) as found:
            assert await commands._link(found, opened.router._worker.bindings, stale) == commands.LINK_CHANGED
        assert await db.contacts.linked_owner("blue", "local") == "blue:local"


@pytest.mark.parametrize("begun", [False, True])
async def test_queued_message_is_refused_after_its_link_was_removed(begun: bool, db: AsyncSessionDB) -> None:
    async with open_linked(db) as (_, _, blue):
        await blue.ask("Linked")
    (head,) = await db.list_sessions()
    last = await db.mail.inbound_by_key("blue", str(blue.count))
    assert last is not None
    terms = [] if begun else [msgspec.to_builtins(platform.Terms(conversation_id=head.id))]
    fields = {name: getattr(last, name) for name in ("platform", "route", "home", "chat", "sender", "address")}
    queued, _ = await db.mail.add_inbound(types.NewInboundMessage(**fields, key="queued", text="Hi", parts=terms))
    if begun:
        lease = await db.mail.acquire_chat_lease(last.route, 60.0)
        await db.mail.begin_inbound(lease, queued.id, head.id)
        await db.mail.release_chat_lease(lease)
    await db.contacts.unlink("blue", "local")
    async with open_phones(db) as (_, _, blue):
        (settled,) = await wait_settled(db, "queued", platform="blue")
        assert (settled.outcome, texts(await blue.replies(1))) == ("refused", [worker.NO_ACCESS])
    assert (await db.conversation(head.id)).last_seq == 4


async def test_message_in_a_group_does_not_stop_the_copies_of_a_direct_turn(db: AsyncSessionDB) -> None:
    async with open_linked(db) as (opened, red, blue):
        (head,) = await db.list_sessions()
        async with opened.runtimes.use(routes.Principal("red:local", "red:local", linked=True)) as found:
            await red.ask("In the group", chat="choir", kind="group")
            await found.submit(head.id, events.Submit("In private"))
        assert texts(await blue.replies(3))[1] == "You elsewhere: In private"


async def test_turns_are_copied_neither_to_nor_from_a_group(db: AsyncSessionDB) -> None:
    group = {"chat": "choir", "kind": "group"}
    async with open_phones(db) as (opened, red, blue):
        await red.ask("In the group", **group)
        (head,) = await db.list_sessions()
        await red.ask("Hello")
        await red.link(blue)
        await red.ask(f"/resume {head.id}")
        await red.ask("In private")
        await red.ask("In the group again", **group)
        await gateways.wait_idle(opened, db)
        assert [each.text for each in red.sent if each.address["chat"] == "choir"] == ["Reply 1.", "Reply 4."]
        assert not [text for text in texts([*red.sent, *blue.sent]) if text.startswith("You on ")]


async def test_running_turn_is_shown_in_the_linked_chat(db: AsyncSessionDB) -> None:
    gate, red, blue = agents.Gate(), Phone("red"), Phone("blue")
    model, tools = ScriptedModel(["Hi.", agents.calls("wait"), "Done."]), [agents.tool("wait", gate)]
    async with gateways.open_gateway(db, model, platforms=[red, blue], tools=tools):
        await red.ask("Hello")
        await red.link(blue)
        await red.say("Long job", key="job")
        await gate.reached.wait()
        assert texts(await blue.replies(2))[1:] == ["You on red: Long job"]
        assert "turn          running elsewhere (loopback), 0 waiting" in await blue.ask("/status")
        assert await blue.ask("/stop") == turn_lease.RUNNING.format("loopback")
        gate.go.set()
        assert texts(await blue.replies(5))[4:] == ["Done."]


async def test_reply_to_a_notice_is_copied(db: AsyncSessionDB) -> None:
    async with open_linked(db) as (opened, red, blue):
        await blue.ask("From here")
        known = len(await red.replies(4))
        (head,) = await db.list_sessions()
        await db.mail.add_inbox_entry(head.conversation_id, "n1", "The build ended with 0.", kind="process")
        opened.router.wake()
        assert texts(await red.replies(known + 1))[known:] == ["Reply 3."]
        await gateways.wait_idle(opened, db)
        assert (texts(blue.sent)[-1], len(red.sent)) == ("Reply 3.", known + 1)


async def test_notice_of_the_program_is_not_copied_as_words_of_the_user(db: AsyncSessionDB) -> None:
    async with open_linked(db) as (opened, red, blue):
        (head,) = await db.list_sessions()
        known, home = len(blue.sent), await db.mail.last_chat(head.id)
        assert home is not None
        content = [content_parts.notice("The build ended with 0.", "process")]
        await db.append_messages(head.id, [types.NewMessage(role="user", content=content)])
        (notice,) = await db.transcript(head.id, head.last_seq)
        copies = linked_chats.TurnCopies(db, head.id, home.route, lambda _: None)
        copies.on_event(events.MessageStored(notice.seq, notice.uid, "user"))
        await copies.finish(agents.turn_result(messages=(notice,)))
        await red.ask("Done?")
        assert texts(await blue.replies(known + 2))[known:] == ["You on red: Done?", "Reply 2."]
        await gateways.wait_idle(opened, db)


async def test_copy_keeps_to_the_limit_of_its_platform(db: AsyncSessionDB) -> None:
    async with open_linked(db, partial(Phone, limit=160)) as (_, red, blue):
        known = len(blue.sent)
        await red.ask("word " * 180)
        copy, reply = texts(await blue.replies(known + 2))[known:]
        assert (100 < len(copy) <= 160, copy.endswith(linked_chats.SHORTENED.format(seq=3))) == (True, True)
        assert reply == "Reply 2."


async def test_notice_is_shown_only_in_the_chat_of_its_turn(db: AsyncSessionDB) -> None:
    gate, group = agents.Gate(), {"chat": "choir", "kind": "group"}
    noted = agents.calls("memory", memory='{"action": "remember", "text": "Likes tea."}')
    model = ScriptedModel(["Hi.", "In the group.", agents.calls("wait"), noted, *["Good."] * 3])
    red, blue, tools = Phone("red"), Phone("blue"), [agents.tool("wait", gate)]
    async with gateways.open_gateway(db, model, platforms=[red, blue], remembers=True, tools=tools) as (opened, _):
        await red.ask("Hello")
        (head,) = await db.list_sessions()
        await red.link(blue)
        await red.ask("Hi all", **group)
        await red.ask(f"/resume {head.id}", **group)
        await red.say("Remember that I like tea", key="private")
        await gate.reached.wait()
        await red.say("What time is it?", key="group", **group)
        await blue.say("Meanwhile", key="linked")
        for platform_name, key in (("red", "group"), ("blue", "linked")):
            await gateways.wait_begun(db, key, platform_name)
        gate.go.set()
        await gateways.wait_idle(opened, db)
    noticed = [(each.platform, each.chat) for each in (*red.sent, *blue.sent) if each.text.startswith("Added to mem")]
    assert noticed == [("red", "dm:local")]


@pytest.mark.parametrize("access", ["denied", "not allowed by the settings", "unlinked"])
async def test_sender_without_access_gets_no_copies(access: str, db: AsyncSessionDB) -> None:
    revoked = set[str]()

    async def may_speak(_platform: str, sender: str) -> bool:
        return sender not in revoked

    async with open_linked(db, may_speak=may_speak) as (opened, red, blue):
        match access:
            case "denied":
                await db.contacts.deny("blue", "local")
            case "unlinked":
                await db.contacts.unlink("blue", "local")
            case _:
                revoked.add("local")
        await red.ask("Between us")
        await gateways.wait_idle(opened, db)
        assert [text for text in texts(blue.sent) if "Between us" in text] == []


@pytest.mark.parametrize("owner", ["red:local", "green:local", "", None])
async def test_queued_copy_is_sent_only_while_its_recipient_is_linked(owner: str | None, db: AsyncSessionDB) -> None:
    await db.create_session("talk", source="test", owner="red:local")
    if owner is not None:
        await db.contacts.link("blue", "local", owner)
    address = {"chat": "local", linked_chats.RECIPIENT: "local"}
    copy = types.NewOutgoing(platform="blue", chat="dm:local", address=address, text="Between us", kind="notice")
    await db.mail.post(copy, key="copy:1", conversation_id="talk")
    async with open_phones(db) as (opened, _, blue):
        await gateways.wait_idle(opened, db)
        assert texts(blue.sent) == (["Between us"] if owner == "red:local" else [])


async def test_turns_are_not_copied_to_a_chat_that_other_people_joined(db: AsyncSessionDB) -> None:
    joined = set[str]()

    class SharedPhone(Phone):
        async def is_direct(self, address: dict[str, Any]) -> bool:
            return address["chat"] not in joined

    async with open_linked(db, SharedPhone) as (opened, red, blue):
        await red.ask("Only you")
        assert texts(await blue.replies(3))[1:] == ["You on red: Only you", "Reply 2."]
        joined.add(blue.sent[-1].address["chat"])
        await red.ask("Between us")
        await gateways.wait_idle(opened, db)
        assert len(blue.sent) == 3


async def test_notices_are_not_sent_to_an_unlinked_chat(db: AsyncSessionDB) -> None:
    async with open_linked(db) as (opened, red, blue):
        await blue.ask("From here")
        (head,) = await db.list_sessions()
        await db.contacts.unlink("blue", "local")
        known = len(blue.sent)
        await db.mail.add_inbox_entry(head.conversation_id, "n1", "The build ended with 0.", kind="process")
        opened.router.wake()
        await red.ask("Back")  # The notice is answered before this message.
        await gateways.wait_idle(opened, db)
        assert await db.mail.inbox_entries(head.conversation_id) == []
        assert len(blue.sent) == known


@pytest.mark.parametrize("line", ["/link", "/link ABCDEFGH", "/link off"])
async def test_groups_cannot_be_linked_and_do_not_use_a_link(line: str, db: AsyncSessionDB) -> None:
    async with open_linked(db) as (_, _, blue):
        group = {"chat": "choir", "kind": "group"}
        assert await blue.ask(line, **group) == commands.DIRECT_ONLY
        assert "Hello" not in await blue.ask("/sessions", **group)


async def test_code_that_a_group_has_read_is_revoked_and_a_wrong_one_changes_nothing(db: AsyncSessionDB) -> None:
    async with open_phones(db) as (_, red, blue):
        await red.ask("Hello")
        await blue.ask("Mine")
        code = find_code(await red.ask("/link"))
        answered = await red.ask(f"/link {code}", chat="choir", kind="group")
        assert answered == f"{commands.DIRECT_ONLY}\n{commands.CODE_REVOKED}"
        assert await blue.ask(f"/link {code}") == "The code is wrong, used or too old. Get a new one."
        assert {each.platform for each in await db.contacts.links()} == {"red"}
        await blue.ask("Still mine")
        assert {head.last_seq for head in await db.list_sessions()} == {2, 4}


async def test_link_shares_notes_but_neither_grants_nor_rights(db: AsyncSessionDB) -> None:
    async with open_phones(db) as (opened, red, blue):
        await red.ask("Hello")
        await red.ask("/memory add Prefers trains.")
        await db.permissions.grant("red:local", "shell", by="test")
        await red.link(blue)
        assert "Prefers trains." in await blue.ask("/memory")
        assert "shell" not in await blue.ask("/permissions")
        async with opened.runtimes.use(routes.Principal("blue:local", "red:local", linked=True)) as found:
            assert (found.owner, found.approvals.owner) == ("red:local", "blue:local")


async def test_turns_of_the_terminal_are_copied_to_linked_chats(db: AsyncSessionDB) -> None:
    model = ScriptedModel(["From home.", "x" * 5_000])
    async with open_phones(db, poll=0.02) as (_, red, _blue), runtimes.open_runtime(db, model) as terminal:
        await terminal.submit("talk", events.Submit("Start"))
        code = find_code(await runtimes.answer_text(terminal, "/link"))
        assert (await red.ask(f"/link {code}")).startswith("Linked.")
        assert await red.ask("From the road") == "Reply 1."
        await terminal.submit("talk", events.Submit("Any news?"))
        *_, asked, answer = texts(await red.replies(4))
        assert (asked, answer[:3]) == ("You elsewhere: Any news?", "xxx")
        assert answer.endswith(linked_chats.SHORTENED.format(seq=6))
        (head,) = await db.list_sessions()
        assert (head.conversation_id, head.owner, head.last_seq) == ("talk", "", 6)


async def test_linked_token_opens_a_conversation_of_the_terminal_over_http(db: AsyncSessionDB) -> None:
    id_ = "20261118_120000_abcdef"
    await db.create_session(id_, source="cli")
    await db.append_message(id_, role="user", content="Hello")
    chosen = {**http_gateway.ANN, "x-conversation-id": id_}
    async with http_gateway.open_web(db, ScriptedModel(["Yes."] * 3)) as web:
        assert (await web.ask("Are you there?", headers=chosen)).status_code == 404
        await db.contacts.link("http", "ann", "")
        assert http_gateway.text_of(await web.ask("Are you there?", headers=chosen)) == "Yes."
        await db.contacts.unlink("http", "ann")
        assert (await web.ask("And now?", headers=chosen)).status_code == 404
    assert (await db.conversation(id_)).last_seq == 3


@pytest.mark.parametrize("named", [True, False])
async def test_unlinked_token_does_not_continue_a_chat_of_the_terminal(named: bool, db: AsyncSessionDB) -> None:
    chosen = {**http_gateway.ANN, **({"x-conversation-id": "work"} if named else {})}
    async with http_gateway.open_web(db, ScriptedModel([f"Reply {number}." for number in range(5)])) as web:
        await db.contacts.link("http", "ann", "")
        await web.ask("One", headers=chosen)
        await db.contacts.unlink("http", "ann")
        await web.ask("One", "Reply 0.", "Two", headers=chosen)
        assert {head.owner for head in await db.list_sessions()} == {"", "http:ann"}
