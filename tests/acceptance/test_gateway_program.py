"""The gateway program on both databases: it answers by socket and HTTP, and stops."""

from __future__ import annotations

import json
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from holdfast import content_parts
from holdfast.store.db import SessionDB
from tests.support import backends, cli_process, gateway_process

SETTINGS = "[gateway.http]\nport = {port}\nenabled = true\n[gateway.loopback]\nsocket = '../s.sock'\n"
RULES: Any = {"role": "system", "content": "Be brief."}
TITLE: Any = {"role": "user", "content": "### Task:\nGenerate a title.\n<chat_history>\nUSER: Hello\n</chat_history>"}


@pytest.mark.parametrize("backend", backends.SHARED, ids=lambda backend: backend.name)
def test_gateway_answers_by_socket_and_http_and_stops_on_signal(backend: backends.Backend, tmp_path: Path) -> None:
    target = backend.target(tmp_path, "store")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    (tmp_path / "data").mkdir(0o700)
    (tmp_path / "data" / "config.toml").write_text(SETTINGS.format(port=address.rpartition(":")[2]), "utf-8")
    with gateway_process.start(tmp_path, "--db", target) as gate:
        assert "offline model" in gate.ask("Hello", chat="ann", sender="ann")
        with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
            said = client.chat.completions.create(model="holdfast", messages=[{"role": "user", "content": "Hello"}])
            assert "offline model" in (said.choices[0].message.content or "")
            chat: list[Any] = [{"role": "user", "content": "Hello"}, said.choices[0].message.model_dump()]
            for text in ("One", "Two"):
                chat.append({"role": "user", "content": text})
                answered = client.chat.completions.create(model="holdfast", messages=[RULES, *chat], user=text)
                chat.append({"role": "assistant", "content": answered.choices[0].message.content})
            assert client.chat.completions.create(model="holdfast", messages=[TITLE]).choices[0].message.content
        with urllib.request.urlopen(f"{address}/health", timeout=cli_process.PATIENCE) as answer:
            assert json.load(answer)["store"]
        assert gate.stop(signal.SIGTERM)[0] == 0
    with SessionDB(target) as db:
        owners = {db.conversation(each.id).owner: each.id for each in db.list_sessions()}
        assert set(owners) == {"loopback:ann", "http:local"}
        stored = [content_parts.text(each.content) for each in db.transcript(owners["http:local"])]
        assert stored == [each["content"] for each in chat]
        assert set(db.mail.counts().values()) == {0}
        assert db.mail.chat_leases() == []
        assert db.admin.fsck().ok
