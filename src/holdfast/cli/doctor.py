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
from typing import Any, NamedTuple

import click
import msgspec

import holdfast
from holdfast import config, errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import config_check, console, doctor_findings, doctor_repairs, lazy_group, open_files
from holdfast.store import db as store
from holdfast.store import store_meta
from holdfast.store.driver import SchemaFault, hide_password, is_postgres

SHOWN = 20


class Examination(NamedTuple):
    """All the doctor has to say, in the shape --json prints it."""

    ok: bool
    findings: list[doctor_findings.Finding]
    store: dict[str, Any]
    versions: dict[str, str | None]
    processes: list[open_files.Visitor] | None
    leases: list[types.LeaseHeld]
    report: types.Report | None
    search: dict[str, Any] | None
    repairs: list[doctor_repairs.Repair]
    done: list[str]


class Look(NamedTuple):
    """What only a store that opens can tell."""

    leases: list[types.LeaseHeld]
    faults: list[SchemaFault]
    report: types.Report
    search: dict[str, Any]
    facts: dict[str, Any]
    leftovers: list[str]
    claimed_at: str | None
    done_at: str | None
    failed_at: str | None
    removed_at: float | None
    upkeep_due: bool

    def sick(self) -> doctor_repairs.Sick:
        stale = sum(lease.state != "held" for lease in self.leases)
        return doctor_repairs.Sick(
            facts=self.facts,
            faults=self.faults,
            stale_leases=stale,
            leftovers=self.leftovers,
            unscrubbed=self.removed_at is not None,
            search=self.search,
            upkeep_due=self.upkeep_due,
            damaged=doctor_findings.damaged(self.report),
        )


@click.command(name="doctor")
@lazy_group.database
@lazy_group.as_json
@click.option("--fix", is_flag=True, help="Do the repairs that are offered, then look again.")
@click.pass_obj
def command(out: console.Console, path: str | None, as_json: bool, fix: bool) -> int:
    """Check every promise over the whole store, its schema, files, leases, leftovers and search index.

    Nothing is changed without --fix. What --fix would do is listed; no repair touches a message.

    Exits with 0 when all is well (notes may be there), with 1 when there is a problem that --fix did not put
    right, and with 2 when used wrongly.
    """
    settings = _settings(out)
    target = path or settings.database
    found = examine(target, out, settings.backup)
    if fix and found.repairs:
        done, failed = mend(target, found.repairs, out)
        found = examine(target, out, settings.backup)._replace(done=done)
        found = found._replace(findings=found.findings + failed, ok=found.ok and not failed)
    if as_json:
        out.json(_shape(found))
    else:
        _print(out, found)
    return 0 if found.ok else 1


# --- examining ---------------------------------------------------------------------------------------


def _settings(out: console.Console) -> config.Settings:
    """Those that hold; where a file is wrong, those of the environment, and the store that is named all the same."""
    try:
        return out.settings
    except errors.SettingInvalid:
        given = config.load(files=False)
        named = None if config.environment().get("HOLDFAST_DB") else config.database_in_user_file()
        return msgspec.structs.replace(given, database=named or given.database)


def examine(target: str, out: console.Console, kept: config.Backup) -> Examination:
    found: list[doctor_findings.Finding] = doctor_findings.of_settings(config_check.everywhere() if out.wrong else [])
    before = doctor_findings.modes(target)
    # Whoever is connected to a server may be anywhere: `holdfast db status` counts them.
    here = [] if is_postgres(target) else open_files.visitors(target)
    look: Look | None = None
    try:
        with open_store.open_existing(target, allow_unfinished=True) as db:
            look = _look(db, found, out)
    except errors.HoldfastError as error:
        found.append(doctor_findings.of_error(error, target))
    finally:
        out.progress("")
    # What did not open may be a file of another program, whose modes are its own affair.
    found += _about(look, target, before, kept) if look else []
    found += doctor_findings.of_visitors(here)
    versions = _versions(found)
    facts = look.facts if look else {"path": hide_password(target)}
    return Examination(
        ok=not any(finding.level == "problem" for finding in found),
        findings=found,
        store={**facts, "directory": _directory(target)},
        versions=versions,
        processes=here,
        leases=look.leases if look else [],
        report=look.report if look else None,
        search=look.search if look else None,
        repairs=list(doctor_repairs.offered(look.sick())) if look else [],
        done=[],
    )


def _look(db: store.SessionDB, found: list[doctor_findings.Finding], out: console.Console) -> Look:
    facts = db.admin.status()
    leases = _leases(db, found)
    faults = db.admin.schema_faults()
    report = db.admin.fsck(lambda done, total: out.progress(f"checking {done:,} of {total:,} messages"))
    out.progress("checking the search index")
    return Look(
        leases=leases,
        faults=faults,
        report=report,
        search=db.admin.search_status(),
        facts=facts,
        leftovers=doctor_repairs.leftovers(str(facts["path"])),
        claimed_at=db.admin.get_meta(store_meta.BACKUP_CLAIMED),
        done_at=db.admin.get_meta(store_meta.BACKUP_DONE),
        failed_at=db.admin.get_meta(store_meta.BACKUP_FAILED),
        removed_at=_removed_at(db),
        upkeep_due=db.admin.get_meta("upkeep_done_at") is None,
    )


