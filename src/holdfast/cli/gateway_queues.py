"""`holdfast gateway status`, `failed` and `retry`: show the queues of a gateway, and send failed messages again."""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

import click

from holdfast import errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, gateway_people, lazy_group
from holdfast.gateway import settings
from holdfast.store.mail import queue_status

ROUTE = "route:"
"""The key prefix of the leases for processing a chat; those for sending are not shown."""
MAX_LISTED = 5
MAX_MESSAGES = 1_000
MAX_EXCERPT = 60


class QueueState(NamedTuple):
    """The queues of a store."""

    facts: dict[str, int]
    waiting: list[queue_status.RouteBacklog]
    unsent: list[queue_status.PlatformBacklog]
    failed: list[types.Outgoing]
    claims: list[types.ChatLeaseHeld]
    people: frozenset[tuple[str, str]]
    """The platform and id of each sender in the settings and the store."""
    denied: frozenset[tuple[str, str]]


# --- status --------------------------------------------------------------------------------------------


@click.command(name="status")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def status(out: console.Console, path: str | None, as_json: bool) -> None:
    """Show waiting messages, running turns, unsent and failed messages, and the configured platforms."""
    with open_store.open_existing(path or out.settings.database) as db:
        senders = gateway_people.list_senders(db, out.settings)
        found = QueueState(
            db.mail.counts(),
            db.mail.backlog(),
            db.mail.unsent_counts(),
            db.mail.failures(),
            db.mail.chat_leases(),
            frozenset((each["platform"], each["sender"]) for each in senders),
            frozenset((each["platform"], each["sender"]) for each in senders if each["role"] == "denied"),
        )
    platforms = _platforms(out.settings.gateway)
    if as_json:
        out.json(_status_to_json(found, platforms))
        return
    for name, lines in _describe(found, platforms).items():
        for number, line in enumerate(lines):
            out.print(out.clipped(f"{'' if number else name:<11} {safe_text.safe(line)}".rstrip(), out.width))


def _describe(found: QueueState, platforms: list[dict[str, Any]]) -> dict[str, list[str]]:
    facts, held = found.facts, [each for each in found.claims if each.state == "held" and each.key.startswith(ROUTE)]
    waiting = [
        f"  {each.route}: {safe_text.count(each.messages, 'message')} since {safe_text.date(each.since)}"
        + (f", {each.attempts} attempts" if each.attempts > 1 else "")
        for each in found.waiting[:MAX_LISTED]
    ]
    unsent = [
        f"{each.platform}: {safe_text.count(each.messages, 'message')} since {safe_text.date(each.since)}"
        + (f", next attempt {safe_text.date(each.due_at)}: {each.error}" if each.error else "")
        for each in found.unsent
    ]
    open_messages = safe_text.count(facts["arrivals_open"], "message")
    denied = len(found.denied)
    return {
        "waiting": [f"{open_messages} in {safe_text.count(facts['routes_waiting'], 'chat')}", *waiting],
        "running": [f"{each.key.removeprefix(ROUTE)} by {each.holder}" for each in held[:MAX_LISTED]] or ["none"],
        "unsent": unsent or ["none"],
        "failed": _describe_failed(found.failed),
        "people": [f"{len(found.people) - denied} allowed, {denied} denied; `holdfast gateway people` lists them"],
        "platforms": list(map(_describe_platform, platforms)),
    }


def _describe_platform(found: dict[str, Any]) -> str:
    if found["at"] is None:
        return f"{found['name']}: configured; `holdfast gateway setup --check` checks its access"
    return f"{found['name']} at {found['at']}: {'answers' if found['answers'] else 'does not answer'}"


def _describe_failed(failed: list[types.Outgoing]) -> list[str]:
    if not failed:
        return ["none"]
    more, last = " or more" if len(failed) >= queue_status.DEFAULT_LIMIT else "", failed[0]
    return [
        f"{safe_text.count(len(failed), 'message')}{more}; `holdfast gateway failed` lists them",
        f"  the last, to {last.platform} {last.chat}: {last.error}",
    ]


