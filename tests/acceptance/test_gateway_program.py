"""The gateway program on both databases: it answers by socket and HTTP, and stops."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import pytest

from holdfast import content_parts
from holdfast.store.db import SessionDB
from tests.support import backends, cli_process, polling

both = pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)

SETTINGS = (
    "[gateway.http]\nport = 0\nenabled = true\n[gateway.loopback]\nsocket = 's.sock'\n[gateway.limits]\nminute = 500\n"
)
RULES: Any = {"role": "system", "content": "Be brief."}
TITLE: Any = {"role": "user", "content": "### Task:\nGenerate a title.\n<chat_history>\nUSER: Hello\n</chat_history>"}


class Gateway:
    """A gateway process with its own home directory, and a client of its socket."""

    def __init__(self, home: Path, process: subprocess.Popen[str], address: str) -> None:
        self.home, self.process, self.address = home, process, address
        self.heard: list[dict[str, Any]] = []
        self._talking = socket.socket(socket.AF_UNIX)
        self._talking.connect(str(home / "data" / "s.sock"))
        self._hearing = threading.Thread(target=self._hear)
        self._hearing.start()

    def _hear(self) -> None:
        # A killed gateway may leave an incomplete line.
        with self._talking.makefile("rb") as lines, suppress(ConnectionError):
            self.heard.extend(json.loads(line) for line in lines if line.endswith(b"\n"))

    def say(self, key: str, text: str) -> None:
        chat = key.partition("-")[0]
        line = json.dumps({"text": text, "key": key, "chat": chat, "sender": chat}).encode()
        self._talking.sendall(line + b"\n")

    @property
    def replies(self) -> list[dict[str, Any]]:
        return [each for each in list(self.heard) if each["type"] == "reply"]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._hearing.join(cli_process.PATIENCE)
        self._talking.close()


@contextmanager
def running(home: Path, target: str) -> Iterator[Gateway]:
    (home / "data").mkdir(0o700, parents=True)
    (home / "data" / "config.toml").write_text(SETTINGS, "utf-8")
    with subprocess.Popen(
        [*cli_process.PROGRAM, "gateway", "--db", target],
        cwd=home,
        env=cli_process.environment(home, {"HOLDFAST_MODEL": "offline"}),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as process:
        address = ""
        assert process.stderr is not None
        for line in process.stderr:
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            address = found[0] if found else address
            if "the gateway is ready" in line:
                break
        try:
            polling.until((home / "data" / "s.sock").exists)
            opened = Gateway(home, process, address)
            try:
                yield opened
            finally:
                opened.end()
        finally:
            process.kill()


@both
def test_gateway_answers_by_socket_and_http_and_stops_on_signal(backend: backends.Backend, tmp_path: Path) -> None:
    target = backend.target(tmp_path, "store")
    with running(tmp_path / "one", target) as gate:
        gate.say("ann-1", "Hello")
        polling.until(lambda: gate.replies)
        assert gate.replies[0]["chat"] == "ann"
        with openai.OpenAI(base_url=f"{gate.address}/v1", api_key="none", max_retries=0) as client:
            said = client.chat.completions.create(model="holdfast", messages=[{"role": "user", "content": "Hello"}])
            assert "offline model" in (said.choices[0].message.content or "")
            chat: list[Any] = [{"role": "user", "content": "Hello"}, said.choices[0].message.model_dump()]
            for text in ("One", "Two"):
                chat.append({"role": "user", "content": text})
                answered = client.chat.completions.create(model="holdfast", messages=[RULES, *chat], user=text)
                chat.append({"role": "assistant", "content": answered.choices[0].message.content})
            assert client.chat.completions.create(model="holdfast", messages=[TITLE]).choices[0].message.content
        with urllib.request.urlopen(f"{gate.address}/health", timeout=cli_process.PATIENCE) as answer:
            assert json.load(answer)["store"]
        gate.process.send_signal(signal.SIGTERM)
        assert gate.process.wait(cli_process.PATIENCE) == 0
    with SessionDB(target) as db:
        assert {each.owner for each in map(db.conversation, (each.id for each in db.list_sessions()))} == {
            "loopback:ann",
            "http:local",
        }
        (by_http,) = (each.id for each in db.list_sessions() if db.conversation(each.id).owner == "http:local")
        assert [content_parts.text(each.content) for each in db.transcript(by_http)] == [
            each["content"] for each in chat
        ]
        assert set(db.mail.counts().values()) == {0}
        assert db.mail.chat_leases() == []
        assert db.admin.fsck().ok
