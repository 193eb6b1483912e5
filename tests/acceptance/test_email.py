"""The e-mail platform with a real Dovecot: IDLE, flags, STARTTLS and restarts of the server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import AsyncSessionDB
from holdfast.gateway.platforms.email import inbound_mail
from tests.acceptance import dovecot
from tests.support import gateways, tls
from tests.support.email_server import MailServer, write
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


async def test_mail_is_received_by_idle_and_after_a_restart(server: dovecot.Dovecot, db: AsyncSessionDB) -> None:
    imap = {"imap_host": "localhost", "imap_port": server.port, "imap_security": "starttls"}
    server.deliver(first := write("One", Subject="Boats"))
    async with (
        MailServer().run() as outgoing,
        gateways.open_gateway(db, echo_model(), platforms=[outgoing.platform(**imap, poll_seconds=20)]) as (opened, _),
    ):
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
