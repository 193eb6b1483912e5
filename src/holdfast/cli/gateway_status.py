"""`holdfast gateway status`: what waits, what is worked on, and what could not be sent."""

from __future__ import annotations

import os
import socket
from typing import Any, NamedTuple

import click

from holdfast import safe_text, time_format, types
from holdfast.app import open_store
from holdfast.cli import console, lazy_group
from holdfast.gateway import settings
from holdfast.store.mail import queue_status

ROUTE = "route:"
"""Claims of chats; those to send are kept for a while after it."""
SHOWN = 5
"""Chats, claims and errors that are named one by one."""


class Standing(NamedTuple):
    """How things stand in a store."""

    facts: dict[str, int]
    waiting: list[queue_status.RouteBacklog]
    unsent: list[queue_status.PlatformBacklog]
    failed: list[types.Outgoing]
    claims: list[types.ChatLeaseHeld]
    people: list[types.Contact]


@click.command(name="status")
@lazy_group.database
@lazy_group.as_json
@click.pass_obj
def command(out: console.Console, path: str | None, as_json: bool) -> None:
    """What waits, what is worked on and by whom, what could not be sent, and which platforms are set up."""
    with open_store.open_existing(path or out.settings.database) as db:
        found = Standing(
            db.mail.counts(),
            db.mail.backlog(),
            db.mail.unsent_counts(),
            db.mail.failures(),
            db.mail.chat_leases(),
            db.contacts.all(),
        )
    ways = _ways(out.settings.gateway)
    if as_json:
        out.json(_shape(found, ways))
        return
    for name, lines in _told(found, ways).items():
        for number, line in enumerate(lines):
            out.print(out.clipped(f"{'' if number else name:<11} {safe_text.safe(line)}".rstrip(), out.width))


def _told(found: Standing, ways: list[dict[str, Any]]) -> dict[str, list[str]]:
    facts, held = found.facts, [each for each in found.claims if each.state == "held" and each.key.startswith(ROUTE)]
    waiting = [
        f"  {each.route}: {_many(each.messages)} since {time_format.when(each.since)}{_begun(each.attempts)}"
        for each in found.waiting[:SHOWN]
    ]
    unsent = [
        f"{each.platform}: {_many(each.messages)} since {time_format.when(each.since)}"
        + (f", tried again {time_format.when(each.due_at)}: {each.error}" if each.error else "")
        for each in found.unsent
    ]
    denied = sum(each.role == "denied" for each in found.people)
    return {
        "waiting": [f"{_many(facts['arrivals_open'])} in {_chats(facts['routes_waiting'])}", *waiting],
        "worked on": [f"{each.key.removeprefix(ROUTE)} by {each.holder}" for each in held[:SHOWN]] or ["nothing"],
        "to be sent": unsent or ["nothing"],
        "not sent": _not_sent(found.failed),
        "people": [f"{len(found.people) - denied} let in, {denied} denied; `holdfast gateway people` lists them"],
        "platforms": [f"{each['name']} at {each['at']}: {_answer(each['answers'])}" for each in ways] or ["none"],
    }


def _not_sent(failed: list[types.Outgoing]) -> list[str]:
    if not failed:
        return ["nothing"]
    last, many = (
        failed[0],
        _many(len(failed)) + (" or more" if len(failed) >= queue_status.DEFAULT_LIMIT else ""),
    )
    return [
        f"{many}; `holdfast gateway failed` lists them",
        f"  the last, to {last.platform} {last.chat}: {last.error}",
    ]


def _many(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


def _chats(count: int) -> str:
    return "1 chat" if count == 1 else f"{count} chats"


def _begun(attempts: int) -> str:
    return f", begun {attempts} times" if attempts > 1 else ""


def _answer(answers: bool) -> str:
    return "answers" if answers else "does not answer"


def _shape(found: Standing, ways: list[dict[str, Any]]) -> dict[str, Any]:
    last = found.failed[0] if found.failed else None
    return {
        **found.facts,
        "waiting": [each._asdict() for each in found.waiting],
        "unsent": [each._asdict() for each in found.unsent],
        "failed": len(found.failed),
        # Lists that end here though there may be more.
        "cut": [name for name in ("waiting", "failed") if len(getattr(found, name)) >= queue_status.DEFAULT_LIMIT],
        "last_error": None if last is None else {"id": last.id, "platform": last.platform, "error": last.error},
        "people": len(found.people),
        "claims": [
            {"key": each.key, "holder": each.holder, "state": each.state, "expires_in": each.expires_in}
            for each in found.claims
        ],
        "platforms": ways,
    }


def _ways(wanted: settings.Settings) -> list[dict[str, Any]]:
    """The platforms of the settings, and whether anybody answers there now."""
    found = list[dict[str, Any]]()
    if wanted.has_http:
        at = f"{wanted.http.host}:{wanted.http.port}"
        found.append({"name": "http", "at": at, "answers": _listens(wanted.http.host, wanted.http.port)})
        found += [
            {"name": f"hook {name}", "at": f"/hooks/{name}", "answers": found[0]["answers"]} for name in wanted.hooks
        ]
    if wanted.loopback is not None:
        at = wanted.loopback.socket
        found.append({"name": "loopback", "at": at, "answers": _is_open(at)})
    return found


def _listens(host: str, port: int) -> bool:
    """Whether anybody listens there."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def _is_open(path: str) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(1.0)
            asking.connect(os.fspath(path))
            return True
    except OSError:
        return False
