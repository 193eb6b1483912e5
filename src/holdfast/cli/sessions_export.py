"""`holdfast sessions export` and `holdfast sessions import`: conversations on their way out and in."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import click
import msgspec

from holdfast import errors, reports, safe_text
from holdfast.app import open_store
from holdfast.cli import console, lazy_group, sessions
from holdfast.store import db as store
from holdfast.store.driver import hide_password
from holdfast.store.transfer import export as transfer_export
from holdfast.store.transfer import render

Write = Callable[[str], object]
SHOWN = 10


@click.command(name="export")
@click.argument("conversations", metavar="[ID]...", nargs=-1, shell_complete=lazy_group.conversations)
@lazy_group.database
@click.option("--all", "every", is_flag=True, help="Every conversation there is.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", *render.FORMS]),
    default="jsonl",
    show_default=True,
    help="JSON Lines can be imported again; Markdown and HTML are for reading.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to this file, and attachments to FILE.blobs beside it.")
@click.option("--json", "as_json", is_flag=True, help="With -o: print what was written as JSON.")
@click.pass_obj
def export(
    out: console.Console,
    conversations: tuple[str, ...],
    path: str | None,
    every: bool,
    form: str,
    output: str | None,
    as_json: bool,
) -> None:
    """Write conversations as lines to import elsewhere, or as a page to read.

    ID is an id, the beginning of one, a title, or `last`. What a branch reads from is exported with it.
    Attachments are files: they come along with -o, and not through a pipe.
    """
    if every == bool(conversations):
        raise click.UsageError("Name conversations, or take them --all.")
    if as_json and output in (None, "-"):
        raise click.UsageError("--json tells of a file that was written: name one with -o.")
    with open_store.open_existing(path or out.settings.database) as db:
        ids = None if every else [sessions.find(db, name).id for name in conversations]
        with _output(out, output) as target:
            report = _written(out, db, target, ids, form)
    whole = isinstance(target, pathlib.Path)
    if report:
        _remark(out, report, whole)
    if as_json:
        out.json({"file": output, "format": form, **(msgspec.to_builtins(report) if report else {})})
    elif output not in (None, "-"):
        out.note(f"{_counted(report, whole) if report else 'The page was'} written to {output}.")


def _written(
    out: console.Console, db: store.SessionDB, target: transfer_export.Target, ids: Sequence[str] | None, form: str
) -> reports.ExportReport | None:
    """What lines say of themselves when they are written; a page says nothing."""
    if form in render.FORMS:
        db.admin.export_pages(target, ids, form)
        return None
    report = db.admin.export_to(
        target, ids, progress=lambda done, total: out.progress(f"{done:,} of {total:,} messages")
    )
    out.progress("")
    return report


def _counted(report: reports.ExportReport, whole: bool) -> str:
    parts = [safe_text.count(report.conversations, "conversation"), safe_text.count(report.messages, "message")]
    kept = len(report.blobs) - len(report.lost_blobs) if whole else 0
    return " with ".join(parts) + (f" and {safe_text.count(kept, 'attachment')}" if kept else "")


def _remark(out: console.Console, report: reports.ExportReport, whole: bool) -> None:
    for origin in report.origins:
        out.note(f"{origin} came along: a branch reads from it.")
    if report.blobs and not whole:
        count = safe_text.count(len(report.blobs), "attachment")
        out.note(
            f"{count} ({safe_text.size(report.blob_bytes)}) did not come along: export to a file with -o to have them."
        )
    for digest in report.lost_blobs:
        out.note(f"Attachment {digest} is missing here, or damaged, and did not come along.")


# --- where it goes -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _output(out: console.Console, path: str | None) -> Iterator[transfer_export.Target]:
    """Standard output, a file that is there in full or not at all, or a device, which is never replaced."""
    if path is None or path == "-":
        yield _to_terminal(out) if out.tty else _to_pipe(out)
    elif _is_plain(path):
        yield pathlib.Path(path)
    else:
        try:
            with open(path, "wb") as file:
                yield lambda piece: file.write(piece.encode())
        except BrokenPipeError:
            raise
        except OSError as error:
            raise errors.HoldfastError(f"{path} cannot be written: {error.strerror or error}.") from error


def _to_terminal(out: console.Console) -> Write:
    return lambda piece: out.out.write("\n".join(safe_text.safe(line) for line in piece.split("\n")))


def _to_pipe(out: console.Console) -> Write:
    """The same bytes wherever it runs: the encoding of this terminal is nothing an import could know."""
    binary = getattr(out.out, "buffer", None)
    if binary is None:
        return out.out.write
    return lambda piece: binary.write(piece.encode())


def _is_plain(path: str) -> bool:
    """A file, or nothing yet."""
    try:
        return not os.path.exists(path) or os.path.isfile(path)
    except ValueError as error:
        raise errors.HoldfastError(f"{path} is no path: {error}.") from error


# --- and where it comes from -------------------------------------------------------------------------


@click.command(name="import")
@click.argument("file", metavar="FILE")
@lazy_group.database
@lazy_group.as_json
@click.option("--revive", is_flag=True, help="Take in, under new ids (id~2), what was deleted or pruned here.")
@click.pass_obj
def import_(out: console.Console, file: str, path: str | None, as_json: bool, revive: bool) -> int:
    """Take in the conversations of an export; FILE may be - for standard input.

    Attachments come from FILE.blobs. What is here already is left alone, so an import can be repeated. What
    was deleted here, or pruned, comes back only with --revive. Exits with 1 when a conversation was refused.
    """
    target = path or out.settings.database
    with _input(file) as lines, store.SessionDB(target) as db:
        report = db.admin.import_from(lines, revive=revive, progress=_counting(out))
    out.progress("")
    if as_json:
        lost = {"blobs": report.blobs, "lost_blobs": list(report.lost_blobs)}
        told = {"messages": report.messages, "ok": report.ok, "outcomes": _shapes(report)}
        out.json({"database": hide_password(target), **told, **lost})
    else:
        _summary(out, report)
        _missing(out, report.lost_blobs, file)
    return 0 if report.ok else 1


@contextlib.contextmanager
def _input(path: str) -> Iterator[IO[bytes] | pathlib.Path]:
    """A file by its path, since attachments lie beside it; standard input or a pipe as it is."""
    if path == "-":
        yield sys.stdin.buffer
        return
    if os.path.isfile(path):  # not opened here: it may be a file of the store
        yield pathlib.Path(path)
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


def _shapes(report: reports.ImportReport) -> list[dict[str, Any]]:
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


def _summary(out: console.Console, report: reports.ImportReport) -> None:
    for outcome in report.outcomes:
        for line in _remarks(outcome):
            out.note(line)
    counts = {name: sum(one.outcome == name for one in report.outcomes) for name in _WORDS}
    said = [f"{number:,} {_WORDS[name]}" for name, number in counts.items() if number or name == "imported"]
    came = safe_text.count(report.messages, "message")
    came += f" and {safe_text.count(report.blobs, 'attachment')}" if report.blobs else ""
    out.print(f"{', '.join(said)}; {came} came in.")
    gone = sum(isinstance(one.error, errors.ConversationDeleted) for one in report.outcomes)
    if gone:
        were = "was" if gone == 1 else "were"
        out.note(f"{gone:,} {were} deleted or pruned here: --revive takes that in, under new ids that end in ~2.")


def _missing(out: console.Console, lost: Sequence[str], file: str) -> None:
    for digest in lost[:SHOWN]:
        out.note(f"Attachment {digest} is not here.")
    if len(lost) > SHOWN:
        out.note(f"So it is with {len(lost) - SHOWN:,} more; --json lists them.")
    if lost:
        piped = "A pipe does not carry attachments: import a file that `sessions export -o` wrote"
        beside = f"Put {file}.blobs, as it was exported, beside the file and import it again"
        out.note(f"{beside if os.path.isfile(file) else piped}.")


_WORDS = {
    "imported": "imported",
    "already_there": "already there",
    "conflict": "here with other content",
    "refused": "refused",
}


def _remarks(outcome: reports.ImportOutcome) -> Iterator[str]:
    name = outcome.conversation_id
    if outcome.error:
        yield f"{name}: {outcome.error}" if name and outcome.outcome == "refused" else str(outcome.error)
    if outcome.kept_as:
        yield f"{name} was deleted here; it is now {outcome.kept_as}."
    if outcome.title:
        yield f"{name} is now titled {outcome.title!r}: its own title is taken."
    for route in outcome.routes:
        yield f"{name}: the route {route!r} is known here and stays as it is."
