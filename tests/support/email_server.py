"""A mail server on loopback: a mailbox over IMAP with IDLE, and SMTP that keeps the mail it accepts.

IMAP is limited to the commands that a client needs to receive mail; the tests in `acceptance` use Dovecot.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from email import message_from_bytes, policy, utils
from email.message import EmailMessage
from functools import partial
from typing import Any, cast

from aiosmtpd import smtp

from holdfast.gateway.platforms import plugins
from holdfast.gateway.platforms.email import email_platform

AGENT, ANN, BEN = "agent@holdfast.test", "ann@example.org", "ben@example.org"
PASSWORD, AUTHSERV = "secret-password-of-the-mailbox", "mx.holdfast.test"


def parse(raw: bytes) -> EmailMessage:
    return cast("EmailMessage", message_from_bytes(raw, policy=policy.default))


def text_of(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    return str(body.get_content()).strip()


def write(
    text: str, sender: str = ANN, to: str = AGENT, *, answers: EmailMessage | None = None, **headers: str
) -> EmailMessage:
    """Return a mail as the receiving server stores it. Headers are named with `_` for `-`; an empty one is left out."""
    mail = EmailMessage(policy=policy.SMTP)
    domain = sender.rpartition("@")[2].strip("<> ")
    known = {
        "Authentication-Results": f"{AUTHSERV}; dmarc=pass (p=REJECT) header.from={domain}",
        "From": sender,
        "To": to,
        "Message-ID": utils.make_msgid(domain="example.org"),
    }
    if answers is not None:
        known |= {"Subject": str(answers["Subject"] or ""), "In-Reply-To": str(answers["Message-ID"])}
        known["References"] = f"{answers.get('References', '')} {answers['Message-ID']}".strip()
    for name, value in {**known, **{key.replace("_", "-"): value for key, value in headers.items()}}.items():
        if value:
            mail[name] = value
    mail.set_content(text)
    return mail


class MailServer:
    """A server with one mailbox."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        """With `tls`, IMAP begins with TLS, and SMTP requires STARTTLS."""
        self.tls = tls
        self.mails: list[tuple[bytes, set[str]]] = []
        """The mails and their flags. The UID is the position, from 1."""
        self.sent: list[EmailMessage] = []
        self.recipients: list[list[str]] = []
        self.failures: list[str] = []
        """Replies to the next mails instead of accepting them; `lose` accepts a mail and closes the connection."""
        self.refused: dict[str, str] = {}
        """Recipients and the reply to them."""
        self.capabilities = "IMAP4rev1 IDLE"
        self.commands: list[str] = []
        self.lost_commands: list[str] = []
        """Beginnings of the next IMAP commands that close the connection instead of being executed."""
        self.imap_port = self.smtp_port = 0
        self._writers = set[asyncio.StreamWriter]()
        self.idle = set[asyncio.StreamWriter]()
        """The connections that wait for new mail."""

    def settings(self) -> dict[str, Any]:
        """Return the settings of the mailbox."""
        known = {"address": AGENT, "password_env": "PASSWORD", "trusted_authserv": AUTHSERV, "poll_seconds": 0.5}
        for name, port in (("imap", self.imap_port), ("smtp", self.smtp_port)):
            known |= {f"{name}_host": "127.0.0.1", f"{name}_port": port, f"{name}_security": "none"}
        return known

    def platform(self, **settings: Any) -> email_platform.EmailPlatform:
        """Return the platform as the gateway loads it from the settings."""
        (found,) = plugins.load({"email": {**self.settings(), **settings}}, {"PASSWORD": PASSWORD})
        assert isinstance(found, email_platform.EmailPlatform)
        return found

    @asynccontextmanager
    async def run(self) -> AsyncIterator[MailServer]:
        imap = await asyncio.start_server(self._serve_imap, "127.0.0.1", 0, ssl=self.tls)
        options: dict[str, Any] = {"hostname": "mail.test", "auth_require_tls": self.tls is not None}
        accept = partial(smtp.SMTP, self, tls_context=self.tls, authenticator=self._authenticate, **options)
        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
        self.imap_port, self.smtp_port = (each.sockets[0].getsockname()[1] for each in (imap, server))
        try:
            yield self
        finally:
            imap.close()
            server.close()
            self.disconnect()

    def deliver(self, mail: EmailMessage | bytes) -> int:
        """Put a mail into the mailbox, and return its UID."""
        self.mails.append((mail if isinstance(mail, bytes) else mail.as_bytes(), set()))
        self.announce()
        return len(self.mails)

    def announce(self) -> None:
        """Report the number of mails to the clients that wait."""
        for writer in self.idle:
            writer.write(b"* %d EXISTS\r\n" % len(self.mails))

    def flags(self, uid: int) -> set[str]:
        return self.mails[uid - 1][1]

    def is_read(self) -> bool:
        return all("\\Seen" in flags for _, flags in self.mails)

    def disconnect(self) -> None:
        """Close all IMAP connections."""
        for writer in self._writers:
            writer.close()

    def texts(self, recipient: str = ANN) -> list[str]:
        """Return the texts of the mails to a recipient."""
        return [text_of(mail) for mail in self.sent if mail["To"] == recipient]

    # --- SMTP: the hooks of aiosmtpd --------------------------------------------------------------------------

    def _authenticate(self, *args: Any) -> smtp.AuthResult:
        is_right = (args[-1].login, args[-1].password) == (AGENT.encode(), PASSWORD.encode())
        return smtp.AuthResult(success=is_right, handled=False)

    async def handle_RCPT(self, _: Any, __: Any, envelope: smtp.Envelope, address: str, ___: Any) -> str:  # noqa: N802
        if address in self.refused:
            return self.refused[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: smtp.SMTP, session: smtp.Session, envelope: smtp.Envelope) -> str:  # noqa: N802
        assert session.authenticated
        failure = self.failures.pop(0) if self.failures else ""
        if failure and failure != "lose":
            return failure
        assert isinstance(envelope.content, bytes)
        self.sent.append(parse(envelope.content))
        self.recipients.append(envelope.rcpt_tos)
        if failure:
            server.transport.abort()
        return "250 OK"

    # --- IMAP -------------------------------------------------------------------------------------------------

    async def _serve_imap(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        writer.write(b"* OK ready\r\n")
        reported, idle_tag = 0, ""
        with suppress(ConnectionError):
            while line := (await reader.readline()).decode():
                tag, _, command = line.strip().partition(" ")
                if tag == "DONE":  # Ends the command IDLE, whose tag was remembered.
                    self.idle.discard(writer)
                    tag, command = idle_tag, "NOOP"
                elif command == "IDLE":
                    idle_tag = tag
                    self.idle.add(writer)
                    writer.write(b"+ idling\r\n")
                    if reported != len(self.mails):
                        writer.write(b"* %d EXISTS\r\n" % len(self.mails))
                    continue
                reported = len(self.mails) if command == "UID SEARCH UNSEEN" else reported
                if self.lost_commands and command.startswith(self.lost_commands[0]):
                    del self.lost_commands[0]
                    break
                self.commands.append(command.partition(" ")[0] if command.startswith("LOGIN") else command)
                is_wrong = command.startswith("LOGIN") and PASSWORD not in command
                status = "NO [AUTHENTICATIONFAILED] Wrong password" if is_wrong else "OK done"
                writer.write(self._answer(command) + f"{tag} {status}\r\n".encode())
                await writer.drain()
        self.idle.discard(writer)
        self._writers.discard(writer)
        writer.close()

    def _answer(self, command: str) -> bytes:
        if command == "CAPABILITY":
            return f"* CAPABILITY {self.capabilities}\r\n".encode()
        if command.startswith("SELECT"):
            return b"* %d EXISTS\r\n* OK [PERMANENTFLAGS (\\Seen \\Flagged)] kept\r\n" % len(self.mails)
        if command == "UID SEARCH UNSEEN":
            unseen = [uid for uid, (_, flags) in enumerate(self.mails, 1) if "\\Seen" not in flags]
            return f"* SEARCH {' '.join(map(str, unseen))}\r\n".encode()
        if found := re.fullmatch(r"UID STORE (\d+) \+FLAGS.SILENT \((.*)\)", command):
            self.flags(int(found[1])).update(found[2].split())
        elif found := re.fullmatch(r"UID FETCH (\d+) \((.*)\)", command):
            raw, flags = self.mails[int(found[1]) - 1]
            if "BODY[" in found[2]:  # Without PEEK, reading a mail marks it.
                flags.add("\\Seen")
            section = found[2].split()[-1].replace(".PEEK", "")
            content = raw if section == "BODY[]" else raw.partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            head = f"* {found[1]} FETCH (UID {found[1]} RFC822.SIZE {len(raw)} {section} {{{len(content)}}}\r\n"
            return head.encode() + content + b")\r\n"
        return b""
