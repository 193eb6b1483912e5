"""No sender sees or changes anything of another: every command, search and tool, for every kind of other sender.

Ann has something of everything: in a direct chat, in a group, in a shared group and over HTTP. All of it contains
SECRET, which the other senders never write: they name her things by ids, numbers, titles and the word quokka. On
another platform she is linked as `phone`; `lost` was linked, too, until that link was removed.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast import AIAgent, AsyncSessionDB, SessionDB, config, types
from holdfast.agent import commands
from holdfast.app import gateway
from holdfast.gateway import routes
from holdfast.gateway import settings as gateway_settings
from holdfast.gateway.platforms.http import http_platform
from holdfast.model import ScriptedModel
from holdfast.model import base as models
from holdfast.runtime import runtime
from tests.support import conversations, gateways, http_gateway
from tests.support.approvals import shell_reply
from tests.support.memory_platform import MemoryPlatform
from tests.support.polling import until_async

SECRET, TITLE = "numbat", "Quokka plans"
DM = {"chat": "ann", "sender": "ann"}
GROUP = {"kind": "group", "chat": "g", "sender": "ann"}
SHARED = {"kind": "group", "chat": "shared", "sender": "ann"}
OWN_CHATS = (("chat", "ann"), ("chat", "g"), ("chat", "shared"), ("far", "phone"))
OWNERS = ("chat:ann", "chat:group:shared", "http:ann")
NAMED = {"x-conversation-id": "plans"}
SETTINGS = gateway_settings.GatewaySettings(
    allow={"chat": ["ann", "bob"], "far": ["ann", "phone", "lost"]},
    deny={"chat": ["mallory"]},
    admins={"chat": ["root"]},
    shared={"chat": ["shared", "other"], "far": ["shared"]},
    shell=True,
    poll=0.02,
    grace=0.0,
    limits=gateway_settings.GatewayLimits(minute=1_000, person_minute=1_000),
)

COMMANDS: dict[str, list[str]] = {
    "help": ["", "quokka"],
    "title": ["", "{title}"],
    "sessions": [""],
    "search": ["quokka", '"the quokka"', "{title}", "{conversation}"],
    "status": [""],
    "usage": [""],
    "model": ["", "offline"],
    "compact": ["", "--preview", "quokka", "here 1", "undo", "redo"],
    "compress": ["quokka"],
    "recall": ["1", "1-9", "quokka", "{uid}", "{conversation}"],
    "pin": ["", "1", "last"],
    "unpin": ["1"],
    "memory": ["", "list", "edit {note} quokka", "forget {note}", "forget all", "add quokka"],
    "tools": [""],
    "permissions": ["", "revoke {grant}"],
    "approve": ["", "1", "1 conversation", "1 always"],
    "deny": ["", "1", "1 quokka"],
    "stop": [""],
    "steer": ["quokka {conversation}"],
    "queue": ["", "drop 1", "drop all"],
    "link": ["", "off", "{code}"],
    "undo": ["", "9"],
    "redo": [""],
    "retry": [""],
    "branch": ["", "{title}"],
    "resume": ["", "last", "{conversation}", "{conversation:.12}", "{title}", "quokka", "{uid}"],
    "new": ["", "{title}"],
    "reset": ["", "{title}"],
    "quit": [""],
}
"""The arguments of each command. A command without a row fails the test."""


def tool_calls(ids: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return calls of every tool that reads or changes stored data, with arguments that name Ann's."""
    process, folder = {"id": ids["process"]}, "../chat:ann"
    return [
        ("search_conversation", {"query": "quokka"}),
        ("recall", {"first": 1, "last": 9}),
        ("read_output", {"id": ids["digest"]}),
        ("memory", {"action": "list"}),
        ("memory", {"action": "revise", "id": ids["note"], "text": "quokka"}),
        ("memory", {"action": "forget", "id": ids["note"]}),
        ("list_processes", {}),
        ("read_process", process),
        ("wait_process", {**process, "seconds": 0}),
        ("write_process", {**process, "text": "quokka"}),
        ("kill_process", process),
        ("read_file", {"path": f"{folder}/quokka.txt"}),
        ("send_file", {"path": f"{folder}/quokka.txt"}),
        ("write_file", {"path": f"{folder}/quokka.txt", "content": "quokka"}),
        ("edit_file", {"path": f"{folder}/quokka.txt", "old_text": "quokka", "new_text": "x"}),
        ("find_files", {"pattern": "*", "path": folder}),
        ("search_files", {"pattern": "quokka", "path": ".."}),
    ]


