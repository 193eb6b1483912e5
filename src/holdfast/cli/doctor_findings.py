"""What `holdfast doctor` may find: each with a level, a kind that programs can rely on, and what to do next."""

from __future__ import annotations

import itertools
import os
import shlex
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from holdfast import config, errors, promises, safe_text, time_format, types
from holdfast.cli import config_check, open_files
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.driver import SchemaFault, hide_password, is_postgres
from holdfast.store.sqlite import paths as sqlite_paths

LARGE_WAL = 256 * 1024 * 1024
FILES = ("", "-wal", "-shm", ".queue")
NOTHING = "Nothing: whoever asks next takes it over. `holdfast doctor --fix` frees it now."


class Finding(NamedTuple):
    """Something worth knowing. A problem makes the doctor's answer no; a note does not."""

    level: Literal["problem", "note"]
    kind: str
    what: str
    next: str


def of_settings(wrong: Sequence[config_check.Mistake]) -> list[Finding]:
    advice = "Put it right; `holdfast config edit` opens your file. Until then no other command goes by it."
    return [Finding("problem", "settings", str(each), advice) for each in wrong]


# --- what does not open, or does not keep its promises -------------------------------------------------


def of_error(error: errors.HoldfastError, target: str) -> Finding:
    """Why the store could not be examined."""
    advice: tuple[tuple[type[errors.HoldfastError], str, str], ...] = (
        (errors.StoreCorrupt, "damage", f"If it is the right file: {rescue(target, opens=False)}"),
        (errors.StoreBusy, "busy", "Find the process that holds it (see `used by`), let it finish, and try again."),
        (errors.StoreUnreachable, "server", "See that the server runs and can be reached, and try again."),
        (errors.StoreFull, "full", "Free some space on that disk, and try again."),
        (errors.SchemaTooNew, "version", "Upgrade Holdfast: pip install --upgrade holdfast"),
        (errors.StoreBroken, "schema", "Stop every process that uses it, then open it with the newest Holdfast."),
        (errors.HoldfastError, "store", "Do as it says, then run `holdfast doctor` again."),
    )
    kind, what = next((kind, what) for type_, kind, what in advice if isinstance(error, type_))
    return Finding("problem", kind, str(error), what)


def rescue(target: str, *, opens: bool) -> str:
    """The way out of a damaged file, to be copied and run; what is on a server, its keeper brings back."""
    if is_postgres(target):
        return (
            "stop every process that uses it, and bring back a backup of the server. With a backup of Holdfast: make "
            "an empty schema or database, and `holdfast restore BACKUP --db` its address."
        )
    path = os.path.abspath(target)
    stem, end = os.path.splitext(path)
    again = f"holdfast restore BACKUP --db {shlex.quote(path)}"
    # What opens is replaced in place, and is no backup of anything; what does not has to go out of the way.
    restore = f"{again} --no-keep" if opens else " && ".join([*_moves(path), again])
    return (
        f"stop every process that uses it, and keep a copy of all its files. With a backup: `{restore}`. Without: "
        f"`holdfast salvage {shlex.quote(path)} {shlex.quote(f'{stem}-salvaged{end}')}` "
        "reads what can be read into a new store, and lists what was lost."
    )


def _moves(path: str) -> Iterator[str]:
    """The database and its log, under one new name, so that a salvage can still read them together."""
    aside = next(name for name in _asides(path) if not os.path.lexists(name))
    for suffix in FILES:
        if os.path.lexists(path + suffix):
            yield f"mv {shlex.quote(path + suffix)} {shlex.quote(aside + suffix)}"


def _asides(path: str) -> Iterator[str]:
    yield f"{path}.damaged"
    yield from (f"{path}.damaged-{number}" for number in itertools.count(2))


