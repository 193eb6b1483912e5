"""`holdfast gateway pair`, `allow`, `deny` and `link`: manage access to the agent."""

from __future__ import annotations

import getpass
import re
from urllib.parse import unquote

import click
import msgspec

from holdfast import config, errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, gateway_people, lazy_group
from holdfast.gateway import platform as port
from holdfast.gateway import routes
from holdfast.gateway import settings as gateway
from holdfast.gateway.platforms import plugins
from holdfast.store import db as store

LINKED = "uses the conversations of the terminal. The next message there begins a new one; /resume continues another."
LINKED_CLIENT = "uses the conversations of the terminal. To continue one, send its id in the header {}."
UNLINKED = "has separate conversations again."
TERMINAL = "the terminal"
HOOKS = "hooks"
"""The platform of webhooks, whose senders are their names."""


def _id(_context: click.Context | None, _option: click.Parameter | None, sender: str) -> str:
    # A surplus space would silently allow a sender who does not exist.
    if not sender or sender != sender.strip() or not sender.isprintable() or sender == gateway.EVERYBODY:
        raise click.BadParameter("must be the id that the platform assigns, without spaces around it.")
    return sender


def _optional_id(context: click.Context, option: click.Parameter, sender: str | None) -> str | None:
    return None if sender is None else _id(context, option, sender)


@click.command()
@click.argument("code")
@click.option(
    "--platform", metavar="NAME", callback=gateway_people.check_platform, help="Only accept a code of this platform."
)
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
@click.argument("platform", callback=gateway_people.check_platform)
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
    sender = check_sender(out.settings, platform, sender)
    refuse_denied(out.settings, platform, sender)
    # This may create the store.
    with store.SessionDB(path or out.settings.database) as db:
        _report(out, db.contacts.allow(platform, sender, "admin" if admin else "user", _operator(), name), as_json)


@click.command()
@click.argument("platform", callback=gateway_people.check_platform)
@click.argument("sender", callback=_id)
@click.option("--forget", is_flag=True, help="Delete the entry instead, so that the sender is a stranger again.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def deny(out: console.Console, platform: str, sender: str, forget: bool, path: str | None, as_json: bool) -> int:
    """Deny a sender access, whatever other lists say. Their conversations stay."""
    if not forget:
        sender = check_sender(out.settings, platform, sender)
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
@click.argument("platform", callback=gateway_people.check_platform, required=False)
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
    if platform is None or sender is None:
        if platform is not None or off:
            raise click.UsageError("Give a platform and a sender, or neither to list the links.")
        with open_store.open_existing(path or out.settings.database) as db:
            return _list_links(out, db.contacts.links(), as_json)
    known = True
    if off:
        with open_store.open_existing(path or out.settings.database) as db:
            known = db.contacts.unlink(platform, sender)
    else:
        sender = check_sender(out.settings, platform, sender)
        with store.SessionDB(path or out.settings.database) as db:
            db.contacts.link(platform, sender, "")
    if as_json:
        out.json({"platform": platform, "sender": sender, "linked": not off, "changed": known})
    elif known:
        linked = LINKED_CLIENT.format(out.settings.gateway.http.conversation_header) if platform == "http" else LINKED
        out.print(safe_text.safe(f"{sender} on {platform} {UNLINKED if off else linked}"))
    else:
        out.note("There is no link of this sender.")
    return 0 if known else 1


def _list_links(out: console.Console, found: list[types.Link], as_json: bool) -> int:
    # A chat that created a code is linked to itself, so that it gets copies of the turns of other chats.
    links = [
        each for each in found if each.owner != f"{routes.quote_part(each.platform)}:{routes.quote_part(each.sender)}"
    ]
    if as_json:
        out.json({"links": msgspec.to_builtins(links)})
        return 0
    rows = [(each.platform, each.sender, " ".join(map(unquote, each.owner.split(":"))) or TERMINAL) for each in links]
    out.table([[*map(safe_text.safe, row)] for row in rows], ("platform", "sender", "conversations of"))
    if not links:
        out.note("No links. In the chat or the terminal whose conversation you want to continue, enter /link.")
    return 0


def _operator() -> str:
    """Return the user who runs this command, for the list."""
    try:
        return f"{getpass.getuser()}, here"
    except (KeyError, OSError):  # The user has no name.
        return "here"


def check_sender(settings: config.Settings, platform: str, sender: str) -> str:
    """Return a sender id as the platform writes it.

    Raises SettingInvalid for an unknown platform, and BadParameter for an id that its messages cannot have.
    """
    _id(None, None, sender)
    wanted, listed = settings.gateway, plugins.list_platforms()
    if platform not in (*listed, HOOKS):
        raise errors.SettingInvalid(f"There is no platform {errors.quote(platform)}. Platforms: {', '.join(listed)}.")
    if f"{platform}:{sender}" in (hook.to for hook in wanted.hooks.values()):
        return sender  # A group or channel that receives the replies to a webhook.
    sender = sender.lower() if platform == "email" else sender
    names = {"http": wanted.http.tokens or ["local"], HOOKS: wanted.hooks}.get(platform)
    if names is not None:
        is_valid, advice = sender in names, f"It must be one of: {', '.join(names)}."
    else:
        guide = _find_guide(platform)
        is_valid, advice = re.fullmatch(guide.sender_pattern, sender) is not None, guide.sender
    if not is_valid:
        raise click.BadParameter(f"This is not a sender id of {platform}. {advice}".rstrip())
    return sender


def _find_guide(name: str) -> port.SetupGuide:
    """Return the setup guide of a platform, or one that accepts every sender id if there is none."""
    try:
        return plugins.load_guide(name)
    except errors.SettingInvalid:
        return port.SetupGuide([])


def refuse_denied(settings: config.Settings, platform: str, sender: str) -> None:
    """Raise SettingInvalid for a sender whom the settings deny."""
    if sender in map(str, settings.gateway.deny.get(platform, ())):
        raise errors.SettingInvalid(
            f"{settings.user_file} denies {errors.quote(sender)} ({platform}), which overrides this command. "
            f"Remove the sender from `gateway.deny` first."
        )


def _report(out: console.Console, person: types.Contact, as_json: bool) -> None:
    if as_json:
        out.json(msgspec.to_builtins(person))
        return
    called = f"{person.sender} ({person.name})" if person.name else person.sender
    now = {"user": "has access", "admin": "has access as an admin", "denied": "is denied access"}[person.role]
    out.print(safe_text.safe(f"{called} on {person.platform} {now}."))
