"""One conversation at once from Matrix, the OpenAI SDK, an ACP client and the terminal, with processes killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Self

import openai
import pytest

from holdfast import AsyncSessionDB, SessionDB, content_parts, types
from tests.acceptance.acpx import Client
from tests.acceptance.installation import Installed
from tests.acceptance.tmux import Terminal
from tests.support import cli_process, compaction, matrix_server, polling, provider_process
from tests.support.matrix_server import Person

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")

ROUNDS, KILLS, TALK = 6, 2, "talk"
HALF, LIVE, RECALLED = "Half of a reply", ">", r"\[\d+ user\]"
SETTINGS = """\
[memory]
review = false
[models."{model}"]
window = 1000000
[gateway]
busy = "queue"
[gateway.limits]
minute = 500
[gateway.http]
enabled = true
port = {port}
[gateway.matrix]
homeserver = "{homeserver}"
token_env = "MATRIX_TOKEN"
invites = ["*:test"]
[gateway.allow]
matrix = ["{sender}"]
"""


class Gateway:
    """The gateway program, which is killed and started again."""

    def __init__(self, home: Path, env: dict[str, str]) -> None:
        self._home, self._env = home, env

    def start(self) -> None:
        with open(self._home / "gateway.log", "ab") as log:
            self.process = cli_process.start(self._home, "gateway", env=self._env, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        self.start()
        return self

    def kill(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    __exit__ = kill


class Conversation:
    """The log of the conversation, as another process reads it."""

    def __init__(self, db: AsyncSessionDB, after: int) -> None:
        self._db, self.after = db, after

    async def messages(self) -> list[types.Message]:
        return await self._db.transcript(TALK, self.after)

    async def said(self) -> list[str]:
        """Return the texts of the users."""
        return [content_parts.text(each.content) for each in await self.messages() if each.role == "user"]

    async def wait_answered(self, text: str) -> None:
        """Wait until a message and, right after it, its reply are stored."""

        async def is_answered() -> bool:
            found = await self.messages()
            pairs = itertools.pairwise(found)
            return any(content_parts.text(one.content) == text and two.role == "assistant" for one, two in pairs)

        await polling.until_async(is_answered, f"the reply to {text!r}", cli_process.PATIENCE)

    async def wait_count(self, count: int) -> None:
        """Wait until this many messages of users are stored."""

        async def is_reached() -> bool:
            return len(await self.said()) >= count

        await polling.until_async(is_reached, f"{count} messages", cli_process.PATIENCE)


async def talk_on_matrix(ann: Person, room: str, restarted: asyncio.Event) -> None:
    for number in range(ROUNDS):
        if number == ROUNDS - 1:
            await restarted.wait()
        await ann.send(room, f"Matrix {number}")


async def talk_by_http(port: int) -> list[str | None]:
    """Send requests; one whose connection breaks is repeated with its key, and so is stored once."""
    replies: list[str | None] = []
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client:
        while len(replies) < ROUNDS:
            number = len(replies)
            try:
                answer = await client.chat.completions.create(
                    model="holdfast",
                    messages=[{"role": "user", "content": f"HTTP {number}"}],
                    extra_headers={"X-Conversation-Id": TALK, "Idempotency-Key": f"http-{number}"},
                    timeout=cli_process.PATIENCE,
                )
            except (openai.APIConnectionError, openai.InternalServerError):
                await asyncio.sleep(0.05)
            else:
                replies.append(answer.choices[0].message.content)
    return replies


def prompt(client: Client, text: str) -> str:
    """Send a prompt by acpx; again if acpx did not wait long enough for its own background process to start."""
    while True:
        process = client.start("prompt", text)
        out, err = process.communicate(timeout=cli_process.PATIENCE)
        if process.returncode == 0:
            return out
        assert "queue owner failed to start" in err, (out, err)


async def talk_in_the_editor(client: Client) -> None:
    for number in range(ROUNDS):
        assert "[done] end_turn" in await asyncio.to_thread(prompt, client, f"Editor {number}")
        if number == ROUNDS // 2:
            os.kill(await asyncio.to_thread(client.agent), signal.SIGKILL)


async def talk_in_the_terminal(terminal: Terminal, conversation: Conversation, restarted: asyncio.Event) -> int:
    """Kill the chat during its third turn; return how many messages were stored when it was ready again."""
    for number in range(ROUNDS):
        terminal.type(f"Terminal {number}")
        if number == 2:
            await asyncio.to_thread(terminal.wait_for, HALF)
            await asyncio.to_thread(terminal.kill_program)
            terminal.type(f"HOLDFAST_MODEL=offline holdfast -r {TALK}")
            await asyncio.to_thread(terminal.wait_for, last=">")
            stored = len(await conversation.said())
            restarted.set()
        else:
            await conversation.wait_answered(f"Terminal {number}")
        if number == ROUNDS // 2:
            terminal.type("/compact")
    return stored


def find_messages(mark: str, output: str) -> list[str]:
    """Return the messages of users in the output of a client, where each is a line that begins with a mark."""
    return re.findall(rf"^{mark} (.*?) *$", output, re.MULTILINE)


async def kill_gateways(gateway: Gateway, conversation: Conversation) -> None:
    for number in range(1, KILLS + 1):
        await conversation.wait_count(number * 4 * ROUNDS // (KILLS + 2))
        gateway.kill()
        gateway.start()


async def test_four_clients_share_one_conversation_while_processes_are_killed(
    terminal: Terminal, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    data = tmp_path / "data"
    data.mkdir(0o700)
    noted, half = provider_process.reply("Noted."), provider_process.hanging_reply(HALF)
    with (
        matrix_server.run(tmp_path_factory.mktemp("synapse")) as server,
        provider_process.serve(noted) as provider,
        provider_process.serve(noted, noted, half) as terminal_provider,
    ):
        bot = server.register("bot")
        async with matrix_server.person(server, bot) as ann, AsyncSessionDB(SessionDB(data / "holdfast.db")) as db:
            places = {"port": port, "homeserver": server.url, "sender": ann.user_id}
            (data / "config.toml").write_text(SETTINGS.format(model=provider_process.MODEL, **places), "utf-8")
            await compaction.fill(db, 200)
            conversation = Conversation(db, (await db.head(TALK)).last_seq)
            with Gateway(tmp_path, {**provider.env, "MATRIX_TOKEN": bot.token}) as gateway:
                # Open the conversation in all four places.
                program = Installed(Path(), Path(sys.executable).parent)
                terminal.open_shell(program, tmp_path, 120, 50, HOLDFAST_HOME=str(data), **terminal_provider.env)
                terminal.type(f"clear; holdfast -r {TALK}")
                terminal.wait_for(last=">")
                terminal.type("/link")
                (code,) = re.findall(r"/link ([A-Z0-9]{8})\b", terminal.wait_for("conversations.", last=">"))
                room = await ann.open_room()
                await ann.send(room, f"/link {code}")
                await ann.replies(room, 1)
                assert cli_process.run(tmp_path, "gateway", "link", "http", "local").code == 0
                client, restarted = Client(tmp_path, provider.env), asyncio.Event()
                await asyncio.to_thread(client.run, "sessions", "new", "--resume-session", TALK)
                try:
                    *_, stored, by_http = await asyncio.gather(
                        talk_on_matrix(ann, room, restarted),
                        talk_in_the_editor(client),
                        kill_gateways(gateway, conversation),
                        talk_in_the_terminal(terminal, conversation, restarted),
                        talk_by_http(port),
                    )
                    await conversation.wait_count(4 * ROUNDS)
                    recall = f"/recall {conversation.after + 1}-{conversation.after + 50}"
                    in_acpx = await asyncio.to_thread(prompt, client, recall)
                finally:
                    await asyncio.to_thread(client.run, "sessions", "close")

                # Replies go where the message came from, and all other chats see it.
                surfaces = ("Matrix", "HTTP", "Editor", "Terminal")
                said = {name: [f"{name} {number}" for number in range(ROUNDS)] for name in surfaces}
                expected = [f"You elsewhere: {each}" for name in ("Editor", "Terminal") for each in said[name]]
                expected += [f"You on http: {each}" for each in said["HTTP"]]
                await polling.until_async(lambda: is_idle(db), "an empty queue", cli_process.PATIENCE)
                # The replies to /link and Matrix, and copies of the other messages with all replies but one.
                replies = 1 + ROUNDS + len(expected) - 1
                await ann.wait_for(lambda: len(ann.texts(room)) >= replies + len(expected))
            # The terminal shows the messages after its restart live, and recalls all, as acpx does.
            log = await conversation.said()
            terminal.type(recall)
            await polling.until_async(
                lambda: (
                    find_messages(RECALLED, terminal.scrollback()) == log
                    and set(log[stored:]) <= set(find_messages(LIVE, terminal.scrollback()))
                ),
                "the terminal showing every message",
                cli_process.PATIENCE,
            )
            assert find_messages(RECALLED, in_acpx) == log
            # The model received, with each message, all earlier ones; consecutive messages of users are joined.
            requests = [
                [text for each in asked.json["messages"] for text in each["content"].split("\n\n") if text in log]
                for asked in provider.asked
            ]
            assert all(each == log[: len(each)] for each in requests)
            assert len({each[-1] for each in requests} & set(said["HTTP"])) >= ROUNDS - KILLS
            found = ann.texts(room)
            assert sorted(each for each in found if each.startswith("You ")) == sorted(expected)
            assert len(found) == replies + len(expected)
            assert all(by_http)

            # One conversation, in which every message is stored once, and answered once unless its client was killed.
            (head,) = await db.list_sessions()
            messages = await conversation.messages()
            assert sorted(log) == sorted(itertools.chain(*said.values()))
            assert [each.role for each in messages].count("assistant") == 4 * ROUNDS - 1
            reasons = [each.end_reason for each in await db.sessions(TALK)]
            assert (head.conversation_id, reasons) == (TALK, ["compression", None])
            assert (await db.admin.fsck()).ok


async def is_idle(db: AsyncSessionDB) -> bool:
    facts = await db.mail.counts()
    return not facts["arrivals_open"] and not facts["outgoing_open"]
