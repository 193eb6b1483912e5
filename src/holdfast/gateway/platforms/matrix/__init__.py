"""Matrix: rooms and threads of a homeserver, without end-to-end encryption. `create` needs the extra `matrix`."""

from __future__ import annotations

from importlib import util
from typing import Annotated
from urllib import parse

import msgspec

from holdfast import errors, installation
from holdfast.gateway import platform
from holdfast.gateway.platforms.http import requests


class MatrixSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The table `[gateway.matrix]`."""

    homeserver: str
    """The address of the homeserver's client API, such as `https://matrix.example.org`."""
    token_env: str
    """The environment variable with the access token of the bot's account."""
    invites: tuple[str, ...] = ()
    """Users whose invitations are accepted: `@ann:example.org`, `*:example.org` for a homeserver, or `*` for all."""
    draft_seconds: Annotated[float, msgspec.Meta(ge=0.01, le=60)] = 5.0
    """Seconds between two edits of a reply that is being written."""
    max_file_kilobytes: Annotated[int, msgspec.Meta(ge=1)] = 20_000
    """The largest file that is downloaded, in kilobytes."""


SETUP = platform.SetupGuide(
    [
        platform.SetupField("homeserver", "Homeserver", "The address of the client API: https://matrix.example.org"),
        platform.SetupField(
            "token_env",
            "Access token",
            "In Element, log in as the bot: All settings > Help & About > Access Token. Do not log out afterwards.",
            "MATRIX_TOKEN",
        ),
        platform.SetupField(
            "invites",
            "Users who may invite the bot",
            "Matrix ids such as @ann:example.org, separated by commas; *:example.org for a whole homeserver.",
            default="{sender}",
            is_list=True,
            required=False,
        ),
    ],
    intro="Create an account for the bot on your homeserver.",
    sender="Your Matrix id, such as @ann:example.org.",
    sender_pattern=r"@[^:\s]+:\S+",
    last_step="Accept the bot's invitation, or invite it to a room without encryption, and write to it.",
)


def create(context: platform.PlatformContext) -> platform.Platform:
    """Return the platform of a settings table. Raises SettingInvalid."""
    if util.find_spec("nio") is None:
        raise errors.SettingInvalid(f"Matrix is not installed. Run: {installation.install_command('matrix')}")
    from holdfast.gateway.platforms.matrix import matrix_platform  # noqa: PLC0415 -- an optional dependency

    settings = msgspec.convert(dict(context.settings), MatrixSettings)
    url = parse.urlsplit(settings.homeserver)
    if url.scheme != "https" and not (url.scheme == "http" and requests.is_loopback(url.hostname or "")):
        if url.scheme == "http" and url.hostname:
            raise errors.SettingInvalid("`homeserver` must use https, unless it is on this machine.")
        raise errors.SettingInvalid("`homeserver` must be a URL such as https://matrix.example.org.")
    return matrix_platform.MatrixPlatform(
        context.name,
        context.secrets[settings.token_env],
        homeserver=settings.homeserver.rstrip("/"),
        invites=settings.invites,
        draft_seconds=settings.draft_seconds,
        max_file_bytes=settings.max_file_kilobytes * 1_000,
    )
