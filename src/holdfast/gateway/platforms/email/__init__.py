"""E-mail: a mailbox over IMAP and SMTP; a thread is a conversation. `create` needs the extra `email`."""

from __future__ import annotations

from importlib import util
from typing import Annotated, Literal

import msgspec

from holdfast import errors, installation
from holdfast.gateway import platform, settings
from holdfast.gateway.platforms.http import requests

Security = Literal["tls", "starttls", "none"]


class EmailSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The table `[gateway.email]`."""

    address: str
    """The address of the agent, which replies come from."""
    password_env: str
    """The environment variable with the password of the mailbox, for IMAP and SMTP."""
    username: str = ""
    """The user name of the mailbox; by default the address."""
    aliases: tuple[str, ...] = ()
    """Further addresses whose mail arrives in the mailbox."""
    trusted_authserv: str = ""
    """The authserv-id of the receiving server: the first word of the `Authentication-Results` that it adds."""
    accept_forged_senders: bool = False
    """Whether every sender address is believed. Anyone can then write in the name of a person who has access."""
    imap_host: str
    imap_port: settings.Port = 993
    imap_security: Security = "tls"
    """TLS from the start, STARTTLS, or no encryption, which is possible on this machine only."""
    smtp_host: str
    smtp_port: settings.Port = 587
    smtp_security: Security = "starttls"
    folder: str = "INBOX"
    """The folder whose unread mail is received."""
    poll_seconds: Annotated[float, msgspec.Meta(gt=0, le=1_500)] = 30.0
    """The most seconds between two searches for new mail. Servers with IDLE report it earlier."""
    max_mail_kilobytes: settings.Count = 30_000
    """The largest mail that is received, in kilobytes, with its encoded files."""


SETUP = platform.SetupGuide(
    [
        platform.SetupField("address", "Address of the agent", "The address of the mailbox: agent@example.org."),
        platform.SetupField("imap_host", "IMAP server", "The server that receives mail, with TLS at port 993."),
        platform.SetupField("smtp_host", "SMTP server", "The server that sends mail, with STARTTLS at port 587."),
        platform.SetupField(
            "password_env",
            "Password",
            "The password of the mailbox. Providers with two-factor login need an app password.",
            "EMAIL_PASSWORD",
        ),
        platform.SetupField(
            "trusted_authserv",
            "Name of the receiving server",
            "Open the source of a mail in the mailbox: the name is the first word of its topmost header "
            "`Authentication-Results`. Leave it empty only if the settings have `accept_forged_senders`.",
            required=False,
        ),
    ],
    intro="Create a mailbox for the agent, which no one else reads. "
    "Mark existing mail as read first: the agent answers all unread mail.",
    sender="Your mail address in lower case.",
    sender_pattern=r"[^\sA-Z<>@]+@[^\sA-Z<>@]+",
    last_step="Write a mail to the agent.",
)


def create(context: platform.PlatformContext) -> platform.Platform:
    """Return the platform of a settings table. Raises SettingInvalid."""
    if any(util.find_spec(each) is None for each in ("imapclient", "aiosmtplib")):
        raise errors.SettingInvalid(f"E-mail is not installed. Run: {installation.install_command('email')}")
    from holdfast.gateway.platforms.email import email_platform, inbound_mail  # noqa: PLC0415 -- an optional dependency

    wanted = msgspec.convert(dict(context.settings), EmailSettings)
    if not all(inbound_mail.ADDRESS.fullmatch(each) for each in (wanted.address, *wanted.aliases)):
        raise errors.SettingInvalid("`address` and `aliases` must be mail addresses such as agent@example.org.")
    if bool(wanted.trusted_authserv) == wanted.accept_forged_senders:
        raise errors.SettingInvalid(
            "set `trusted_authserv` to the name that your mail server writes into `Authentication-Results`, or "
            "`accept_forged_senders = true` to believe every sender address."
        )
    for host, security in ((wanted.imap_host, wanted.imap_security), (wanted.smtp_host, wanted.smtp_security)):
        if security == "none" and not requests.is_loopback(host):
            raise errors.SettingInvalid(f"the connection to {host} must be encrypted: use `tls` or `starttls`.")
    return email_platform.EmailPlatform(context.name, wanted, context.secrets[wanted.password_env])
