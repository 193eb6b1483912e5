"""Convert a mail to an inbound message. Pure.

A thread is a chat. The ids of own mails contain the id of the thread, so a reply to one of them belongs to the thread,
whichever other ids the mail client repeats. Threads of different senders are different chats, so no id that a sender
writes leads to the conversation of another.
"""

from __future__ import annotations

import re
from email import parser, policy
from email.message import EmailMessage
from hashlib import blake2b
from typing import Any, NamedTuple, cast

import msgspec

from holdfast.agent import commands
from holdfast.gateway import platform
from holdfast.gateway.platforms.email import mail_text, sender_checks
from holdfast.model import surrogates
from holdfast.store import titles

ADDRESS = sender_checks.ADDRESS
MAX_HEADER_BYTES = 100_000
MAX_REFERENCES, MAX_SUBJECT, MAX_OTHERS = 20, 200, 20
"""The most ids, characters and further recipients that a reply repeats."""
NOT_READ = "[This mail was not read: {why}.]"
_ID = re.compile(r"<[!-;=?-~]{1,250}>")
_OWN_ID = re.compile(r"<holdfast\.([0-9a-f]{20})\.([0-9a-f]{8})?\.[0-9]+\.[0-9]+@(.+)>")
_POLICY = cast("policy.Policy[EmailMessage]", sender_checks.LimitedPolicy())
_REPLY_PREFIX = re.compile(r"((re|aw|sv|antw|fwd?|wg)(\[\d+\])?: *)+", re.IGNORECASE)


class Mailbox(NamedTuple):
    """The addresses of the agent and the checks of its mailbox."""

    name: str
    """The name of the platform."""
    address: str
    own: frozenset[str]
    """All addresses of the agent, in lower case."""
    authserv: str
    """The server whose authentication results are trusted; empty: senders are not checked."""


def digest(text: str) -> str:
    return blake2b(text.encode(errors="surrogateescape"), digest_size=10).hexdigest()


def message_id(thread: str, reader: str, number: int, at: float, address: str) -> str:
    """Return the id of an own mail. It is the same for each attempt to send the mail.

    The reader identifies the only recipient, and is empty for several: see `Envelope.has_history`.
    """
    return f"<holdfast.{thread}.{reader}.{number}.{at * 1e6:.0f}@{address.partition('@')[2]}>"


def reader_of(sender: str) -> str:
    return digest(sender)[:8]


class Envelope(NamedTuple):
    """A mail whose body was not read yet."""

    incoming: platform.Incoming
    subject: str
    is_reply: bool
    """Whether it replies to a mail of the agent."""
    has_history: bool
    """Whether its conversation contains what it quotes: it replies to a mail of the agent to its sender alone."""

    def with_text(self, text: str, files: tuple[platform.Attachment, ...] = ()) -> platform.Incoming:
        text = text if self.is_reply or not self.subject else f"Subject: {self.subject}\n\n{text}".strip()
        return msgspec.structs.replace(self.incoming, text=text, attachments=files, complete=None)

    def with_body(self, raw: bytes) -> platform.Incoming:
        """Return the message with the text and the files of the mail. Raises UnreadableMail or IgnoredMail."""
        text, files = mail_text.read_parts(mail_text.parse(raw, _POLICY))
        text = mail_text.strip_signature(mail_text.strip_history(text) if self.has_history else text)
        first = text.partition("\n")[0].strip()
        if commands.find(first) is None:
            return self.with_text(text, files)
        # Below a command, mail programs add signatures and quotations.
        return msgspec.structs.replace(self.incoming, text=first, attachments=files, complete=None)


def read_headers(headers: bytes, mailbox: Mailbox) -> Envelope:
    """Return the envelope of a mail. Raises IgnoredMail if it must not be answered."""
    if len(headers) > MAX_HEADER_BYTES:
        raise sender_checks.IgnoredMail("its headers are too large")
    message = parser.BytesHeaderParser(EmailMessage, policy=_POLICY).parsebytes(headers)
    sender, name = sender_checks.find_sender(message)
    if sender in mailbox.own:
        raise sender_checks.IgnoredMail("it is an own mail")
    sender_checks.check_personal(message, sender)
    if mailbox.authserv:
        sender_checks.check_authentic(message, sender, mailbox.authserv)
    to, others = _addresses(message, "to"), _addresses(message, "to", "cc") - mailbox.own - {sender}
    if others and not to & mailbox.own:
        raise sender_checks.IgnoredMail("the agent is not in its field `To`")
    own_id = next(iter(_ids(message, "message-id")), f"<{digest(headers.decode('latin-1'))}@>")
    earlier = list(dict.fromkeys(_ids(message, "references") + _ids(message, "in-reply-to")))
    thread, is_reply, reader = _find_thread(earlier, own_id, mailbox.address)
    subject = _REPLY_PREFIX.sub("", titles.normalize(surrogates.repair(str(message["subject"] or "")))).strip()
    address: dict[str, Any] = {"to": sender, "subject": subject[:MAX_SUBJECT], "thread": thread}
    address["references"] = [*earlier[:1], *earlier[1:][-MAX_REFERENCES:], own_id]
    if not others:
        address["reader"] = reader_of(sender)
    elif len(others) <= MAX_OTHERS:
        address["cc"] = sorted(others)
    incoming = platform.Incoming(
        platform=mailbox.name,
        key=f"{sender} {own_id}",
        kind="group" if others else "dm",
        chat=(thread,) if others else (sender, thread),
        sender=sender,
        name=surrogates.repair(name),
        text="",
        address=address,
    )
    return Envelope(incoming, subject, is_reply, has_history=not others and reader == reader_of(sender))


def _find_thread(earlier: list[str], own_id: str, address: str) -> tuple[str, bool, str]:
    """Return the id of the thread, whether the mail replies to one of the agent, and the reader of that one."""
    domain = address.partition("@")[2]
    for each in reversed(earlier):
        if (found := _OWN_ID.fullmatch(each)) and found[3].lower() == domain.lower():
            return found[1], True, found[2] or ""
    return digest([*earlier, own_id][0]), False, ""


def _ids(message: EmailMessage, name: str) -> list[str]:
    return [each for value in sender_checks.raw_values(message, name) for each in _ID.findall(value)]


def _addresses(message: EmailMessage, *names: str) -> set[str]:
    headers: list[Any] = [each for name in names for each in message.get_all(name) or []]
    found = (address.addr_spec.lower() for header in headers for address in header.addresses)
    return {each for each in found if ADDRESS.fullmatch(each)}
