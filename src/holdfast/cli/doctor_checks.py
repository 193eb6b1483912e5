"""The checks of `holdfast doctor`, and the repairs of `holdfast doctor --fix`.

Each finding has a level, a kind that programs can rely on, and advice. Each repair describes what it would do before it
runs, and none changes a message: `holdfast salvage` recovers a damaged log into a new store. Until then, only repairs
that move nothing in the file are offered, because salvage finds data by its position.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shlex
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from holdfast import config, errors, promises, safe_text, types
from holdfast.store import db as store
from holdfast.store import store_meta
from holdfast.store.backup import atomic_file
from holdfast.store.backup import schedule as backup_schedule
from holdfast.store.driver import SchemaFault, hide_password, is_postgres
from holdfast.store.sqlite import paths as sqlite_paths

LARGE_WAL_BYTES = 256 * 1024 * 1024
PROC = "/proc"
STORE_SUFFIXES = ("", "-wal", "-shm", ".queue")
# The minimum free space, in bytes and as a share of the database, for which it is rewritten.
MIN_FREE_BYTES, MIN_FREE_SHARE = 64 * 1024 * 1024, 0.25
SAFE_WHILE_DAMAGED = frozenset({"schema", "search"})
"""The repairs that move nothing in the file."""
STALE_LEASE = "Nothing to do: the next process takes it over. `holdfast doctor --fix` frees it now."


class Finding(NamedTuple):
    """A problem, which makes the doctor exit with 1, or a note."""

    level: Literal["problem", "note"]
    kind: str
    what: str
    next: str


Progress = Callable[[int, int], None]


class Repair(NamedTuple):
    """A repair; `would` completes "doctor --fix would …"."""

    name: str
    would: str
    run: Callable[[store.SessionDB, Progress], str]


Result = Iterator[Finding | Repair]


# --- errors, damage and broken promises -------------------------------------------------


def explain_error(error: errors.HoldfastError, target: str) -> Finding:
    """Return a finding for the error that stopped the examination."""
    advice: tuple[tuple[type[errors.HoldfastError], str, str], ...] = (
        (errors.StoreCorrupt, "damage", f"If it is the right file: {recovery_steps(target, opens=False)}"),
        (errors.StoreBusy, "busy", "Wait for the process that holds the lock (see `used by`), and try again."),
        (errors.StoreUnreachable, "server", "Check that the server is running and reachable, and try again."),
        (errors.StoreFull, "full", "Free some space on that disk, and try again."),
        (errors.SchemaTooNew, "version", "Upgrade Holdfast, as you installed it."),
        (errors.StoreBroken, "schema", "Stop every process that uses it, then open it with the newest Holdfast."),
        (errors.HoldfastError, "store", "Follow the message, then run `holdfast doctor` again."),
    )
    kind, what = next((kind, what) for type_, kind, what in advice if isinstance(error, type_))
    return Finding("problem", kind, str(error), what)


def recovery_steps(target: str, *, opens: bool) -> str:
    """Return commands to recover a damaged file; the data of a server is restored by its administrator."""
    if is_postgres(target):
        return (
            "stop every process that uses it, and restore a backup of the server. With a backup made by Holdfast: "
            "create an empty schema or database, and run `holdfast restore BACKUP --db ADDRESS`."
        )
    path = os.path.abspath(target)
    stem, end = os.path.splitext(path)
    again = f"holdfast restore BACKUP --db {shlex.quote(path)}"
    # A store that opens is replaced in place; otherwise its files must be renamed first, alike, so that a salvage can
    # still read them.
    renamed = f"{path}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    found = [suffix for suffix in STORE_SUFFIXES if os.path.lexists(path + suffix)]
    moves = [f"mv {shlex.quote(path + suffix)} {shlex.quote(renamed + suffix)}" for suffix in found]
    restore = f"{again} --no-keep" if opens else " && ".join([*moves, again])
    return (
        f"stop every process that uses it, and keep a copy of all its files. With a backup: `{restore}`. Without: "
        f"`holdfast salvage {shlex.quote(path)} {shlex.quote(f'{stem}-salvaged{end}')}` "
        "recovers readable data into a new store, and lists what was lost."
    )


def check_report(report: types.Report, target: str) -> Iterator[Finding]:
    """Yield the broken promises of a report, except those of the schema."""
    for violation in report.violations:
        if violation.promise != "schema":
            where = f" in {violation.conversation_id}" if violation.conversation_id else ""
            what = f"{violation.promise} is broken{where}: {violation.detail}."
            advice = attachment_steps(target) if violation.promise == "blobs" else recovery_steps(target, opens=True)
            yield Finding("problem", "damage", what, advice[0].upper() + advice[1:])


def attachment_steps(target: str) -> str:
    """Return the steps to recover a missing attachment."""
    if is_postgres(target):
        again = f"holdfast sessions import EXPORT --db {shlex.quote(hide_password(target))}"
        return f"import an export that contains it: `{again}` restores what is missing."
    path = os.path.abspath(target)
    return (
        f"copy the file of this name from the folder of a backup (BACKUP.blobs) to {path}.blobs, or "
        f"import an export that contains it: `holdfast sessions import EXPORT --db {shlex.quote(path)}` "
        "restores what is missing."
    )


def is_damaged(report: types.Report) -> bool:
    """Return whether the database itself is damaged, and not only its schema or its attachments."""
    return any(violation.promise not in ("schema", "blobs") for violation in report.violations)


def check_schema(faults: Sequence[SchemaFault]) -> Result:
    """Yield differences between the schema and its declaration: constraints enforce the promises."""
    for fault in faults:
        what = f"In the database, {fault}."
        if fault.repairable:
            yield Finding("problem", "schema", what, "Run `holdfast doctor --fix` to create it again as declared.")
        elif fault.kind == "trigger":
            advice = f"If it was not added on purpose, remove it: DROP TRIGGER {fault.name}"
            yield Finding("problem", "schema", what, advice)
        else:
            advice = (
                "Nothing to do if an older version created this store: constraints cannot be added to existing tables. "
                "To have them all, export every conversation and import it into a new store."
            )
            yield Finding("note", "schema", what, advice)
    if altered := ", ".join(f"the {fault.kind} {fault.name}" for fault in faults if fault.repairable):

        def repair(db: store.SessionDB, _: Progress) -> str:
            db.admin.repair_schema()
            return f"created again: {altered}"

        yield Repair("schema", f"create {altered} again as declared", repair)


def check_configuration(status: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the promises that the configuration of the database breaks, as in `holdfast db status`."""
    for breach in promises.find_breaches(status):
        broken = " and ".join(breach.promises)
        what = f"{broken} would be broken {breach.when}: {breach.why}."
        yield Finding("problem", "promise", what, breach.remedy)
    for note in promises.find_notes(status):
        yield Finding("note", "server", *note)


