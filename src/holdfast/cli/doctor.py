"""`holdfast doctor`: whether the store keeps its promises, and what to do where it does not.

It looks at the files before it opens them, since opening mends some of what it would report. Nothing
else is changed unless `--fix` is given, and a database that does not exist is not made.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import stat
from functools import partial
from typing import Any, Literal, NamedTuple

import click
import msgspec

import holdfast
from holdfast import app, errors, types
from holdfast.cli import console, lazy, mending, text
from holdfast.store import db as store

LARGE_WAL = 256 * 1024 * 1024
FILES = ("", "-wal", "-shm", ".queue")
SHOWN = 20

NEXT: tuple[tuple[type[errors.HoldfastError], str], ...] = (
    (
        errors.StoreCorrupt,
        "If it is the right file: stop every process that uses it, keep a copy of all its files, and restore a backup.",
    ),
    (errors.StoreBusy, "Find the process that holds it (see leases, or `fuser`), let it finish, and try again."),
    (errors.StoreFull, "Free some space on that disk, and try again."),
    (errors.SchemaTooNew, "Upgrade Holdfast: pip install --upgrade holdfast"),
    (errors.StoreBroken, "Stop every process that uses it, then open it with the newest Holdfast."),
)


class Finding(NamedTuple):
    """Something worth knowing. A problem makes the doctor's answer no; a note does not."""

    level: Literal["problem", "note"]
    what: str
    next: str


class Examination(NamedTuple):
    """All the doctor has to say, in the shape --json prints it."""

    ok: bool
    findings: list[Finding]
    store: dict[str, Any]
    versions: dict[str, str | None]
    leases: list[types.LeaseHeld]
    report: types.Report | None
    search: dict[str, Any] | None
    repairs: list[mending.Repair]
    done: list[str]


@click.command(name="doctor")
@lazy.database
@lazy.as_json
@click.option("--fix", is_flag=True, help="Do the repairs that are offered, then look again.")
@click.pass_obj
def command(out: console.Console, path: str | None, as_json: bool, fix: bool) -> int:
    """Check every promise over the whole store, its files, leases and search index.

    Exits with 0 when all is well, and with 1 when there is a problem (that --fix did not put right).
    """
    target = path or out.settings.database
    found = examine(target, out)
    if fix and found.repairs:
        done = mend(target, found.repairs, out)
        found = examine(target, out)._replace(done=done)
    if as_json:
        out.json(_shape(found))
    else:
        _print(out, found)
    return 0 if found.ok else 1


# --- examining ---------------------------------------------------------------------------------------


def examine(target: str, out: console.Console) -> Examination:
    findings: list[Finding] = []
    facts: dict[str, Any] = {"path": target}
    leases: list[types.LeaseHeld] = []
    report: types.Report | None = None
    search: dict[str, Any] | None = None
    repairs: list[mending.Repair] = []
    before = modes(target)
    try:
        with app.open_to_look(target) as db:
            leases = _leases(db, findings)
            search = db.search_facts()
            repairs = list(mending.offered(db, sum(lease.state != "held" for lease in leases)))
            report = db.fsck(lambda done, total: out.progress(f"checking {done:,} of {total:,} messages"))
            facts = db.facts()
    except errors.HoldfastError as error:
        findings.append(Finding("problem", str(error), _next(error)))
    finally:
        out.progress("")
    findings += [_broken(violation) for violation in report.violations] if report else []
    # What did not open may be a file of another program, whose modes are its own affair.
    findings += _about_files(target, before) + _about_wal(facts) + _about_search(search) if report else []
    facts["directory"] = _directory(target)
    ok = not any(finding.level == "problem" for finding in findings)
    return Examination(ok, findings, facts, _versions(findings), leases, report, search, repairs, [])


def mend(target: str, repairs: list[mending.Repair], out: console.Console) -> list[str]:
    """Do what was offered; what came of each."""
    done = []
    with app.open_to_look(target) as db:
        for repair in repairs:
            done.append(repair.do(db, partial(_mending, out, repair.name)))
            out.progress("")
    return done


def _mending(out: console.Console, name: str, done: int, total: int) -> None:
    out.progress(f"{name}: {done:,} of {total:,}")


def _next(error: errors.HoldfastError) -> str:
    return next(
        (advice for kind, advice in NEXT if isinstance(error, kind)), "Do as it says, then run `holdfast doctor` again."
    )


def _broken(violation: types.Violation) -> Finding:
    where = f" in {violation.conversation_id}" if violation.conversation_id else ""
    advice = (
        "Stop every process that uses it, keep a copy of all its files, and restore a backup (`holdfast restore`) "
        "or save what can be read (`holdfast salvage`)."
    )
    return Finding("problem", f"{violation.promise} is broken{where}: {violation.detail}.", advice)


def _leases(db: store.SessionDB, findings: list[Finding]) -> list[types.LeaseHeld]:
    try:
        found = db.leases()
    except errors.LeasesUnavailable as error:
        findings.append(Finding("problem", str(error), "Stop every process that uses the store, then open it again."))
        return []
    for lease in found:
        if lease.state != "held":
            what = f"The {lease.purpose} lease of {lease.conversation_id} is {_state(lease)}."
            findings.append(Finding("note", what, "Nothing: whoever asks next takes it over."))
    return found


def _versions(findings: list[Finding]) -> dict[str, str | None]:
    sqlite: str | None = None
    try:
        with store.SessionDB(":memory:") as scratch:
            sqlite = scratch.facts()["version"]
    except errors.HoldfastError as error:
        findings.append(Finding("problem", str(error), "Reinstall Holdfast: pip install --force-reinstall holdfast"))
    return {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "apsw": importlib.metadata.version("apsw"),
        "sqlite": sqlite,
    }


