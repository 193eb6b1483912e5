"""The e-mail platform: receives the unread mail of a folder, and sends replies.

A mail is marked as read after it is stored. After a crash in between, it is received again and recognised by its sender
and id. A reply has the same id in each attempt, because SMTP servers do not recognise repeated mail.
"""

from __future__ import annotations

import asyncio
import imaplib
import logging
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiosmtplib
import msgspec

from holdfast import errors
from holdfast.gateway import platform
from holdfast.gateway.platforms import email
from holdfast.gateway.platforms.email import imap_mailbox, inbound_mail, mail_text, outbound_mail, sender_checks

logger = logging.getLogger("holdfast.gateway")

LIMIT = 100_000
SMTP_SECONDS = platform.SEND_SECONDS + 5
SEEN, FLAGGED = b"\\Seen", b"\\Flagged"
_WRONG_CREDENTIALS = frozenset({530, 534, 535, 538})
"""Replies of SMTP servers that are temporary, because the operator corrects the password."""


class EmailPlatform:
    """A mailbox of the agent."""

    limit = LIMIT

    def __init__(self, name: str, wanted: email.EmailSettings, password: str) -> None:
        self.name, self._settings, self._password = name, wanted, password
        own = frozenset(each.lower() for each in (wanted.address, *wanted.aliases))
        self._mailbox = inbound_mail.Mailbox(name, wanted.address, own, wanted.trusted_authserv)
        self._ready, self._tls = asyncio.Event(), ssl.create_default_context()

    async def wait_ready(self) -> None:
        await self._ready.wait()

    async def check_access(self) -> platform.AccessReport:
        problems = list[platform.AccessProblem]()
        try:
            async with imap_mailbox.open_mailbox(self._settings, self._password, self._tls):
                pass
        except (imaplib.IMAP4.error, OSError) as error:
            remedy = "Check `imap_host`, the port, the password and `folder`, and that IMAP is enabled for the mailbox."
            problems.append(platform.AccessProblem(f"IMAP failed: {_describe(error)}.", remedy))
        try:
            async with aiosmtplib.SMTP(**self._smtp_options | {"timeout": imap_mailbox.CONNECT_SECONDS}):
                pass
        except (aiosmtplib.SMTPException, OSError) as error:
            remedy = "Check `smtp_host`, the port and the password."
            problems.append(platform.AccessProblem(f"SMTP failed: {_describe(error)}.", remedy))
        return platform.AccessReport("" if problems else self._settings.address, problems)

    @property
    def _smtp_options(self) -> dict[str, Any]:
        wanted = self._settings
        return {
            "hostname": wanted.smtp_host,
            "port": wanted.smtp_port,
            "username": wanted.username or wanted.address,
            "password": self._password,
            "local_hostname": wanted.address.partition("@")[2],
            "timeout": SMTP_SECONDS,
            "use_tls": wanted.smtp_security == "tls",
            "start_tls": wanted.smtp_security == "starttls",
            "tls_context": self._tls,
        }

    async def run(self, handler: platform.Handler) -> None:
        done = set[int]()
        """Mails of this connection, which a server that does not keep flags would return again."""
        async with imap_mailbox.open_mailbox(self._settings, self._password, self._tls) as opened:
            while True:
                while found := [uid for uid in await opened.unseen() if uid not in done]:
                    for uid in found:
                        await self._receive(handler, opened, uid)
                        done.add(uid)
                self._ready.set()
                await opened.wait(self._settings.poll_seconds)

    async def _receive(self, handler: platform.Handler, opened: imap_mailbox.ImapMailbox, uid: int) -> None:
        """Pass a mail to the gateway. If that raises an error, the mail stays unread and is received again."""
        flags, limit = [SEEN], self._settings.max_mail_kilobytes
        headers, size = await opened.fetch_headers(uid)

        async def complete() -> platform.Incoming:
            try:
                if size > limit * 1_000:
                    raise mail_text.UnreadableMail(f"it has {size // 1_000:,} kilobytes, and the limit is {limit:,}")
                return await asyncio.to_thread(envelope.with_body, await opened.fetch(uid))
            except (mail_text.UnreadableMail, sender_checks.IgnoredMail) as reason:
                return envelope.with_text(inbound_mail.NOT_READ.format(why=reason))
            except (imaplib.IMAP4.error, OSError):
                raise
            except Exception:
                # The border to text of others: the standard library raises many errors for malformed mail.
                logger.exception("%s cannot read mail %d, which is marked as read and flagged", self.name, uid)
                flags.append(FLAGGED)
                return envelope.with_text(inbound_mail.NOT_READ.format(why="it is malformed"))

        try:
            envelope = await asyncio.to_thread(inbound_mail.read_headers, headers, self._mailbox)
        except sender_checks.IgnoredMail as reason:
            logger.info("%s does not answer mail %d: %s", self.name, uid, reason)
        except Exception:
            logger.exception("%s cannot read mail %d, which is marked as read and flagged", self.name, uid)
            flags.append(FLAGGED)
        else:
            await handler.receive(msgspec.structs.replace(envelope.incoming, complete=complete))
        await opened.add_flags(uid, *flags)

    def render(self, text: str) -> str:
        """Return Markdown as it is: a mail has it as plain text, and converted to HTML."""
        return text

    def measure(self, text: str) -> int:
        return len(text)

    async def send(self, delivery: platform.Delivery) -> str:
        wanted, contents = self._settings, [await each.read() for each in delivery.files]
        mail = await asyncio.to_thread(outbound_mail.build, delivery, wanted.address, contents)
        with _translate_errors():
            refused, _ = await aiosmtplib.send(
                mail.as_bytes(),  # The library would write it with another policy.
                sender=wanted.address,
                recipients=outbound_mail.recipients(delivery),
                **self._smtp_options,
            )
        for recipient, (code, text) in refused.items():
            reason = f"{code} {errors.quote(text)}"
            logger.warning("%s: the server refused %s as a recipient: %s", self.name, errors.quote(recipient), reason)
        return str(mail["Message-ID"])


def _describe(error: Exception) -> str:
    """Return the text of an error of the libraries, as the server wrote it."""
    if isinstance(error, aiosmtplib.SMTPResponseException):
        return f"{error.code} {errors.quote(error.message)}"
    text = re.sub(r"^b(['\"])(.*)\1$", r"\2", str(error))  # The IMAP library formats bytes.
    return platform.describe_failure(error, errors.quote(text))


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise SendRefused or SendFailed for errors of the library."""
    try:
        yield
    except aiosmtplib.SMTPRecipientsRefused as error:
        worst = min(error.recipients, key=lambda each: each.code)
        raise _sending_error(worst) from None
    except aiosmtplib.SMTPResponseException as error:
        raise _sending_error(error) from None
    except (aiosmtplib.SMTPException, OSError, TimeoutError) as error:
        raise errors.SendFailed(f"The mail server could not be used: {type(error).__name__}.") from error


def _sending_error(error: aiosmtplib.SMTPResponseException) -> errors.HoldfastError:
    text = f"The mail server answered: {error.code} {errors.quote(error.message)}"
    is_about_mail = not isinstance(error, aiosmtplib.SMTPConnectError | aiosmtplib.SMTPHeloError)
    is_quota = "5.4.5" in error.message.split()  # The daily limit of Gmail.
    if error.code >= 500 and is_about_mail and not is_quota and error.code not in _WRONG_CREDENTIALS:
        return errors.SendRefused(text)
    return errors.SendFailed(text)