# --- leases, leftovers, backups and search --------------------------------------------------------------


def check_leases(leases: Sequence[types.LeaseHeld]) -> Result:
    stale = [lease for lease in leases if lease.state != "held"]
    for lease in stale:
        what = f"The {lease.purpose} lease of {lease.conversation_id} is {lease_state(lease)}."
        yield Finding("note", "lease", what, STALE_LEASE)
    if stale:
        would = f"free {safe_text.count(len(stale), 'lease')} that no process holds any more"
        yield Repair("leases", would, lambda db, _: f"freed {safe_text.count(db.admin.free_stale_leases(), 'lease')}")


def lease_state(lease: types.LeaseHeld) -> str:
    since = f" since {safe_text.date(lease.acquired_at)}" if lease.acquired_at is not None else ""
    who = f"{lease.holder} (pid {lease.pid} on {lease.host}){since}"
    if lease.state == "held":
        return f"held by {who} for {lease.expires_in:.0f} s more"
    return f"expired, held last by {who}" if lease.state == "expired" else f"dead: {who} is gone"


def check_leftovers(path: str) -> Result:
    """Yield the temporary files next to a store whose processes died."""
    folders = [folder for folder in (os.path.dirname(path), f"{path}.blobs") if os.path.isdir(folder)]
    leftovers = [each for folder in folders for each in atomic_file.find_abandoned(folder)]
    if leftovers:
        more = f", and {len(leftovers) - 1:,} more" if len(leftovers) > 1 else ""
        what = f"A process died while it wrote {leftovers[0]}{more}. These files are not used."
        yield Finding("note", "leftover", what, "Run `holdfast doctor --fix` to remove them.")

        def sweep(_db: store.SessionDB, _: Progress) -> str:
            removed = sum(atomic_file.remove_abandoned(folder) for folder in folders)
            return f"removed {safe_text.count(removed, 'file')} left by processes that died"

        yield Repair(
            "leftovers", f"remove {safe_text.count(len(leftovers), 'file')} left by processes that died", sweep
        )


