"""`holdfast sessions search`: full-text search in the messages of all conversations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from holdfast import errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import console, json_output, lazy_group, session_choice
from holdfast.store.driver import hide_password
from holdfast.store.search import query_parser


def _timestamp(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    return None if text is None else lazy_group.parse_local_time(text)


@click.command(name="search")
@click.argument("question", nargs=-1, required=True)
@lazy_group.database
@lazy_group.as_json
@click.option(
    "--in", "within", metavar="ID", help="Only this conversation: an id, the beginning of one, a title, or `last`."
)
@click.option("--role", type=click.Choice(types.ROLES), help="Only messages of this role.")
@click.option("--tool", help="Only calls of this tool, and their results.")
@click.option("--after", callback=_timestamp, metavar="TIME", help="Only since then: 2026-05-28 or '2026-05-28 14:30'.")
@click.option("--before", callback=_timestamp, metavar="TIME", help="Only before then (a date means midnight).")
@click.option(
    "--neighbours", type=click.IntRange(0, 20), default=0, help="Also show this many messages before and after."
)
@lazy_group.limit(10, largest=1000)
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
    """Search messages. Use plain language; a "phrase in quotes" must match exactly.

    Exits with 1 if nothing was found.
    """
    target, query = path or out.settings.database, " ".join(question)
    with open_store.open_existing(target) as db:
        _update_index(out, db.admin.update_search_index)
        session_id = session_choice.find(db, within).id if within else None
        hits = db.search(query, session_id=session_id, **options)
        titles = {name: db.conversation(name).title for name in {hit.conversation_id for hit in hits}}
    if as_json:
        found = [_to_json(hit, titles) for hit in hits]
        out.json({"database": hide_password(target), "question": query, "hits": found})
    else:
        for number, hit in enumerate(hits):
            _print(out, hit, titles[hit.conversation_id], query, first=number == 0)
    if not hits:
        out.note("Nothing found. Try fewer or other words.")
    return 0 if hits else 1


def _update_index(out: console.Console, index: Any) -> None:
    try:
        index(lambda done, total: out.progress(f"indexing {done:,} of {total:,} messages"))
    except (errors.StoreBusy, errors.StoreFull) as error:
        # Messages that are indexed already can still be found.
        out.progress("")
        out.note(f"The search index could not be updated, so the newest messages may be missing. {error}")
    out.progress("")


def _to_json(hit: types.Hit, titles: Mapping[str, str | None]) -> dict[str, Any]:
    around = {
        "before": [json_output.message(each) for each in hit.before],
        "after": [json_output.message(each) for each in hit.after],
    }
    return {**msgspec.structs.asdict(hit), **around, "title": titles[hit.conversation_id]}


def _print(out: console.Console, hit: types.Hit, title: str | None, query: str, *, first: bool) -> None:
    if not first and (hit.before or hit.after):
        out.print()
    for message in hit.before:
        _print_neighbour(out, message)
    where = f"{hit.conversation_id} {hit.seq} {hit.role} {safe_text.date(hit.at)}" + (f"  {title}" if title else "")
    out.print(out.style(safe_text.safe(where), "bold"))
    for piece in safe_text.wrap(safe_text.safe(hit.snippet), out.width and out.width - 3):
        out.print(f"   {_highlight(out, piece, query)}")
    for message in hit.after:
        _print_neighbour(out, message)


def _print_neighbour(out: console.Console, message: types.Message) -> None:
    line = f"   {message.seq} {message.role}: {query_parser.content_text(message.content)}"
    out.print(out.style(out.clipped(safe_text.safe(line), out.width), "dim"))


def _highlight(out: console.Console, line: str, query: str) -> str:
    """Highlight the words of the query, in any of their forms."""
    stems = [re.escape(word[: max(4, len(word) - 3)]) for word in re.findall(r"\w{3,}", query)]
    if not out.colour or not stems:
        return line
    return re.sub(
        rf"\b(?:{'|'.join(stems)})\w*", lambda found: out.style(found[0], "yellow"), line, flags=re.IGNORECASE
    )
