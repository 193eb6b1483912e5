"""`holdfast sessions search`: the messages that answer a question."""

from __future__ import annotations

import datetime
import re
from typing import Any

import click
import msgspec

from holdfast import app, types
from holdfast.cli import console, lazy, sessions, shapes, text


@click.command(name="search")
@click.argument("question", nargs=-1, required=True)
@lazy.database
@lazy.as_json
@click.option(
    "--in", "within", metavar="ID", help="Only this conversation: an id, the beginning of one, a title, `last`."
)
@click.option("--role", type=click.Choice(types.ROLES), help="Only what was said by this role.")
@click.option("--tool", help="Only calls of this tool and their results.")
@click.option("--after", type=click.DateTime(), help="Only since this day or time.")
@click.option("--before", type=click.DateTime(), help="Only until this day or time.")
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
    after: datetime.datetime | None,
    before: datetime.datetime | None,
    **options: Any,
) -> int:
    """Find what was said. Ask in plain language; a "phrase in quotes" must be there word for word.

    Exits with 1 when nothing was found.
    """
    target, asked = path or out.settings.database, " ".join(question)
    with app.open_to_look(target) as db:
        _catch_up(out, db.index_search)
        session_id = sessions.find(db, within).id if within else None
        hits = db.search(asked, session_id=session_id, after=_unix(after), before=_unix(before), **options)
    if as_json:
        out.json({"database": target, "question": asked, "hits": [_shape(hit) for hit in hits]})
    else:
        for number, hit in enumerate(hits):
            _print(out, hit, asked, first=number == 0)
    if not hits:
        out.note("Nothing was found. Try fewer or other words.")
    return 0 if hits else 1


def _catch_up(out: console.Console, index: Any) -> None:
    index(lambda done, total: out.progress(f"indexing {done:,} of {total:,} messages"))
    out.progress("")


def _unix(moment: datetime.datetime | None) -> float | None:
    return moment.astimezone().timestamp() if moment else None


def _shape(hit: types.Hit) -> dict[str, Any]:
    around = {
        "before": [shapes.message(each) for each in hit.before],
        "after": [shapes.message(each) for each in hit.after],
    }
    return {**msgspec.structs.asdict(hit), **around}


def _print(out: console.Console, hit: types.Hit, asked: str, *, first: bool) -> None:
    if not first and (hit.before or hit.after):
        out.print()
    for message in hit.before:
        _line(out, f"{message.seq} {message.role}", _plain(message), "dim")
    where = f"{hit.conversation_id} {hit.seq} {hit.role} {text.when(hit.at)}"
    out.print(out.style(text.safe(where), "bold"))
    for piece in text.wrapped(text.safe(hit.snippet), out.width and out.width - 3):
        out.print(f"   {_marked(out, piece, asked)}")
    for message in hit.after:
        _line(out, f"{message.seq} {message.role}", _plain(message), "dim")


def _line(out: console.Console, where: str, said: str, style: str) -> None:
    out.print(out.style(out.clipped(text.safe(f"   {where}: {said}"), out.width), style))


def _plain(message: types.Message) -> str:
    content = message.content
    return content if isinstance(content, str) else " ".join(str(part.get("text", "")) for part in content)


def _marked(out: console.Console, line: str, asked: str) -> str:
    """The words that were asked for stand out, in any of their forms."""
    stems = [re.escape(word[: max(4, len(word) - 3)]) for word in re.findall(r"\w{3,}", asked)]
    if not out.colour or not stems:
        return line
    return re.sub(
        rf"\b(?:{'|'.join(stems)})\w*", lambda found: out.style(found[0], "yellow"), line, flags=re.IGNORECASE
    )
