"""`holdfast sessions export` and `holdfast sessions import`."""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import IO, Any

import click
import msgspec

from holdfast import errors, reports, safe_text
from holdfast.app import open_store
from holdfast.cli import console, lazy_group, session_choice
from holdfast.store import db as store
from holdfast.store.driver import hide_password
from holdfast.store.transfer import export as transfer_export
from holdfast.store.transfer import render

MAX_LINES = 10


@click.command(name="export")
@click.argument("conversations", metavar="[ID]...", nargs=-1, shell_complete=lazy_group.conversations)
@lazy_group.database
@click.option("--all", "every", is_flag=True, help="Export all conversations.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", *render.FORMS]),
    default="jsonl",
    show_default=True,
    help="JSON Lines can be imported; Markdown and HTML are for reading.",
)
@click.option("-o", "--output", metavar="FILE", help="Write to FILE, and attachments to FILE.blobs.")
@click.option("--json", "as_json", is_flag=True, help="With -o: print a report as JSON.")
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
    """Export conversations to a file or to standard output.

    ID is an id, the beginning of one, a title, or `last`. The origin of a branch is exported with it. Attachments are
    exported only with -o.
    """
    if every == bool(conversations):
        raise click.UsageError("Name conversations, or use --all.")
    if as_json and output in (None, "-"):
        raise click.UsageError("--json needs a file: name one with -o.")
    with open_store.open_existing(path or out.settings.database) as db:
        ids = None if every else [session_choice.find(db, name).id for name in conversations]
        report = None
        with _output(out, output) as target:
            if form in render.FORMS:
                db.admin.export_pages(target, ids, form)
            else:
                progress = out.percentage("exporting")
                report = db.admin.export_to(target, ids, progress=progress)
    out.progress("")
    whole = isinstance(target, pathlib.Path)
    if report:
        _print_notes(out, report, whole)
    if as_json:
        out.json({"file": output, "format": form, **(msgspec.to_builtins(report) if report else {})})
    elif output not in (None, "-"):
        out.note(f"{_counted(report, whole) if report else 'Conversations'} written to {output}.")


def _counted(report: reports.ExportReport, whole: bool) -> str:
    parts = [safe_text.count(report.conversations, "conversation"), safe_text.count(report.messages, "message")]
    kept = len(report.blobs) - len(report.lost_blobs) if whole else 0
    return " with ".join(parts) + (f" and {safe_text.count(kept, 'attachment')}" if kept else "")


def _print_notes(out: console.Console, report: reports.ExportReport, whole: bool) -> None:
    for origin in report.origins:
        out.note(f"{origin} is included, because a branch needs it.")
    if report.blobs and not whole:
        count = safe_text.count(len(report.blobs), "attachment")
        out.note(f"{count} ({safe_text.size(report.blob_bytes)}) not exported: use -o to export them.")
    for digest in report.lost_blobs:
        out.note(f"The attachment {digest} is missing or damaged, and was not exported.")


@contextlib.contextmanager
def _output(out: console.Console, path: str | None) -> Iterator[transfer_export.Target]:
    """Yield standard output, a path that is written atomically, or a device or pipe, which is never replaced."""
    if path is None or path == "-":
        if out.tty:
            yield lambda piece: out.out.write("\n".join(safe_text.safe(line) for line in piece.split("\n")))
        else:
            binary = getattr(out.out, "buffer", None)  # for UTF-8, whatever the encoding of the terminal is
            yield (lambda piece: binary.write(piece.encode())) if binary else out.out.write
        return
    try:
        if not os.path.exists(path) or os.path.isfile(path):
            yield pathlib.Path(path)
        else:
            with open(path, "wb") as file:
                yield lambda piece: file.write(piece.encode())
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        raise errors.HoldfastError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}.") from error


# --- import --------------------------------------------------------------------------------------------


@click.command(name="import")
@click.argument("file", metavar="FILE")
@lazy_group.database
@lazy_group.as_json
@click.option(
    "--revive", is_flag=True, help="Import conversations that were deleted or pruned here under new ids (ID~2)."
)
@click.pass_obj
def import_(out: console.Console, file: str, path: str | None, as_json: bool, revive: bool) -> int:
    """Import the conversations of an export. FILE may be - for standard input.

    Attachments are read from FILE.blobs. Existing conversations are not changed, so an import can be repeated.
    Conversations that were deleted or pruned here are imported only with --revive. Exits with 1 if a conversation was
    refused.
    """

    target = path or out.settings.database
    with _input(file) as lines, store.SessionDB(target) as db:
        report = db.admin.import_from(lines, revive=revive, progress=lambda done, _: out.progress(f"{done:,} messages"))
    out.progress("")
    if as_json:
        lost = {"blobs": report.blobs, "lost_blobs": list(report.lost_blobs)}
        counts = {"messages": report.messages, "ok": report.ok, "outcomes": _outcomes_to_json(report)}
        out.json({"database": hide_password(target), **counts, **lost})
    else:
        _summary(out, report)
        _missing(out, report.lost_blobs, file)
    return 0 if report.ok else 1


@contextlib.contextmanager
def _input(path: str) -> Iterator[IO[bytes] | pathlib.Path]:
    """Yield a file as its path, because attachments are next to it; standard input or a pipe as a stream."""
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


def _outcomes_to_json(report: reports.ImportReport) -> list[dict[str, Any]]:
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
    counts = {name: sum(one.outcome == name for one in report.outcomes) for name in _LABELS}
    counted = [f"{number:,} {_LABELS[name]}" for name, number in counts.items() if number or name == "imported"]
    messages = safe_text.count(report.messages, "message")
    messages += f" and {safe_text.count(report.blobs, 'attachment')}" if report.blobs else ""
    out.print(f"{', '.join(counted)}; {messages} imported.")
    gone = sum(isinstance(one.error, errors.ConversationDeleted) for one in report.outcomes)
    if gone:
        were = "was" if gone == 1 else "were"
        out.note(f"{gone:,} {were} deleted or pruned here. Use --revive to import under new ids (ID~2).")


def _missing(out: console.Console, lost: Sequence[str], file: str) -> None:
    for digest in lost[:MAX_LINES]:
        out.note(f"The attachment {digest} is missing.")
    if lost:
        more = f"{len(lost):,} attachments are missing; --json lists them. " if len(lost) > MAX_LINES else ""
        from_pipe = "A pipe has no attachments: import a file written by `sessions export -o`."
        from_file = f"Copy {file}.blobs from the export next to the file, and import it again."
        out.note(more + (from_file if os.path.isfile(file) else from_pipe))


_LABELS = {
    "imported": "imported",
    "already_there": "already there",
    "conflict": "exist with other content",
    "refused": "refused",
}


def _remarks(outcome: reports.ImportOutcome) -> Iterator[str]:
    name = outcome.conversation_id
    if outcome.error:
        yield f"{name}: {outcome.error}" if name and outcome.outcome == "refused" else str(outcome.error)
    if outcome.kept_as:
        yield f"{name} was deleted here; it was imported as {outcome.kept_as}."
    if outcome.title:
        yield f"{name} has the new title {outcome.title!r}, because its own is taken."
    for route in outcome.routes:
        yield f"{name}: the route {route!r} exists here and was not changed."
