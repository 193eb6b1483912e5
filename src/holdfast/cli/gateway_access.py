"""`holdfast gateway pair`, `allow`, `deny`, `link` and `people`: manage access to the agent."""

from __future__ import annotations

import getpass
from typing import Any

import click
import msgspec

from holdfast import config, errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, lazy_group
from holdfast.gateway import settings as gateway
from holdfast.store import db as store

LINKED = "uses the conversations of the terminal. The next message there begins a new one; /resume continues another."
UNLINKED = "has separate conversations again."
TERMINAL = "the terminal"


def _named(_context: click.Context, _option: click.Parameter, platform: str | None) -> str | None:
    if platform is not None and not gateway.PLATFORM.fullmatch(platform):
        raise click.BadParameter("the name of a platform must be lower-case letters, digits and hyphens.")
    return platform


def _id(_context: click.Context | None, _option: click.Parameter | None, sender: str) -> str:
    # A surplus space would silently allow a sender who does not exist.
    if not sender or sender != sender.strip() or not sender.isprintable() or sender == gateway.EVERYBODY:
        raise click.BadParameter("must be the id that the platform assigns, without spaces around it.")
    return sender


def _optional_id(context: click.Context, option: click.Parameter, sender: str | None) -> str | None:
    return None if sender is None else _id(context, option, sender)


@click.command()
@click.argument("code")
@click.option("--platform", metavar="NAME", callback=_named, help="Only accept a code of this platform.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def pair(out: console.Console, code: str, platform: str | None, path: str | None, as_json: bool) -> None:
    """Allow the sender who received a pairing CODE.

    A code is valid for one hour and can be used once. Five wrong codes lock pairing for an hour.
    """
    with open_store.open_existing(path or out.settings.database) as db:
        _report(out, db.contacts.pair(platform, code, by=_operator()), as_json)


@click.command()
@click.argument("platform", callback=_named)
@click.argument("sender", callback=_id)
@click.option("--admin", is_flag=True, help="Also allow the commands for admins.")
@click.option("--name", default="", help="The name in the list.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def allow(
    out: console.Console, platform: str, sender: str, admin: bool, name: str, path: str | None, as_json: bool
) -> None:
    """Allow a sender. SENDER is the id that the PLATFORM assigns, not a display name."""
    _refuse_denied(out.settings, platform, sender)
    # This may create the store.
    with store.SessionDB(path or out.settings.database) as db:
        _report(out, db.contacts.allow(platform, sender, "admin" if admin else "user", _operator(), name), as_json)


@click.command()
@click.argument("platform", callback=_named)
@click.argument("sender", callback=_id)
@click.option("--forget", is_flag=True, help="Delete the entry instead, so that the sender is a stranger again.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def deny(out: console.Console, platform: str, sender: str, forget: bool, path: str | None, as_json: bool) -> int:
    """Deny a sender access, whatever other lists say. Their conversations stay."""
    if not forget:
        with store.SessionDB(path or out.settings.database) as db:
            _report(out, db.contacts.deny(platform, sender, by=_operator()), as_json)
        return 0
    with open_store.open_existing(path or out.settings.database) as db:
        known = db.contacts.delete(platform, sender)
    if as_json:
        out.json({"forgotten": known})
    else:
        out.note("The entry was deleted." if known else "There is no entry for this sender.")
    return 0 if known else 1


@click.command()
@click.argument("platform", callback=_named, required=False)
@click.argument("sender", callback=_optional_id, required=False)
@click.option("--off", is_flag=True, help="Remove the link: the sender has separate conversations again.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def link(
    out: console.Console, platform: str | None, sender: str | None, off: bool, path: str | None, as_json: bool
) -> int:
    """Let a SENDER use the conversations and notes of the terminal, or list all links.

    SENDER is the id that the PLATFORM assigns; on `http` it is the name of the token, or `local`. In a chat, the person
    can do the same with /link. The link applies to direct chats, and grants neither the shell nor tools.
    """
    if platform is not None and sender is None:
        raise click.UsageError("Give a platform and a sender, or neither to list the links.")
    with store.SessionDB(path or out.settings.database) as db:
        if platform is None or sender is None:
            return _list_links(out, db.contacts.links(), as_json)
        if off:
            known = db.contacts.unlink(platform, sender)
        else:
            known = True
            db.contacts.link(platform, sender, "")
    if as_json:
        out.json({"platform": platform, "sender": sender, "linked": not off, "changed": known})
    elif known:
        out.print(safe_text.safe(f"{sender} on {platform} {UNLINKED if off else LINKED}"))
    else:
        out.note("There is no link of this sender.")
    return 0 if known else 1


def _list_links(out: console.Console, links: list[types.Link], as_json: bool) -> int:
    if as_json:
        out.json({"links": msgspec.to_builtins(links)})
        return 0
    rows = [(each.platform, each.sender, each.owner or TERMINAL) for each in links]
    out.table([[*map(safe_text.safe, row)] for row in rows], ("platform", "sender", "conversations of"))
    if not links:
        out.note("No links. In the chat or the terminal whose conversation you want to continue, enter /link.")
    return 0


@click.command()
@click.option("--platform", metavar="NAME", callback=_named, help="Only list senders of this platform.")
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


def _operator() -> str:
    """Return the user who runs this command, for the list."""
    try:
        return f"{getpass.getuser()}, here"
    except (KeyError, OSError):  # The user has no name.
        return "here"


def check_sender(settings: config.Settings, platform: str, sender: str) -> None:
    """Raise BadParameter for an invalid sender id, and SettingInvalid for a sender whom the settings deny."""
    _id(None, None, sender)
    _refuse_denied(settings, platform, sender)


def _refuse_denied(settings: config.Settings, platform: str, sender: str) -> None:
    if sender in map(str, settings.gateway.deny.get(platform, ())):
        raise errors.SettingInvalid(
            f"{settings.user_file} denies {errors.quote(sender)} ({platform}), which overrides this command. "
            f"Remove the sender from `gateway.deny` first."
        )


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


def _report(out: console.Console, person: types.Contact, as_json: bool) -> None:
    if as_json:
        out.json(msgspec.to_builtins(person))
        return
    called = f"{person.sender} ({person.name})" if person.name else person.sender
    now = {"user": "has access", "admin": "has access as an admin", "denied": "is denied access"}[person.role]
    out.print(safe_text.safe(f"{called} on {person.platform} {now}."))