def of_report(report: types.Report, target: str) -> Iterator[Finding]:
    """Every promise that is broken. What is wrong with the schema is told of by itself."""
    for violation in report.violations:
        if violation.promise != "schema":
            where = f" in {violation.conversation_id}" if violation.conversation_id else ""
            what = f"{violation.promise} is broken{where}: {violation.detail}."
            advice = attachment(target) if violation.promise == "blobs" else rescue(target, opens=True)
            yield Finding("problem", "damage", what, advice[0].upper() + advice[1:])


def attachment(target: str) -> str:
    """The way to get back what a message names, where the database itself is sound."""
    if is_postgres(target):
        again = f"holdfast sessions import EXPORT --db {shlex.quote(hide_password(target))}"
        return f"import an export that has it in its folder: `{again}` brings back what is missing."
    path = os.path.abspath(target)
    return (
        f"copy the file of this name from the folder of a backup (BACKUP.blobs) to the same place in {path}.blobs, or "
        f"import an export that has it in its folder: `holdfast sessions import EXPORT --db {shlex.quote(path)}` "
        "brings back what is missing."
    )


def damaged(report: types.Report) -> bool:
    """Whether the database itself is not what it was; its schema can be made again, attachments lie beside it."""
    return any(violation.promise not in ("schema", "blobs") for violation in report.violations)


def of_schema(faults: Sequence[SchemaFault]) -> Iterator[Finding]:
    """Promises rest on the schema: one that was changed keeps other promises, or none."""
    for fault in faults:
        what = f"In the database, {fault}."
        if fault.repairable:
            yield Finding("problem", "schema", what, "Run `holdfast doctor --fix`: it is made again as declared.")
        elif fault.kind == "trigger":
            advice = f"If nobody put it there on purpose, remove it: DROP TRIGGER {fault.name}"
            yield Finding("problem", "schema", what, advice)
        else:
            advice = (
                "Nothing, if an older version made this store: a table takes new columns, not new rules. To have "
                "them all, export every conversation and import it into a new store."
            )
            yield Finding("note", "schema", what, advice)


def of_standing(standing: Mapping[str, Any]) -> Iterator[Finding]:
    """What `holdfast db status` says too: how the database is set up, and which promises that breaks."""
    for breach in promises.find_breaches(standing):
        broken = " and ".join(breach.promises)
        what = f"{broken} would be broken {breach.when}: {breach.why}."
        yield Finding("problem", "promise", what, breach.remedy)
    for note in promises.find_notes(standing):
        yield Finding("note", "server", *note)


# --- what was left behind ------------------------------------------------------------------------------


def of_leases(leases: Sequence[types.LeaseHeld]) -> Iterator[Finding]:
    for lease in leases:
        if lease.state != "held":
            what = f"The {lease.purpose} lease of {lease.conversation_id} is {lease_state(lease)}."
            yield Finding("note", "lease", what, NOTHING)


def lease_state(lease: types.LeaseHeld) -> str:
    since = f" since {time_format.when(lease.acquired_at)}" if lease.acquired_at is not None else ""
    who = f"{lease.holder} (pid {lease.pid} on {lease.host}){since}"
    if lease.state == "held":
        return f"held by {who} for {lease.expires_in:.0f} s more"
    return f"expired, held last by {who}" if lease.state == "expired" else f"dead: {who} is gone"


def of_leftovers(leftovers: Sequence[str]) -> Iterator[Finding]:
    if leftovers:
        more = f", and {len(leftovers) - 1:,} more" if len(leftovers) > 1 else ""
        what = f"A process died while it wrote {leftovers[0]}{more}. Nothing reads that."
        yield Finding("note", "leftover", what, "Run `holdfast doctor --fix`: it removes what dead processes left.")


def of_visitors(found: Sequence[open_files.Visitor] | None) -> Iterator[Finding]:
    for each in found or ():
        if each.stale:
            what = f"Process {each.pid} ({each.command}) has a file open that was at this path before."
            yield Finding("note", "process", what, "End it and start it again; what it reads is not this store.")