def _status_to_json(found: QueueState, platforms: list[dict[str, Any]]) -> dict[str, Any]:
    last = found.failed[0] if found.failed else None
    return {
        **found.facts,
        "waiting": [each._asdict() for each in found.waiting],
        "unsent": [each._asdict() for each in found.unsent],
        "failed": len(found.failed),
        # Lists that may have further entries.
        "cut": [name for name in ("waiting", "failed") if len(getattr(found, name)) >= queue_status.DEFAULT_LIMIT],
        "last_error": None if last is None else {"id": last.id, "platform": last.platform, "error": last.error},
        "people": len(found.people),
        "claims": [
            {"key": each.key, "holder": each.holder, "state": each.state, "expires_in": each.expires_in}
            for each in found.claims
        ],
        "platforms": platforms,
    }


def _platforms(wanted: settings.GatewaySettings) -> list[dict[str, Any]]:
    """Return the platforms of the settings, and whether those with an address accept connections."""
    found = list[dict[str, Any]]()
    if wanted.has_http:
        host, port = wanted.http.host, wanted.http.port
        answers = _accepts(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, port))
        found.append({"name": "http", "at": f"{host}:{port}", "answers": answers})
        found += [{"name": f"hook {name}", "at": f"/hooks/{name}", "answers": answers} for name in wanted.hooks]
    if wanted.loopback is not None:
        at = wanted.loopback.socket
        found.append({"name": "loopback", "at": at, "answers": _accepts(socket.AF_UNIX, at)})
    return found + [{"name": name, "at": None, "answers": None} for name in wanted.platforms]


def _accepts(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    try:
        with socket.socket(family) as client:
            client.settimeout(1.0)
            client.connect(address)
            return True
    except OSError:
        return False


# --- failed messages -----------------------------------------------------------------------------------


@click.command()
@click.option("--limit", type=click.IntRange(1, MAX_MESSAGES), default=20, help="The number of messages (default: 20).")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def failed(out: console.Console, limit: int, path: str | None, as_json: bool) -> None:
    """List messages that failed for good, the newest first: number, recipient, error and beginning."""
    with open_store.open_existing(path or out.settings.database) as db:
        found = db.mail.failures(limit)
    if as_json:
        out.json({"failed": [_failed_to_json(each) for each in found]})
        return
    for each in found:
        where = safe_text.safe(f"{each.platform} {each.chat}")
        out.print(out.clipped(f"{each.id}  {safe_text.date(each.failed_at or each.at)}  {where}", out.width))
        out.print(out.clipped(f"    {safe_text.safe(each.error or '')}", out.width))
        out.print(
            out.clipped(f"    {safe_text.safe(safe_text.clip(' '.join(each.text.split()), MAX_EXCERPT))}", out.width)
        )
    if found:
        out.note("`holdfast gateway retry NUMBER` sends one again.")
    else:
        out.note("No failed messages.")


@click.command()
@click.argument("numbers", nargs=-1, type=click.IntRange(1))
@click.option("--all", "every", is_flag=True, help="All failed messages, up to a thousand.")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def retry(out: console.Console, numbers: tuple[int, ...], every: bool, path: str | None, as_json: bool) -> int:
    """Queue failed messages again, by the NUMBERS that `holdfast gateway failed` lists.

    A running gateway, or the next one, sends them once to the same chat.
    """
    if bool(numbers) is every:
        raise click.UsageError("Give the numbers of messages, or --all.")
    sent, wrong = list[dict[str, Any]](), list[str]()
    with open_store.open_existing(path or out.settings.database) as db:
        # The oldest first, which is their original order.
        for number in sorted(each.id for each in db.mail.failures(MAX_MESSAGES)) if every else numbers:
            try:
                sent.append({"id": number, "again": db.mail.resend(number).id})
            except errors.InvalidArgument as error:
                wrong.append(str(error))
    if as_json:
        out.json({"sent": sent, "refused": wrong})
    else:
        if sent:
            out.print(f"{safe_text.count(len(sent), 'message')} queued again.")
        elif every and not wrong:
            out.note("No failed messages.")
        for line in wrong:
            out.note(line)
    return 1 if wrong else 0


def _failed_to_json(each: types.Outgoing) -> dict[str, Any]:
    return {
        "id": each.id,
        "platform": each.platform,
        "chat": each.chat,
        "kind": each.kind,
        "arrival": each.inbound_id,
        "conversation": each.conversation_id,
        "attempts": each.attempts,
        "at": each.at,
        "failed_at": each.failed_at,
        "error": each.error,
        "text": each.text,
    }
