"""`holdfast sessions export` and `holdfast sessions import`: conversations on their way out and in."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import click

from holdfast import app, errors, types
from holdfast.cli import console, lazy, sessions, text
from holdfast.store import db as store
from holdfast.store import pages, points

Write = Callable[[str], object]


@click.command(name="export")
@click.argument("conversations", metavar="[ID]...", nargs=-1)
@lazy.database
@click.option("--all", "every", is_flag=True, help="Every conversation there is.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", *pages.FORMS]),
    default="jsonl",
    show_default=True,
    help="JSON Lines can be imported again; Markdown and HTML are for reading.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file instead of standard output.")
@click.pass_obj
def export(
    out: console.Console, conversations: tuple[str, ...], path: str | None, every: bool, form: str, output: str | None
) -> None:
    """Write conversations as lines to import elsewhere, or as a page to read.

    ID is an id, the beginning of one, a title, or `last`. What a branch reads from is exported with it.
    """
    if every == bool(conversations):
        raise click.UsageError("Name conversations, or take them --all.")
    with app.open_to_look(path or out.settings.database) as db:
        ids = None if every else [sessions.find(db, name).id for name in conversations]
        with _output(out, output) as put:
            summary = _written(out, db, put, ids, form)
    if output not in (None, "-"):
        out.note(f"{summary} written to {output}.")


def _written(out: console.Console, db: store.SessionDB, put: Write, ids: Sequence[str] | None, form: str) -> str:
    if form in pages.FORMS:
        db.export_pages(put, ids, form)
        return "The page was"
    report = db.export_to(put, ids, progress=lambda done, total: out.progress(f"{done:,} of {total:,} messages"))
    out.progress("")
    for origin in report.origins:
        out.note(f"{origin} came along: a branch reads from it.")
    counted = text.count(report.conversations, "conversation"), text.count(report.messages, "message")
    return f"{counted[0]} with {counted[1]}"


# --- where it goes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _output(out: console.Console, path: str | None) -> Iterator[Write]:
    """Standard output, or a file that is there in full or not at all."""
    if path in (None, "-"):
        yield _to_terminal(out) if out.tty else _to_pipe(out)
        return
    target = os.path.realpath(str(path))
    try:
        with _replacing(target) if _is_plain(target) else open(target, "wb") as file:
            yield lambda piece: file.write(piece.encode())
    except OSError as error:
        raise errors.HoldfastError(f"{path} could not be written: {error.strerror or error}.") from error


def _to_terminal(out: console.Console) -> Write:
    return lambda piece: out.out.write("\n".join(text.safe(line) for line in piece.split("\n")))


def _to_pipe(out: console.Console) -> Write:
    """The same bytes wherever it runs: the encoding of this terminal is nothing an import could know."""
    binary = getattr(out.out, "buffer", None)
    if binary is None:
        return out.out.write
    return lambda piece: binary.write(piece.encode())


def _is_plain(path: str) -> bool:
    """A file, or nothing yet; a device or a pipe is written to, never replaced."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return True


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[IO[bytes]]:
    handle, part = tempfile.mkstemp(prefix=f".{os.path.basename(path)[:50]}.", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        points.reach("export", "written")
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    points.reach("export", "renamed")


# --- and where it comes from -------------------------------------------------------------------------


@click.command(name="import")
@click.argument("file", metavar="FILE")
@lazy.database
@lazy.as_json
@click.option("--revive", is_flag=True, help="Take in, under new ids, what was deleted here.")
@click.pass_obj
def import_(out: console.Console, file: str, path: str | None, as_json: bool, revive: bool) -> int:
    """Take in the conversations of an export; FILE may be - for standard input.

    What is here already is left alone, so an import can be repeated. Exits with 1 when something was refused.
    """
    target = path or out.settings.database
    with _input(file) as lines, store.SessionDB(target) as db:
        report = db.import_from(lines, revive=revive, progress=_counting(out))
    out.progress("")
    if as_json:
        out.json({"database": target, "messages": report.messages, "ok": report.ok, "outcomes": _shapes(report)})
    else:
        _summary(out, report)
    return 0 if report.ok else 1


@contextlib.contextmanager
def _input(path: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 -- closed below, where reading it has other errors
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise errors.HoldfastError(f"{path} cannot be read: {reason}.") from error
    with file:
        yield file


def _counting(out: console.Console) -> Callable[[int, int], None]:
    return lambda messages, lines: out.progress(f"{messages:,} messages, {lines:,} lines")


def _shapes(report: types.ImportReport) -> list[dict[str, Any]]:
    return [
        {
            "conversation_id": one.conversation_id,
            "outcome": one.outcome,
            "line": one.line,
            "reason": str(one.error) if one.error else None,
            "kept_as": one.kept_as,
            "title": one.title,
            "routes": list(one.routes),
        }
        for one in report.outcomes
    ]


def _summary(out: console.Console, report: types.ImportReport) -> None:
    for outcome in report.outcomes:
        for line in _remarks(outcome):
            out.note(line)
    counts = {name: sum(one.outcome == name for one in report.outcomes) for name in _WORDS}
    said = [f"{number:,} {_WORDS[name]}" for name, number in counts.items() if number or name == "imported"]
    out.print(f"{', '.join(said)}; {text.count(report.messages, 'message')} came in.")


_WORDS = {
    "imported": "imported",
    "already_there": "already there",
    "conflict": "here with other content",
    "refused": "refused",
}


def _remarks(outcome: types.ImportOutcome) -> Iterator[str]:
    name = outcome.conversation_id
    if outcome.error:
        yield f"{name}: {outcome.error}" if name and outcome.outcome == "refused" else str(outcome.error)
    if outcome.kept_as:
        yield f"{name} was deleted here; it is now {outcome.kept_as}."
    if outcome.title:
        yield f"{name} is now titled {outcome.title!r}: its own title is taken."
    for route in outcome.routes:
        yield f"{name}: the route {route!r} is known here and stays as it is."