def _removed_at(db: store.SessionDB) -> float | None:
    try:
        return db.admin.unscrubbed_since()
    except (errors.StoreCorrupt, errors.StoreBroken):
        return None  # fsck has said it already


def _leases(db: store.SessionDB, found: list[doctor_findings.Finding]) -> list[types.LeaseHeld]:
    try:
        return db.leases()
    except errors.LeasesUnavailable as error:
        advice = "Stop every process that uses the store, then open it again."
        found.append(doctor_findings.Finding("problem", "lease", str(error), advice))
        return []


def _about(
    look: Look, target: str, before: dict[str, os.stat_result], kept: config.Backup
) -> list[doctor_findings.Finding]:
    return [
        *doctor_findings.of_standing(look.facts),
        *doctor_findings.of_report(look.report, target),
        *doctor_findings.of_schema(look.faults),
        *doctor_findings.of_leases(look.leases),
        *doctor_findings.of_leftovers(look.leftovers),
        *doctor_findings.of_removals(look.removed_at, is_postgres(target)),
        *doctor_findings.of_claim(look.claimed_at),
        *doctor_findings.of_schedule(kept, look.done_at, look.failed_at),
        *doctor_findings.of_files(target, before),
        *doctor_findings.of_disk(look.facts),
        *doctor_findings.of_wal(look.facts),
        *doctor_findings.of_search(look.search),
    ]


def mend(
    target: str, repairs: list[doctor_repairs.Repair], out: console.Console
) -> tuple[list[str], list[doctor_findings.Finding]]:
    """Do what was offered; what came of each, and what failed. One that fails hinders no other."""
    done, failed = [], []
    with open_store.open_existing(target) as db:
        for repair in repairs:
            try:
                done.append(repair.do(db, partial(_mending, out, repair.name)))
            except errors.HoldfastError as error:
                what = f"The repair of {repair.name} failed: {error}"
                failed.append(doctor_findings.Finding("problem", "repair", what, "Run `holdfast doctor --fix` again."))
            out.progress("")
    return done, failed


def _mending(out: console.Console, name: str, done: int, total: int) -> None:
    out.progress(f"{name}: {done:,} of {total:,}")


def _versions(found: list[doctor_findings.Finding]) -> dict[str, str | None]:
    sqlite: str | None = None
    try:
        with store.SessionDB(":memory:") as scratch:
            sqlite = scratch.admin.info()["version"]
    except errors.HoldfastError as error:
        advice = "Reinstall Holdfast: pip install --force-reinstall holdfast"
        found.append(doctor_findings.Finding("problem", "version", str(error), advice))
    return {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        "apsw": importlib.metadata.version("apsw"),
        "sqlite": sqlite,
    }


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
        "processes": None if found.processes is None else [each._asdict() for each in found.processes],
        "leases": msgspec.to_builtins(found.leases),
        "report": {"ok": found.report.ok, **report} if found.report else None,
        "search": found.search,
        "repairs": [{"name": repair.name, "would": repair.would} for repair in found.repairs],
        "done": found.done,
    }


def _print(out: console.Console, found: Examination) -> None:
    for name, line in _lines(found):
        out.print(safe_text.safe(f"{name:<11} {line}"))
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
    verdict = safe_text.count(len(problems), "problem") + " found." if problems else "No problems found."
    out.print(out.style(verdict, "red" if problems else "green"))


def _lines(found: Examination) -> list[tuple[str, str]]:
    """The state of things, line by line: a name and what is to be said of it."""
    lines = [("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items()))]
    facts = found.store
    lines.append(("database", str(facts["path"])))
    if "engine" in facts:
        place = facts.get("filesystem") or "file system unknown"
        kept = (
            f"{facts['journal']}, survives {facts['durability']}, {place}" if "journal" in facts else facts["version"]
        )
        lines.append(("engine", f"{facts['engine']}, {kept}"))
    for suffix, entry in (facts.get("files") or {}).items():
        if entry:
            lines.append(("", f"{suffix:<7} {safe_text.size(entry['bytes'])}, mode {entry['mode']}"))
    if facts["directory"]:
        lines.append(("directory", f"{facts['directory']['path']}, mode {facts['directory']['mode']}"))
    if found.report:
        lines.append(("contents", _contents(found.report)))
    if found.search:
        lines.append(("search", _indexed(found.search)))
    lines += [("used by", f"process {each.pid}: {each.command}") for each in found.processes or ()]
    if found.processes is None:
        lines.append(("used by", "this system does not tell which processes have the store open"))
    return lines + [("lease", _lease(lease)) for lease in found.leases]


def _lease(lease: types.LeaseHeld) -> str:
    return f"{lease.conversation_id} {lease.purpose}: {doctor_findings.lease_state(lease)}"


def _contents(report: types.Report) -> str:
    return (
        f"{safe_text.count(report.conversations, 'conversation')}, {safe_text.count(report.sessions, 'session')}, "
        f"{safe_text.count(report.messages, 'message')}, checked in {report.seconds:.2f} s"
    )


def _indexed(search: dict[str, Any]) -> str:
    if not search["exists"]:
        return "no index yet; the first search makes it"
    if search["errors"]:
        return "damaged"
    return f"{safe_text.count(search['behind'], 'message')} behind" if search["behind"] else "up to date"
