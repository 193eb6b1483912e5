"""The e-mail platform with a real Dovecot: IDLE, flags, STARTTLS, restarts of the server and a killed gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import AsyncSessionDB
from holdfast.gateway.platforms.email import inbound_mail
from tests.acceptance import dovecot
from tests.support import cli_process, gateways, tls
from tests.support.email_server import PASSWORD, MailServer, write
from tests.support.platform_contract import echo_model
from tests.support.polling import until_async


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[dovecot.Dovecot]:
    with tempfile.TemporaryDirectory(prefix="dovecot") as name:
        folder = Path(name)
        authority = tls.Authority(folder)
        authority.write("localhost", folder / "cert.pem", folder / "key.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
        with dovecot.run(folder) as running:
            yield running


@pytest.fixture
async def outgoing() -> AsyncIterator[MailServer]:
    async with MailServer().run() as running:
        yield running


def settings(server: dovecot.Dovecot, **more: Any) -> dict[str, Any]:
    return {"imap_host": "localhost", "imap_port": server.port, "imap_security": "starttls", **more}


async def test_mail_is_received_by_idle_and_after_a_restart_of_the_server(
    server: dovecot.Dovecot, outgoing: MailServer, db: AsyncSessionDB
) -> None:
    chat = outgoing.platform(**settings(server, poll_seconds=20))
    server.deliver(first := write("One", Subject="Boats"))
    async with gateways.open_gateway(db, echo_model(), platforms=[chat]) as (opened, _):
        await until_async(lambda: len(outgoing.sent) == 1)
        server.deliver(write("Two", answers=outgoing.sent[0]))
        await until_async(lambda: len(outgoing.sent) == 2)
        server.stop()
        server.deliver(write("Three", answers=outgoing.sent[1]))
        server.deliver(first)  # The same mail again, in another file.
        server.start()
        await until_async(lambda: server.seen() == 4)
        await gateways.wait_idle(opened, db)
    assert [each.replace("\r", "") for each in outgoing.texts()] == ["re Subject: Boats\n\nOne", "re Two", "re Three"]
    route = f"agent:main:email:dm:ann%40example.org:{inbound_mail.digest(first['Message-ID'])}"
    conversation = (await db.route(route)).conversation_id
    assert conversation is not None
    assert len(await db.transcript(conversation)) == 6


KILL = """
import os, signal
from holdfast import cli, fault_points
fault_points.hook = lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == "gateway.arrived" else None
cli.main()
"""


async def test_mail_of_a_killed_gateway_is_answered_once(
    server: dovecot.Dovecot, outgoing: MailServer, tmp_path: Path
) -> None:
    """The gateway is killed after a mail is stored and before it is marked as read."""
    table = "".join(f"{key} = {value!r}\n" for key, value in {**outgoing.settings(), **settings(server)}.items())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "config.toml").write_text(f"[gateway.allow]\nemail = ['*']\n[gateway.email]\n{table}")
    env = {**cli_process.OFFLINE, "PASSWORD": PASSWORD, "SSL_CERT_FILE": os.environ["SSL_CERT_FILE"]}
    server.deliver(write("One"))
    killed = await asyncio.to_thread(cli_process.run_code, tmp_path, KILL, "gateway", env=env)
    assert (killed.code, server.seen(), outgoing.sent) == (-signal.SIGKILL, 0, [])
    with cli_process.start(tmp_path, "gateway", env=env, stderr=subprocess.DEVNULL) as process:
        try:
            await until_async(lambda: outgoing.sent and server.seen() == 1)
            server.deliver(write("/status"))  # Answered after everything before it.
            await until_async(lambda: len(outgoing.sent) > 1 and server.seen() == 2)
        finally:
            process.kill()
    assert len({mail["In-Reply-To"] for mail in outgoing.sent}) == len(outgoing.sent) == 2