class Stage:
    """A running gateway with Ann's things, and the ids by which others name them."""

    def __init__(self, opened: gateway.RunningGateway, chats: Sequence[MemoryPlatform], web: http_gateway.Web) -> None:
        self.db, self.gateway, self.web = opened.db, opened.gateway, web
        self.chats = {chat.name: chat for chat in chats}
        self.ids: dict[str, Any] = {}
        self.markers = {SECRET}
        self.sent = 0

    async def ask(self, line: str, platform: str = "chat", **where: str) -> str:
        """Send a line from a chat or over HTTP; return all that the client, or chats other than Ann's, get for it."""
        if platform == "http":
            answered = await self.web.ask(line, headers={**http_gateway.BOB, **NAMED})
            return f"{answered.headers}\n{answered.text}"
        self.sent += 1
        key, before = f"k{self.sent}", {name: len(chat.sent) for name, chat in self.chats.items()}
        if await self.chats[platform].say(line, key=key, **where) is not None:
            await gateways.wait_settled(self.db, key, platform=platform)
        await gateways.wait_sent(self.db)
        sent = [each for name, chat in self.chats.items() for each in chat.sent[before[name] :]]
        others = {*OWN_CHATS} - {(platform, where["chat"])}
        return "\n".join(repr(each) for each in sent if (each.platform, each.address["chat"]) not in others)

    @asynccontextmanager
    async def agent(self, identity: str, owner: str = "") -> AsyncIterator[tuple[runtime.Runtime, AIAgent]]:
        """Yield the runtime of a sender, and the agent of the last conversation there."""
        principal = routes.Principal(identity, owner or identity, linked=bool(owner))
        async with self.gateway.runtimes.use(principal) as opened:
            (head,) = await self.db.list_sessions(owner=principal.owner, limit=1)
            yield opened, await opened.agents.get(head.conversation_id)

    async def script(self, *principal: str, script: Sequence[Any]) -> ScriptedModel:
        """Let the last conversation of a sender be answered by a script."""
        model = ScriptedModel(script)
        async with self.agent(*principal) as (_, agent):
            agent.model = model
        return model

    def leaks(self, text: str) -> set[str]:
        return {each for each in self.markers if each in text.lower()}

    async def state(self) -> object:
        """Return everything of Ann."""
        waiting, links = await self.db.mail.open_inbound("agent:main:chat:dm:ann"), await self.db.contacts.links()
        return await self.db.run(lambda: conversations.everything(self.db.db, *OWNERS)), waiting, links


def fill(db: SessionDB) -> dict[str, Any]:
    """Add conversations, notes, grants, an attachment and a process of Ann; return the ids that others know."""
    conversations.begin(db, "20260101_000000_aaaaaa", f"The {SECRET} diary", owner="chat:ann", title=f"A {SECRET}")
    old = conversations.begin(db, "20260102_000000_bbbbbb", f"The quokka is a {SECRET}", owner="chat:ann", title=TITLE)
    digest = db.blobs.put(f"quokka {SECRET}".encode(), "text/plain").digest
    receipt = conversations.attach(db, old, digest)
    db.pin(old, 1)
    db.set_session_folder(old, f"/srv/{SECRET}")
    db.processes.record_start(conversations.process("p1", old, f"make {SECRET}"))
    db.processes.record_end("p1", "exited", 0, f"It printed {SECRET}.")
    notes = [db.memory.add(owner, f"Likes the {SECRET} of a quokka.") for owner in OWNERS]
    grants = [db.permissions.grant(owner, f"shell({SECRET})", by="ann") for owner in OWNERS]
    ids = {"conversation": old, "uid": receipt.uid, "digest": digest, "process": "p1", "title": TITLE}
    return {**ids, "note": notes[0].id, "grant": grants[0].id}


