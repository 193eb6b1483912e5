"""`holdfast gateway people`: list the senders of the settings and the store."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from holdfast import config, safe_text
from holdfast.app import open_store
from holdfast.cli import console, lazy_group
from holdfast.gateway import settings as gateway
from holdfast.store import db as store


def check_platform(_context: click.Context, _option: click.Parameter, platform: str | None) -> str | None:
    if platform is not None and not gateway.PLATFORM.fullmatch(platform):
        raise click.BadParameter("the name of a platform must be lower-case letters, digits and hyphens.")
    return platform


@click.command()
@click.option("--platform", metavar="NAME", callback=check_platform, help="Only list senders of this platform.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def people(out: console.Console, platform: str | None, path: str | None, as_json: bool) -> None:
    """List allowed and denied senders, including those of the settings."""
    with open_store.open_existing(path or out.settings.database) as db:
        found = list_senders(db, out.settings, platform)
    if as_json:
        out.json({"people": found})
        return
    columns = ("platform", "sender", "role", "name", "by")
    out.table([[safe_text.safe(each[name]) for name in columns] for each in found], columns)
    if not found:
        out.note("No senders. A stranger who writes to the agent receives a code for `holdfast gateway pair`.")


def list_senders(db: store.SessionDB, settings: config.Settings, platform: str | None = None) -> list[dict[str, Any]]:
    """Return the senders of the settings, then those of the store, with their roles."""
    wanted = settings.gateway
    lists = (("user", wanted.allow), ("admin", wanted.admins), ("denied", wanted.deny))
    found: list[dict[str, Any]] = [
        {"platform": where, "sender": str(sender), "role": role, "name": "", "by": "settings", "at": None}
        for role, listed in lists
        for where, senders in listed.items()
        for sender in senders
        if platform in (None, where)
    ]
    return [*found, *msgspec.to_builtins(db.contacts.all(platform))]
