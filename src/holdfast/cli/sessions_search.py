"""`holdfast sessions search`: the messages that answer a question."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from holdfast import errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, lazy_group, sessions
from holdfast.store.driver import hide_password
from holdfast.store.search import query_parser

_TIMES = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S")


def _moment(_context: click.Context, _option: click.Parameter, given: str | None) -> float | None:
    """A time of this machine's clock, in Unix seconds."""
    if given is None:
        return None
    for form in _TIMES:
        with contextlib.suppress(ValueError, OverflowError):
            return datetime.datetime.strptime(given, form).astimezone().timestamp()
    raise click.BadParameter("a day looks like 2026-05-28, and a time like '2026-05-28 14:30'.")


@click.command(name="search")
@click.argument("question", nargs=-1, required=True)
@lazy_group.database
@lazy_group.as_json
@click.option(
    "--in", "within", metavar="ID", help="Only this conversation: an id, the beginning of one, a title, `last`."
)
@click.option("--role", type=click.Choice(types.ROLES), help="Only what was said by this role.")
@click.option("--tool", help="Only calls of this tool and their results.")
@click.option("--after", callback=_moment, metavar="TIME", help="Only since then: 2026-05-28, or '2026-05-28 14:30'.")
@click.option("--before", callback=_moment, metavar="TIME", help="Only before then; a day begins at midnight.")
@click.option("--neighbours", type=click.IntRange(0, 20), default=0, help="Show as many messages before and after.")
@click.option("--limit", type=click.IntRange(1, 1000), default=10, show_default=True, help="At most this many.")
@click.pass_obj
def command(
    out: console.Console,
    /,
    question: tuple[str, ...],
    path: str | None,
    as_json: bool,
    within: str | None,
    **options: Any,
) -> int:
    """Find what was said. Ask in plain language; a "phrase in quotes" must be there word for word.

    Exits with 1 when nothing was found.
    """
    target, asked = path or out.settings.database, " ".join(question)
    with open_store.open_existing(target) as db:
        _catch_up(out, db.admin.update_search_index)
        session_id = sessions.find(db, within).id if within else None
        hits = db.search(asked, session_id=session_id, **options)
        titles = {name: db.conversation(name).title for name in {hit.conversation_id for hit in hits}}
    if as_json:
        out.json(
            {
                "database": hide_password(target),
                "question": asked,
                "hits": [_shape(hit, titles) for hit in hits],
            }
        )
    else:
        for number, hit in enumerate(hits):
            _print(out, hit, titles[hit.conversation_id], asked, first=number == 0)
    if not hits:
        out.note("Nothing was found. Try fewer or other words.")
    return 0 if hits else 1


def _catch_up(out: console.Console, index: Any) -> None:
    try:
        index(lambda done, total: out.progress(f"indexing {done:,} of {total:,} messages"))
    except (errors.StoreBusy, errors.StoreFull) as error:
        # What is indexed can be found all the same.
        out.progress("")
        out.note(f"The search index could not catch up, so the newest messages may be missing. {error}")
    out.progress("")


def _shape(hit: types.Hit, titles: Mapping[str, str | None]) -> dict[str, Any]:
    around = {
        "before": [json_output.message(each) for each in hit.before],
        "after": [json_output.message(each) for each in hit.after],
    }
    return {**msgspec.structs.asdict(hit), **around, "title": titles[hit.conversation_id]}


def _print(out: console.Console, hit: types.Hit, title: str | None, asked: str, *, first: bool) -> None:
    if not first and (hit.before or hit.after):
        out.print()
    for message in hit.before:
        _line(out, f"{message.seq} {message.role}", query_parser.content_text(message.content), "dim")
    where = f"{hit.conversation_id} {hit.seq} {hit.role} {safe_text.when(hit.at)}" + (f"  {title}" if title else "")
    out.print(out.style(safe_text.safe(where), "bold"))
    for piece in safe_text.wrapped(safe_text.safe(hit.snippet), out.width and out.width - 3):
        out.print(f"   {_marked(out, piece, asked)}")
    for message in hit.after:
        _line(out, f"{message.seq} {message.role}", query_parser.content_text(message.content), "dim")


def _line(out: console.Console, where: str, said: str, style: str) -> None:
    out.print(out.style(out.clipped(safe_text.safe(f"   {where}: {said}"), out.width), style))


def _marked(out: console.Console, line: str, asked: str) -> str:
    """The words that were asked for stand out, in any of their forms."""
    stems = [re.escape(word[: max(4, len(word) - 3)]) for word in re.findall(r"\w{3,}", asked)]
    if not out.colour or not stems:
        return line
    return re.sub(
        rf"\b(?:{'|'.join(stems)})\w*", lambda found: out.style(found[0], "yellow"), line, flags=re.IGNORECASE
    )