@asynccontextmanager
async def open_stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """Run the gateway of the program with Ann's things, a pending question of hers, and a message behind it."""
    loaded = config.load({"HOLDFAST_HOME": str(tmp_path), "HOLDFAST_MODEL": "offline"}, files=False)
    settings, path = msgspec.structs.replace(loaded, gateway=SETTINGS), str(tmp_path / "store.db")
    chats = [MemoryPlatform("chat"), MemoryPlatform("far")]
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(AsyncSessionDB(SessionDB(path)))
        http = http_platform.HttpPlatform(store, tokens=http_gateway.TOKENS, poll_seconds=0.01)
        opened = await stack.enter_async_context(gateway.serve(settings, platforms=[*chats, http], database=path))
        client = await stack.enter_async_context(http_gateway.client_of(http))
        await until_async(lambda: http.is_ready)
        stage = Stage(opened, chats, http_gateway.Web(opened.gateway, http, client))
        stage.ids = await store.run(lambda: fill(store.db))
        for where in (GROUP, SHARED, DM):
            await stage.ask(f"The quokka is a {SECRET}.", **where)
        for name in ("phone", "lost"):
            (stage.ids["code"],) = re.findall(r"/link (\w{8})", await stage.ask("/link", **DM))
            assert "Linked" in await stage.ask(f"/link {stage.ids['code']}", "far", chat=name, sender=name)
        assert "removed" in await stage.ask("/link off", "far", chat="lost", sender="lost")
        await stage.web.ask(f"The quokka is a {SECRET}.", headers={**http_gateway.ANN, **NAMED})
        (tmp_path / "gateway" / "chat:ann" / "quokka.txt").write_text(SECRET, encoding="utf-8")
        await stage.script("chat:ann", script=[shell_reply(f"touch {SECRET}")])
        asked = len(chats[0].sent)
        await chats[0].say(f"Touch the quokka {SECRET}", key="asks", **DM)
        await chats[0].replies(asked + 1)
        await chats[0].say(f"Then feed the quokka {SECRET}", key="waits", **DM)
        every = [each for owner in OWNERS for each in await opened.db.list_sessions(owner=owner)]
        stage.markers |= {each.conversation_id for each in every} - {stage.ids["conversation"]}
        yield stage


class Sender(NamedTuple):
    """A sender: the chat it writes in, its identity, and the owner that it is linked to."""

    where: dict[str, str]
    identity: str
    linked_to: str = ""


SENDERS = {
    "another sender": Sender({"chat": "bob", "sender": "bob"}, "chat:bob"),
    "an admin": Sender({"chat": "root", "sender": "root"}, "chat:root"),
    "the same id on another platform": Sender({"platform": "far", **DM}, "far:ann"),
    "another member of the group": Sender({**GROUP, "sender": "bob"}, "chat:bob"),
    "another shared group": Sender({**SHARED, "chat": "other", "sender": "bob"}, "chat:group:other"),
    "another shared group with Ann": Sender({**SHARED, "chat": "other"}, "chat:group:other"),
    "a sender who was linked": Sender({"platform": "far", "chat": "lost", "sender": "lost"}, "far:lost"),
    "a linked sender in a group": Sender({"platform": "far", **GROUP, "sender": "phone"}, "far:phone"),
    "a linked sender in a shared group": Sender({"platform": "far", **SHARED, "sender": "phone"}, "far:group:shared"),
    "a token of another name": Sender({"platform": "http"}, "http:bob"),
}


def lines(ids: dict[str, Any]) -> list[str]:
    return [f"/{name} {each}".format(**ids).rstrip() for name, arguments in COMMANDS.items() for each in arguments]