def check_store_users(found: Sequence[StoreUser] | None) -> Iterator[Finding]:
    for each in found or ():
        if each.stale:
            what = f"Process {each.pid} ({each.command}) uses a file that was at this path before."
            yield Finding("note", "process", what, "Restart it: it does not use this store.")


def check_scrubbed(db: store.SessionDB) -> Result:
    try:
        removed_at = db.admin.unscrubbed_since()
    except (errors.StoreCorrupt, errors.StoreBroken):
        return  # fsck reports it.
    if removed_at is None:
        return
    what = f"Text that was deleted {safe_text.date(removed_at)} may still be in the files of the store."
    if is_postgres(db.path):
        advice = (
            "Vacuum frees its space, and later writes overwrite it. To remove it now, run `holdfast db scrub` as the "
            "owner of the tables; other clients wait meanwhile."
        )
        yield Finding("note", "scrub", what, advice)
        return

    def scrub(db: store.SessionDB, _: Progress) -> str:
        db.admin.scrub()
        return "removed deleted and redacted text from the files"

    yield Finding("note", "scrub", what, "Run `holdfast doctor --fix` to remove it from the files.")
    yield Repair("scrub", "remove deleted and redacted text from the files", scrub)


def check_backups(settings: config.BackupSection, db: store.SessionDB) -> Result:
    """Yield a scheduled backup that did not finish, and backups that are overdue."""
    with contextlib.suppress(ValueError):
        begun = float(db.admin.get_meta(store_meta.BACKUP_CLAIMED) or "")
        if time.time() - begun > backup_schedule.CLAIM_TTL_SECONDS:
            unfinished = f"A scheduled backup began {safe_text.date(begun)} and did not finish."
            yield Finding("note", "backup", unfinished, "Nothing to do: the next one runs when it is due.")
    done_at, failed_at = map(db.admin.get_meta, (store_meta.BACKUP_DONE, store_meta.BACKUP_FAILED))
    if settings.folder is not None and (
        what := backup_schedule.overdue_warning(done_at, failed_at, settings.every_hours, time.time())
    ):
        advice = f"Run `holdfast backup` to make one in {settings.folder} now, or to see why it fails."
        yield Finding("note", "backup", what, advice)


def check_search(search: dict[str, Any]) -> Result:
    if search["errors"]:
        what = f"The search index is damaged ({search['errors'][0]})."
        advice = "Run `holdfast doctor --fix` to rebuild it; the next search does that, too."
        yield Finding("problem", "search", what, advice)
        yield Repair(
            "search",
            "rebuild the damaged search index",
            lambda db, progress: (
                f"rebuilt the search index: {safe_text.count(db.admin.rebuild_search_index(progress), 'message')}"
            ),
        )
    elif search["behind"]:
        yield Repair(
            "search",
            f"index the {safe_text.count(search['behind'], 'message')} written since the last search",
            lambda db, progress: f"indexed {safe_text.count(db.admin.update_search_index(progress), 'message')}",
        )


def check_upkeep(db: store.SessionDB) -> Result:
    def run(db: store.SessionDB, _: Progress) -> str:
        done = db.admin.run_upkeep_once()
        ended, removed = done.get("orphans_ended", 0), done.get("ghosts_removed", 0)
        return (
            f"ended {safe_text.count(ended, 'continuation')}, deleted {safe_text.count(removed, 'empty conversation')}"
        )

    if db.admin.get_meta("upkeep_done_at") is None:
        yield Repair("upkeep", "end orphaned continuations, and delete conversations without messages", run)


# --- files ---------------------------------------------------------------------------------------------


