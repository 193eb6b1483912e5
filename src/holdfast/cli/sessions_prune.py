"""`holdfast sessions prune`: what is old or too much goes into an archive, and then out of the store."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import click
import msgspec

from holdfast import config, errors, reports, safe_text
from holdfast.app import open_store
from holdfast.cli import backup, confirmation, console, lazy_group
from holdfast.store.driver import is_postgres


def _size(_context: click.Context, _option: click.Parameter, given: str | None) -> int | None:
    try:
        return None if given is None else config.parse_size(given)
    except errors.SettingInvalid as error:
        raise click.BadParameter(str(error)) from None


@click.command(name="prune")
@lazy_group.database
@lazy_group.as_json
@confirmation.yes
@click.option("--older-than", "days", type=click.FloatRange(0), metavar="DAYS", help="What was unused for so long.")
@click.option("--max-size", "size", callback=_size, metavar="SIZE", help="The longest unused, until the rest fits.")
@click.option("--owner", help="Only what belongs to this owner.")
@click.option("--source", help="Only what came from this source.")
@click.option("--archive", type=click.Path(), help="Where it goes (default: a new file in `archive` beside the store).")
@click.pass_obj
def command(
    out: console.Console,
    path: str | None,
    as_json: bool,
    yes: bool,
    days: float | None,
    size: int | None,
    owner: str | None,
    source: str | None,
    archive: str | None,
) -> int:
    """Move conversations that are old, or too much, into an archive, and remove them from the store.

    The archive is an export: `holdfast sessions import --revive` brings it back, under new ids (ID~2). What a
    lease, a route or a branch needs stays. What may go is said here, or by `[retention]` in the settings.
    Without --yes this shows what would go, and asks.
    """
    kept = out.settings.retention
    if days is None and size is None:
        days, size = kept.older_than_days, config.parse_size(kept.max_size) if kept.max_size else None
    if days is None and size is None:
        raise click.UsageError("say what may go: --older-than DAYS, --max-size SIZE, or [retention] in the settings.")
    with open_store.open_existing(path or out.settings.database) as db:
        plan = db.admin.plan_prune(older_than_days=days, max_bytes=size, owner=owner, source=source)
        target = archive or _beside(str(db.admin.info()["path"]), kept.archive, out.settings.home)
        if say := confirmation.preview(out, as_json, yes):
            _show(out, plan, target, say)
        done = bool(plan.going) and confirmation.given(out, yes, "Archive and remove them?")
        report = reports.PruneReport(None, (), (), 0)
        scrubbed = backup.NOT_SCRUBBED
        if done:
            report = db.admin.prune(plan, target, progress=backup.told(out, "archiving"))
            scrubbed = backup.scrub(out, db)
    out.progress("")
    if as_json:
        out.json(
            {
                "pruned": done,
                "scrubbed": scrubbed.files,
                "plan": msgspec.to_builtins(plan),
                "report": msgspec.to_builtins(report),
            }
        )
    elif done:
        _say(out, report)
    return 0 if scrubbed.enough or not plan.going else 1


def _say(out: console.Console, report: reports.PruneReport) -> None:
    out.prose(f"Removed {safe_text.count(len(report.removed), 'conversation')}; the archive is {report.archive}.")
    for name in report.kept:
        out.note(f"{name} stays: it changed or came to be needed meanwhile, or an attachment of it is damaged.")
    for digest in report.lost_blobs:
        out.note(f"Attachment {digest} is missing here, or damaged, and is not in the archive.")


def _beside(database: str, folder: str | None, home: str) -> str:
    """Beside a file; what is on a server has its archives at home."""
    served = is_postgres(database)
    stem = "store" if served else os.path.splitext(os.path.basename(database))[0]
    name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}.jsonl"
    return os.path.join(folder or os.path.join(home if served else os.path.dirname(database), "archive"), name)


def _show(out: console.Console, plan: reports.PrunePlan, target: str, say: Callable[[str], None]) -> None:
    for each in (*plan.going, *plan.needed):
        parts = (
            each.conversation_id,
            safe_text.count(each.messages, "message"),
            safe_text.size(each.bytes),
            safe_text.when(each.active_at),
            f"stays: {each.needed}" if each.needed else "goes",
            each.title or "",
        )
        say(out.clipped(safe_text.safe("  ".join(parts).rstrip()), out.width))
    if not plan.going:
        out.note("Nothing to remove.")
        return
    size = safe_text.size(sum(each.bytes for each in plan.going))
    out.note(f"{safe_text.count(len(plan.going), 'conversation')} ({size}) would go to {target}.")