async def call_tools(stage: Stage, sender: Sender, *names: str) -> list[models.Request]:
    """Let the model of a sender call tools (default: all) after a message that quotes Ann; return its requests."""
    made = [types.ToolCall(f"call-{name}", name, given) for name, given in tool_calls(stage.ids)]
    wanted = tuple(call for call in made if not names or call.name in names)
    model = await stage.script(sender.identity, sender.linked_to, script=[models.Reply(calls=wanted), "Done."])
    assert "Done." in await stage.ask("Use every tool.", **sender.where, reply_to="asks")
    return model.requests


@pytest.mark.parametrize("sender", SENDERS.values(), ids=SENDERS)
async def test_sender_sees_and_changes_nothing_of_another(
    sender: Sender, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert set(COMMANDS) == set(commands.COMMANDS), "every command needs a row"
    async with open_stage(tmp_path) as stage:
        before, seen = await stage.state(), dict[str, str]()
        for line in ("Where is the quokka?", *lines(stage.ids), "What do you know about the quokka?"):
            seen[line] = await stage.ask(line, **sender.where)
        seen["tools"] = repr(await call_tools(stage, sender))
        async with stage.agent(sender.identity) as (opened, agent):
            for name in COMMANDS:
                completed = await commands.complete(opened, agent.conversation_id, f"/{name} ")
                seen[f"completion of /{name}"] = repr(completed)
            offered = {spec.name for spec in agent.tools.specs}
        assert all(seen.values())
        assert {line: leaked for line, text in seen.items() if (leaked := stage.leaks(text))} == {}
        assert offered == {"shell", "start_process", *(name for name, _ in tool_calls(stage.ids))}
        assert await stage.state() == before
    assert not stage.leaks(caplog.text)
    assert (tmp_path / "gateway" / "chat:ann" / "quokka.txt").read_text(encoding="utf-8") == SECRET


@pytest.mark.parametrize(
    ("where", "greetings"),
    [
        pytest.param({"chat": "mallory", "sender": "mallory"}, 0, id="denied"),
        pytest.param({**SHARED, "sender": "mallory"}, 0, id="denied in a shared group"),
        pytest.param({"chat": "eve", "sender": "eve"}, 1, id="unknown"),
        pytest.param({**GROUP, "sender": "eve"}, 0, id="unknown in a group"),
    ],
)
async def test_refused_sender_gets_at_most_a_greeting(where: dict[str, str], greetings: int, tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        before = await stage.state()
        replies = [each for line in lines(stage.ids) if (each := await stage.ask(line, **where))]
        assert len(replies) == greetings
        assert not stage.leaks("".join(replies))
        assert await stage.state() == before


READING = ("search_conversation", "recall", "read_output", "list_processes", "read_file")
SHOWING = ("/sessions", "/search quokka", "/status", "/recall 1", "/pin", "/memory")
OTHER_CHAT = Sender({"chat": "ann-2", "sender": "ann"}, "chat:ann")
LINKED_CHAT = Sender({"platform": "far", "chat": "phone", "sender": "phone"}, "far:phone", "chat:ann")


@pytest.mark.parametrize("ann", [OTHER_CHAT, LINKED_CHAT])
async def test_sender_finds_her_things_in_her_other_chats(ann: Sender, tmp_path: Path) -> None:
    """The control: the tests above would notice if a command or tool showed Ann's things."""
    shown, lines = dict[str, bool](), SHOWING if ann.linked_to else (*SHOWING, "/permissions")
    async with open_stage(tmp_path) as stage:
        await stage.ask(f"/resume {TITLE}", **ann.where)
        for line in lines:
            shown[line] = bool(stage.leaks(await stage.ask(line, **ann.where)))
        await stage.ask("Hello again", **ann.where)
        requests = await call_tools(stage, ann, *READING)
        for each in requests[-1].messages[-len(READING) :]:
            shown[each.tool_call_id or ""] = bool(stage.leaks(repr(each)))
    assert [line for line, is_shown in shown.items() if not is_shown] == []
    assert len(shown) == len(lines) + len(READING)