def of_removals(removed_at: float | None, served: bool) -> Iterator[Finding]:
    if removed_at is not None:
        whose = "the server's files" if served else "the files"
        what = f"Text was removed {safe_text.when(removed_at)} that may still be found in {whose}."
        file = "Run `holdfast doctor --fix`: it clears the files of what was removed."
        server = (
            "Vacuum frees its room, and what is written later goes over it. `holdfast db scrub`, as the owner of the "
            "tables, takes it out now; everybody waits meanwhile."
        )
        yield Finding("note", "scrub", what, server if served else file)


def of_claim(claimed_at: str | None) -> Iterator[Finding]:
    """A scheduled backup that was begun and not finished."""
    try:
        since = time.time() - float(claimed_at or "")
    except ValueError:
        return
    if since > backup_schedule.CLAIM_TTL_SECONDS:
        what = f"A scheduled backup was begun {safe_text.when(float(claimed_at or ''))} and never finished."
        yield Finding("note", "backup", what, "Nothing: the next one that is due goes ahead.")


def of_schedule(kept: config.Backup, done_at: str | None, failed_at: str | None) -> Iterator[Finding]:
    """Backups that the settings ask for and that do not come."""
    if kept.folder is None:
        return
    what = backup_schedule.overdue_warning(done_at, failed_at, kept.every_hours, time.time())
    if what is not None:
        advice = f"Run `holdfast backup`: it makes one in {kept.folder} now, or says what is in the way."
        yield Finding("note", "backup", what, advice)


# --- files ---------------------------------------------------------------------------------------------


def modes(target: str) -> dict[str, os.stat_result]:
    """The files of a store that exist, without opening any."""
    found = {}
    for suffix in FILES:
        try:
            found[target + suffix] = os.stat(target + suffix)
        except (OSError, ValueError):
            continue
    return {path: entry for path, entry in found.items() if stat.S_ISREG(entry.st_mode)}


def of_files(target: str, before: dict[str, os.stat_result]) -> Iterator[Finding]:
    if os.name != "posix":
        return
    now = modes(target)
    for path, was in before.items():
        entry = now.get(path, was)
        if entry.st_mode & 0o077:
            what = f"Others may use {path} (mode {stat.S_IMODE(entry.st_mode):04o})."
            yield Finding("problem", "mode", what, f"chmod 600 {shlex.quote(path)}")
        elif was.st_mode & 0o077:
            what = f"Others could use {path} (mode {stat.S_IMODE(was.st_mode):04o}); opening it has closed it to them."
            yield Finding("note", "mode", what, "Nothing, unless somebody has read it meanwhile.")
        if entry.st_uid != os.geteuid():
            what = f"{path} belongs to another user (uid {entry.st_uid})."
            yield Finding("note", "owner", what, "Run Holdfast as that user, and as no other.")


def of_disk(facts: dict[str, Any]) -> Iterator[Finding]:
    """Whether a store in a file can be written at all."""
    if facts.get("read_only"):
        what = f"{facts['path']} can only be read: {facts['read_only']}."
        yield Finding("problem", "read-only", what, "Make the file and its folder writable for this user.")
    elif facts.get("files") and sqlite_paths.is_full(os.path.dirname(facts["path"])):
        what = f"The disk of {facts['path']} is full, or a quota is reached: no message can be stored."
        yield Finding("problem", "full", what, "Free some space on that disk.")


def of_wal(facts: dict[str, Any]) -> Iterator[Finding]:
    wal = (facts.get("files") or {}).get("-wal")
    if wal and wal["bytes"] > LARGE_WAL:
        size = safe_text.size(wal["bytes"])
        what = f"The write-ahead log has grown to {size}: some process has been reading for very long."
        yield Finding("note", "wal", what, "End that process (see `used by`); the log shrinks with the next writes.")


def of_search(search: dict[str, Any]) -> Iterator[Finding]:
    if search["errors"]:
        what = f"The search index is damaged ({search['errors'][0]})."
        advice = "Run `holdfast doctor --fix`, or just search: it is made again by itself."
        yield Finding("problem", "search", what, advice)