# --- files -------------------------------------------------------------------------------------------


def modes(target: str) -> dict[str, os.stat_result]:
    """The files of a store that exist, without opening any."""
    found = {}
    for suffix in FILES:
        try:
            found[target + suffix] = os.stat(target + suffix)
        except (OSError, ValueError):
            continue
    return {path: entry for path, entry in found.items() if stat.S_ISREG(entry.st_mode)}


def _about_files(target: str, before: dict[str, os.stat_result]) -> list[Finding]:
    if os.name != "posix":
        return []
    findings = []
    now = modes(target)
    for path, was in before.items():
        entry = now.get(path, was)
        if entry.st_mode & 0o077:
            what = f"Others may use {path} (mode {stat.S_IMODE(entry.st_mode):04o})."
            findings.append(Finding("problem", what, f"chmod 600 {path}"))
        elif was.st_mode & 0o077:
            what = f"Others could use {path} (mode {stat.S_IMODE(was.st_mode):04o}); opening it has closed it to them."
            findings.append(Finding("note", what, "Nothing, unless somebody has read it meanwhile."))
        if entry.st_uid != os.geteuid():
            what = f"{path} belongs to another user (uid {entry.st_uid})."
            findings.append(Finding("note", what, "Run Holdfast as that user, and as no other."))
    return findings


def _about_wal(facts: dict[str, Any]) -> list[Finding]:
    wal = (facts.get("files") or {}).get("-wal")
    if not wal or wal["bytes"] <= LARGE_WAL:
        return []
    what = f"The write-ahead log has grown to {text.size(wal['bytes'])}: some process has been reading for very long."
    return [Finding("note", what, "End that process; the log shrinks with the next writes.")]


def _about_search(search: dict[str, Any] | None) -> list[Finding]:
    if not search or not search["complaints"]:
        return []
    what = f"The search index is damaged ({search['complaints'][0]})."
    return [Finding("problem", what, "Run `holdfast doctor --fix`, or just search: it is made again by itself.")]


def _directory(target: str) -> dict[str, Any] | None:
    folder = os.path.dirname(os.path.abspath(target))
    try:
        return {"path": folder, "mode": f"{stat.S_IMODE(os.stat(folder).st_mode):04o}"}
    except (OSError, ValueError):
        return None


# --- telling -----------------------------------------------------------------------------------------


def _shape(found: Examination) -> dict[str, Any]:
    report = msgspec.to_builtins(found.report)
    return {
        "ok": found.ok,
        "findings": [finding._asdict() for finding in found.findings],
        "store": found.store,
        "versions": found.versions,
        "leases": msgspec.to_builtins(found.leases),
        "report": {"ok": found.report.ok, **report} if found.report else None,
        "search": found.search,
        "repairs": [{"name": repair.name, "would": repair.would} for repair in found.repairs],
        "done": found.done,
    }


def _print(out: console.Console, found: Examination) -> None:
    for name, line in _lines(found):
        out.print(text.safe(f"{name:<11} {line}"))
    problems = [finding for finding in found.findings if finding.level == "problem"]
    for finding in found.findings[:SHOWN]:
        out.print()
        out.prose(f"{finding.level}: {finding.what}", "red" if finding.level == "problem" else "yellow")
        out.prose(f"   next: {finding.next}")
    if len(found.findings) > SHOWN:
        out.print(f"\n{out.glyphs.more} and {len(found.findings) - SHOWN:,} more; --json has them all.")
    for line in found.done:
        out.prose(f"done: {line}", "green")
    if found.repairs:
        out.print()
        out.print("`holdfast doctor --fix` would:")
        for repair in found.repairs:
            out.prose(f"   {repair.would}")
    out.print()
    verdict = text.count(len(problems), "problem") + " found." if problems else "No problems found."
    out.print(out.style(verdict, "red" if problems else "green"))


def _lines(found: Examination) -> list[tuple[str, str]]:
    """The state of things, line by line: a name and what is to be said of it."""
    lines = [("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items()))]
    facts = found.store
    lines.append(("database", str(facts["path"])))
    if "engine" in facts:
        place = facts.get("filesystem") or "file system unknown"
        lines.append(("engine", f"{facts['engine']}, {facts['journal']}, survives {facts['durability']}, {place}"))
    for suffix, entry in (facts.get("files") or {}).items():
        if entry:
            lines.append(("", f"{suffix:<7} {text.size(entry['bytes'])}, mode {entry['mode']}"))
    if facts["directory"]:
        lines.append(("directory", f"{facts['directory']['path']}, mode {facts['directory']['mode']}"))
    if found.report:
        lines.append(("contents", _contents(found.report)))
    if found.search:
        lines.append(("search", _indexed(found.search)))
    return lines + [("lease", f"{lease.conversation_id} {lease.purpose}: {_state(lease)}") for lease in found.leases]


def _contents(report: types.Report) -> str:
    return (
        f"{text.count(report.conversations, 'conversation')}, {text.count(report.sessions, 'session')}, "
        f"{text.count(report.messages, 'message')}, checked in {report.seconds:.2f} s"
    )


def _indexed(search: dict[str, Any]) -> str:
    if not search["exists"]:
        return "no index yet; the first search makes it"
    if search["complaints"]:
        return "damaged"
    return f"{text.count(search['behind'], 'message')} behind" if search["behind"] else "up to date"


def _state(lease: types.LeaseHeld) -> str:
    who = f"{lease.holder} (pid {lease.pid} on {lease.host})"
    if lease.state == "held":
        return f"held by {who} for {lease.expires_in:.0f} s more"
    return f"expired, held last by {who}" if lease.state == "expired" else f"dead: {who} is gone"
