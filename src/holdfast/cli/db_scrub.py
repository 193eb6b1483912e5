"""`holdfast db scrub`: what was deleted and redacted goes out of the files, whoever has to wait for that."""

from __future__ import annotations

import click

from holdfast.app import open_store
from holdfast.cli import confirmation, console, lazy_group
from holdfast.store.driver import is_postgres


@click.command(name="scrub")
@click.argument("target", required=False, callback=lazy_group.named)
@lazy_group.as_json
@confirmation.yes
@click.pass_obj
def command(out: console.Console, target: str | None, as_json: bool, yes: bool) -> int:
    """Take what was deleted and redacted out of the files of TARGET (default: the store of the settings).

    On a PostgreSQL server every table that holds text is written anew, which takes as much room again. Whoever reads
    or writes waits until its table is done: do it when few are there. Only the role that made the tables may. What the
    server keeps in its log, its archives and its backups is not touched.
    """
    with open_store.open_existing(target or out.settings.database) as db:
        agreed = not is_postgres(db.path) or confirmation.given(
            out, yes, "Write its tables anew, while everybody who uses it waits?"
        )
        if agreed:
            out.progress("scrubbing the files and the search index")
            db.admin.scrub()
            out.progress("")
    if as_json:
        out.json({"scrubbed": agreed})
    elif agreed:
        out.prose("Nothing of what was deleted or redacted is in its files any more.")
    return 0 if agreed else 1
