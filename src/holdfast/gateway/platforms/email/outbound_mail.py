"""Build the mail of an outbound message. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from email import policy, utils
from email.message import EmailMessage

from markdown_it import MarkdownIt

from holdfast import errors
from holdfast.gateway import platform
from holdfast.gateway.platforms.email import inbound_mail
from holdfast.store import titles

MAX_NEW_SUBJECT = 70
_IDS = frozenset({"message-id", "in-reply-to", "references"})
_MARKDOWN = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
_MARKDOWN.disable("image")  # Mail programs fetch images, so the address of one could disclose data to its server.


class _MailPolicy(policy.EmailPolicy):
    """Breaks headers with ids between the ids. The default policy encodes long ids, which Outlook does not read."""

    def fold(self, name: str, value: str) -> str:
        if name.lower() not in _IDS:
            return str(super().fold(name, value))
        return f"{name}: {f'{self.linesep} '.join(value.split())}{self.linesep}"

    def fold_binary(self, name: str, value: str) -> bytes:
        return self.fold(name, value).encode("ascii", "surrogateescape")


_POLICY = _MailPolicy(linesep="\r\n")


def recipients(delivery: platform.Delivery) -> list[str]:
    """Return the addresses that a message goes to. Raises SendRefused."""
    to = delivery.address.get("to") or delivery.address.get("chat")
    if not isinstance(to, str) or not inbound_mail.ADDRESS.fullmatch(to):
        raise errors.SendRefused(f"{errors.quote(to)} is not a mail address.")
    return [to, *delivery.address.get("cc", ())]


def build(delivery: platform.Delivery, address: str, contents: Sequence[bytes]) -> EmailMessage:
    """Return the mail of a message as plain text and HTML, with `contents` as its files. Raises SendRefused."""
    mail, given = EmailMessage(policy=_POLICY), delivery.address
    to, *copies = recipients(delivery)
    mail["From"], mail["To"] = address, to
    if copies:
        mail["Cc"] = ", ".join(copies)
    first_line = next(iter(delivery.text.strip().splitlines()), "")
    new_subject = titles.normalize(first_line).lstrip("#*> ")[:MAX_NEW_SUBJECT]
    mail["Subject"] = f"Re: {given['subject']}" if "subject" in given else new_subject or "Message"
    thread = given.get("thread") or inbound_mail.digest(f"{delivery.id}-{delivery.at}")
    reader = given.get("reader", "")
    mail["Message-ID"] = inbound_mail.message_id(thread, reader, delivery.id, delivery.at, address)
    mail["Date"] = utils.formatdate(delivery.at)
    if references := given.get("references"):
        mail["In-Reply-To"], mail["References"] = references[-1], " ".join(references)
    mail["Auto-Submitted"] = "auto-replied" if references else "auto-generated"
    mail.set_content(delivery.text + "\n", cte="quoted-printable")
    mail.add_alternative(_MARKDOWN.render(delivery.text), subtype="html", cte="quoted-printable")
    for file, content in zip(delivery.files, contents, strict=True):
        main, _, sub = file.media_type.partition("/")
        if main in ("message", "multipart") or not sub:
            main, sub = "application", "octet-stream"
        mail.add_attachment(content, maintype=main, subtype=sub, filename=file.name)
    return mail
