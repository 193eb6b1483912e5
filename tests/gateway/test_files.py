"""Files in both directions: received ones are saved in the working folder, and the agent attaches files to replies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import AsyncSessionDB, config
from holdfast.app import gateway, models
from holdfast.gateway import platform
from holdfast.gateway.platforms import loopback
from holdfast.model import ScriptedModel
from holdfast.model import base as model_base
from holdfast.tools.files import send, workspace
from holdfast.tools.permissions import rules
from tests.support import agents, gateways
from tests.support.memory_platform import MemoryPlatform


def program(home: Path, **said: Any) -> config.Settings:
    """Return the settings of a program in this folder."""
    loaded = config.load({"HOLDFAST_HOME": str(home), "HOLDFAST_MODEL": "offline"}, files=False)
    wanted = {"poll": 0.02, "grace": 0.0, "allow": {"chat": ["ann"], "telegram": [42]}, **said}
    changed = msgspec.structs.replace(loaded.gateway, **wanted)
    denied = rules.parse_rule("deny", "read_file(private/**)")
    return msgspec.structs.replace(loaded, gateway=changed, permissions=(denied,))


async def receive(chat: MemoryPlatform, key: str, *attachments: platform.Attachment) -> None:
    """Receive a message of Ann with these files."""
    await chat.wait_ready()
    line = loopback.LoopbackLine("Look", key=key, chat="ann", sender="ann")
    incoming = loopback.build_incoming(chat.name, line)
    await chat.handler.receive(msgspec.structs.replace(incoming, attachments=attachments))


def send_reply(path: str) -> model_base.Reply:
    return agents.calls(send.NAME, send_file=msgspec.json.encode({"path": path}).decode())


async def read_files(sent: Sequence[platform.Delivery]) -> list[tuple[str, str, bytes]]:
    return [(file.name, file.media_type, await file.read()) for each in sent for file in each.files]


@pytest.mark.parametrize(
    ("name", "saved"),
    [
        ("../../.bashrc", "bashrc"),
        ("a/../b\0 c.zip", "a_.._b_c.zip"),
        (".git", "git"),
        ("", "file"),
        ("é" * 300 + ".pdf", "é" * 56 + ".pdf"),
        ("\u202egpj.exe", "gpj.exe"),
    ],
)
async def test_received_file_is_saved_in_the_folder_of_its_sender(name: str, saved: str, tmp_path: Path) -> None:
    chat, folder = MemoryPlatform("chat"), tmp_path / "gateway" / "chat:ann"
    async with gateway.serve(program(tmp_path), platforms=[chat]) as opened:
        for number in (1, 2):  # The same file again is the same file.
            await receive(chat, str(number), platform.Attachment(b"PK\xff", "application/zip", name))
            (found,) = await gateways.wait_settled(opened.db, str(number), platform="chat")
        (file,) = [each for each in folder.rglob("*") if each.is_file()]
        digest = (await opened.db.blobs.put(b"PK\xff")).digest
        assert found.conversation_id
        asked = (await opened.db.transcript(found.conversation_id, 0, found.seq))[-1]
    assert (file, file.read_bytes()) == (folder / "inbox" / f"{digest[:12]}-{saved}", b"PK\xff")
    assert f"is in the working folder: inbox/{digest[:12]}-{saved}" in str(asked.content)


async def test_model_learns_that_a_file_could_not_be_saved(tmp_path: Path) -> None:
    chat, folder = MemoryPlatform("chat"), tmp_path / "gateway" / "chat:ann"
    folder.mkdir(parents=True)
    (folder / "inbox").symlink_to(tmp_path)
    async with gateway.serve(program(tmp_path), platforms=[chat]) as opened:
        await receive(chat, "1", platform.Attachment(b"text", "text/plain", "n.txt"))
        (found,) = await gateways.wait_settled(opened.db, "1", platform="chat")
        assert found.conversation_id
        (asked,) = await opened.db.transcript(found.conversation_id, 0, found.seq)
    assert not list(tmp_path.rglob("*n.txt"))
    assert "outside of the workspace" in str(asked.content)
    assert f"read_output reads it: {found.parts[1]['blob']}" in str(asked.content)


@pytest.mark.parametrize("crash", [None, "before the model continues", "before the reply is stored"])
async def test_sent_file_is_attached_also_after_a_crash(crash: str | None, tmp_path: Path, db: AsyncSessionDB) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.csv").write_bytes(b"a,b\n")
    gate, script = gateways.Gate(), [send_reply("out/report.csv"), "Here it is."]
    tools = [send.send_file(workspace.Workspace([str(tmp_path)]), db.blobs.put), agents.tool("wait", gate)]
    if crash == "before the model continues":
        script.insert(1, agents.calls("wait"))
    if crash == "before the reply is stored":
        gateways.intercept(db.mail, "settle_inbound", lambda: gate(None))
    async with gateways.open_gateway(db, ScriptedModel(script), tools=tools) as (opened, chat):
        await chat.say("Send me the report", key="1")
        if crash is not None:
            await gate.reached.wait()
            opened.runtimes.abandon()
        else:
            await chat.replies(1)
    gate.go.set()
    async with gateways.open_gateway(db, ScriptedModel(["Here it is."]), tools=tools) as (_, second):
        sent = await (chat if crash is None else second).replies(1)
    assert gateways.texts(sent) == ["Here it is."]
    assert await read_files(sent) == [("report.csv", "text/csv", b"a,b\n")]


@pytest.mark.parametrize(
    ("path", "refusal"),
    [
        ("../secret.txt", "outside of the workspace"),
        ("link", "outside of the workspace"),
        ("missing.txt", "No such file"),
        (".", "This is a folder"),
        ("large.bin", "more than 10 bytes"),
        ("empty.txt", "The file is empty"),
        (".env", "The question was not answered in time."),
        ("private/plan.txt", "A rule in the settings forbids it"),
    ],
)
async def test_file_that_cannot_be_read_is_not_sent(
    path: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def choose(*_: object) -> models.ModelChoice:
        return models.ModelChoice(model)

    model = ScriptedModel([send_reply(path), "Sorry."])
    monkeypatch.setattr(models, "choose", choose)
    monkeypatch.setattr(send, "MAX_BYTES", 10)
    folder = tmp_path / "gateway" / "chat:ann"
    (folder / "private").mkdir(parents=True)
    for name in ("../secret.txt", "large.bin", ".env", "private/plan.txt"):
        (folder / name).write_text("x" * (11 if name == "large.bin" else 1), encoding="utf-8")
    (folder / "link").symlink_to(tmp_path / "gateway" / "secret.txt")
    (folder / "empty.txt").touch()
    chat, settings = MemoryPlatform("chat"), program(tmp_path, answer_within=0.01)
    async with gateway.serve(settings, platforms=[chat]) as opened:
        await receive(chat, "1")
        await gateways.wait_settled(opened.db, "1", platform="chat")
        await gateways.wait_sent(opened.db)
        assert await read_files(chat.sent) == []
    assert refusal in str(model.requests[1].messages[-1].content)
    assert gateways.texts(chat.sent)[-1] == "Sorry."