def read_modes(target: str) -> dict[str, os.stat_result]:
    """Return the status of the files of a store, without opening them."""
    found = {}
    for path in (target + suffix for suffix in STORE_SUFFIXES):
        with contextlib.suppress(OSError, ValueError):
            found[path] = os.stat(path)
    return {path: entry for path, entry in found.items() if stat.S_ISREG(entry.st_mode)}


def check_modes(target: str, before: dict[str, os.stat_result]) -> Iterator[Finding]:
    """Yield the files of a store that other users can access, could access before, or own."""
    if os.name != "posix":
        return
    now = read_modes(target)
    for path, was in before.items():
        entry = now.get(path, was)
        if entry.st_mode & 0o077:
            what = f"Other users can access {path} (mode {stat.S_IMODE(entry.st_mode):04o})."
            yield Finding("problem", "mode", what, f"chmod 600 {shlex.quote(path)}")
        elif was.st_mode & 0o077:
            mode = f"{stat.S_IMODE(was.st_mode):04o}"
            what = f"Other users could access {path} (mode {mode}). Opening the store set its mode to 0600."
            yield Finding("note", "mode", what, "Nothing to do, unless another user has read it.")
        if entry.st_uid != os.geteuid():
            what = f"{path} belongs to another user (uid {entry.st_uid})."
            yield Finding("note", "owner", what, "Run Holdfast as that user only.")


def check_disk(facts: dict[str, Any]) -> Result:
    """Yield a read-only store, a full disk, a large WAL, and much unused space."""
    if facts.get("read_only"):
        what = f"{facts['path']} can only be read: {facts['read_only']}."
        yield Finding("problem", "read-only", what, "Make the file and its folder writable for this user.")
    elif facts.get("files") and sqlite_paths.is_full(os.path.dirname(facts["path"])):
        what = f"The disk of {facts['path']} is full, or a quota is reached: no message can be stored."
        yield Finding("problem", "full", what, "Free some space on that disk.")
    wal = (facts.get("files") or {}).get("-wal")
    if wal and wal["bytes"] > LARGE_WAL_BYTES:
        size = safe_text.size(wal["bytes"])
        what = f"The write-ahead log has grown to {size}, because a process has been reading for very long."
        yield Finding("note", "wal", what, "Stop that process (see `used by`); the log shrinks with the next writes.")
    free = _free_bytes(facts)
    if free >= MIN_FREE_BYTES and facts["free_pages"] >= MIN_FREE_SHARE * facts["pages"]:
        would = f"rewrite the database to free {safe_text.size(free)} of disk space; other processes wait meanwhile"
        yield Repair("room", would, _shrink)


def _shrink(db: store.SessionDB, _: Progress) -> str:
    before = _free_bytes(db.admin.info())
    db.admin.shrink()
    return f"freed {safe_text.size(before - _free_bytes(db.admin.info()))} of disk space"


def _free_bytes(facts: dict[str, Any]) -> int:
    return int(facts.get("free_pages", 0) * facts.get("page_size", 0))


# --- processes -------------------------------------------------------------------------------------------


class StoreUser(NamedTuple):
    """A process that has the database open; `stale` if its file is no longer the one at the path."""

    pid: int
    command: str
    stale: bool


def find_store_users(path: str) -> list[StoreUser] | None:
    """Return the other processes that have a SQLite store open, as far as this user may see; None without /proc."""
    if not os.path.isdir(f"{PROC}/self/fd"):
        return None
    real, found = os.path.realpath(path), []
    for pid in filter(str.isdigit, os.listdir(PROC)):
        # A process may end meanwhile, or belong to another user.
        with contextlib.suppress(OSError):
            folder, names = f"{PROC}/{pid}/fd", set[str]()
            for descriptor in os.listdir(folder):
                with contextlib.suppress(OSError):  # It may be closed meanwhile.
                    names.add(os.readlink(f"{folder}/{descriptor}"))
            if int(pid) != os.getpid() and names & {real, f"{real} (deleted)"}:
                command = pathlib.Path(f"{PROC}/{pid}/cmdline").read_bytes()[:500].replace(b"\0", b" ")
                found.append(StoreUser(int(pid), command.decode(errors="replace").strip(), real not in names))
    return sorted(found)
