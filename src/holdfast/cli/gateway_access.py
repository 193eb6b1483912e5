"""`holdfast gateway pair`, `allow`, `deny` and `people`: who may talk to the agent from outside."""

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


def _named(_context: click.Context, _option: click.Parameter, platform: str | None) -> str | None:
    if platform is not None and not gateway.PLATFORM.fullmatch(platform):
        raise click.BadParameter("a platform is named by small letters, digits and dashes.")
    return platform


def _id(_context: click.Context, _option: click.Parameter, sender: str) -> str:
    # What is typed with a space too many would be somebody else, and nobody would see why.
    if not sender or sender != sender.strip() or not sender.isprintable() or sender == gateway.EVERYBODY:
        raise click.BadParameter("it is the id their platform gives them, and nothing around it.")
    return sender


@click.command()
@click.argument("code")
@click.option("--platform", metavar="NAME", callback=_named, help="Only a code that was given out there.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def pair(out: console.Console, code: str, platform: str | None, path: str | None, as_json: bool) -> None:
    """Let in whoever was given this code. It is good for an hour, and once; five wrong ones stop all for an hour."""
    with open_store.open_existing(path or out.settings.database) as db:
        _tell(out, db.contacts.pair(platform, code, by=_who()), as_json)


@click.command()
@click.argument("platform", callback=_named)
@click.argument("sender", callback=_id)
@click.option("--admin", is_flag=True, help="Also for the commands that are for admins.")
@click.option("--name", default="", help="What to call them in the list.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def allow(
    out: console.Console, platform: str, sender: str, admin: bool, name: str, path: str | None, as_json: bool
) -> None:
    """Let somebody in by the id their PLATFORM gives them: SENDER is that id, not a name that can be chosen."""
    _refuse_denied(out.settings, platform, sender)
    # Who is let in before anything was said begins the store.
    with store.SessionDB(path or out.settings.database) as db:
        _tell(out, db.contacts.allow(platform, sender, "admin" if admin else "user", _who(), name), as_json)


@click.command()
@click.argument("platform", callback=_named)
@click.argument("sender", callback=_id)
@click.option("--forget", is_flag=True, help="Know nothing of them any more instead: a stranger again.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def deny(out: console.Console, platform: str, sender: str, forget: bool, path: str | None, as_json: bool) -> int:
    """Let somebody in no more, whatever else is said of them; what they said stays."""
    if not forget:
        with store.SessionDB(path or out.settings.database) as db:
            _tell(out, db.contacts.deny(platform, sender, by=_who()), as_json)
        return 0
    with open_store.open_existing(path or out.settings.database) as db:
        known = db.contacts.delete(platform, sender)
    if as_json:
        out.json({"forgotten": known})
    else:
        out.note("They are a stranger now." if known else "Nothing was known of them.")
    return 0 if known else 1


@click.command()
@click.option("--platform", metavar="NAME", callback=_named, help="Only those there.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def people(out: console.Console, platform: str | None, path: str | None, as_json: bool) -> None:
    """List who was let in or denied, here and by settings."""
    with open_store.open_existing(path or out.settings.database) as db:
        found = [*_by_settings(out.settings, platform), *map(_shape, db.contacts.all(platform))]
    if as_json:
        out.json({"people": found})
        return
    columns = ("platform", "sender", "role", "name", "by")
    widths = [max((safe_text.cells(safe_text.safe(each[name])) for each in found), default=0) for name in columns]
    for each in found:
        cells = (
            safe_text.padded(safe_text.safe(each[name]), width) for name, width in zip(columns, widths, strict=True)
        )
        out.print(out.clipped("  ".join(cells).rstrip(), out.width))
    if not found:
        out.note("Nobody was let in. A stranger who writes to the agent is given a code for `holdfast gateway pair`.")


# --- the parts -----------------------------------------------------------------------------------------


def _who() -> str:
    """Whoever runs this command, for the list."""
    try:
        return f"{getpass.getuser()}, here"
    except (KeyError, OSError):  # A user without a name.
        return "here"


def _refuse_denied(settings: config.Settings, platform: str, sender: str) -> None:
    if sender in map(str, settings.gateway.deny.get(platform, ())):
        raise errors.SettingInvalid(
            f"{settings.user_file} denies {errors.shown(sender)} ({platform}), and that counts more. "
            f"Take them out of `gateway.deny` first."
        )


def _by_settings(settings: config.Settings, platform: str | None) -> list[dict[str, Any]]:
    wanted = settings.gateway
    lists = (("user", wanted.allow), ("admin", wanted.admins), ("denied", wanted.deny))
    return [
        {"platform": where, "sender": str(sender), "role": role, "name": "", "by": "settings", "at": None}
        for role, said in lists
        for where, senders in said.items()
        for sender in senders
        if platform in (None, where)
    ]


def _shape(person: types.Contact) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(person)
    return found


def _tell(out: console.Console, person: types.Contact, as_json: bool) -> None:
    if as_json:
        out.json(_shape(person))
        return
    called = f" ({person.name})" if person.name else ""
    now = {
        "user": "may talk to the agent",
        "admin": "may talk to the agent, as an admin",
        "denied": "is let in no more",
    }
    out.print(
        f"{safe_text.safe(person.sender)}{safe_text.safe(called)} "
        f"on {safe_text.safe(person.platform)} {now[person.role]}."
    )
