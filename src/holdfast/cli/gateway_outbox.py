"""`holdfast gateway failed` and `retry`: list messages that could not be sent, and send them again."""

from __future__ import annotations

from typing import Any

import click

from holdfast import errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, lazy_group

MAX_MESSAGES = 1_000
MAX_EXCERPT = 60


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
        out.json({"failed": [_shape(each) for each in found]})
        return
    for each in found:
        where = safe_text.safe(f"{each.platform} {each.chat}")
        out.print(out.clipped(f"{each.id}  {safe_text.date(each.failed_at or each.at)}  {where}", out.width))
        out.print(out.clipped(f"    {safe_text.safe(each.error or '')}", out.width))
        out.print(out.clipped(f"    {safe_text.safe(_excerpt(each.text))}", out.width))
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
        out.print(f"{len(sent)} {'message' if len(sent) == 1 else 'messages'} queued again.")
        for line in wrong:
            out.note(line)
    return 1 if wrong else 0


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_EXCERPT else f"{line[: MAX_EXCERPT - 2]} …"


def _shape(each: types.Outgoing) -> dict[str, Any]:
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
