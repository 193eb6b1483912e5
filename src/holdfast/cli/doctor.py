"""`holdfast doctor`: check whether the store keeps its promises, and repair what can be repaired.

Without `--fix` nothing is changed except the modes of files that other users can access, and a missing database is not
created.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import stat
from functools import partial
from typing import Any

import click
import msgspec

import holdfast
from holdfast import config, errors, safe_text, types
from holdfast.app import open_store
from holdfast.cli import config_check, console, doctor_checks, lazy_group
from holdfast.cli.doctor_checks import Finding
from holdfast.store import db as store
from holdfast.store.driver import hide_password, is_postgres

MAX_FINDINGS = 20


class Examination(msgspec.Struct):
    """The result of the doctor, with the fields that --json prints."""

    store: dict[str, Any]
    processes: list[doctor_checks.StoreUser] | None
    findings: list[Finding] = []
    versions: dict[str, str] = {}
    leases: list[types.LeaseHeld] = []
    report: types.Report | None = None
    search: dict[str, Any] | None = None
    repairs: list[doctor_checks.Repair] = []
    done: list[str] = []

    @property
    def ok(self) -> bool:
        return not any(finding.level == "problem" for finding in self.findings)


@click.command(name="doctor")
@lazy_group.database
@lazy_group.as_json
@click.option("--fix", is_flag=True, help="Run the listed repairs, then check again.")
@click.pass_obj
def command(out: console.Console, path: str | None, as_json: bool, fix: bool) -> int:
    """Check the store: every promise, schema, files, leases, leftover files and search index.

    Nothing is changed without --fix. The repairs that --fix would run are listed; none changes a message.

    Exits with 0 if there is no problem (notes are not problems), with 1 if there is a problem that --fix did not
    repair, and with 2 on a usage error.
    """
    settings = _load_settings(out)
    target = path or settings.database
    found = examine(target, out, settings.backup)
    if fix and found.repairs:
        done, failed = _repair(target, found.repairs, out)
        found = examine(target, out, settings.backup)
        found.done, found.findings = done, found.findings + failed
    if as_json:
        out.json(_to_json(found))
    else:
        _print(out, found)
    return 0 if found.ok else 1


# --- examination -----------------------------------------------------------------------------------------


def _load_settings(out: console.Console) -> config.Settings:
    """Return the settings; if a file is invalid, those of the environment, with the store that the file names."""
    try:
        return out.settings
    except errors.SettingInvalid:
        settings = config.load(files=False)
        named = None if config.environment().get("HOLDFAST_DB") else config.database_in_user_file()
        return msgspec.structs.replace(settings, database=named or settings.database)


def examine(target: str, out: console.Console, backup: config.BackupSection) -> Examination:
    """Check the settings, the files and, if it opens, the store."""
    advice = "Correct it with `holdfast config edit`. Until then, most commands refuse to run."
    mistakes = config_check.check_all() if out.settings_error else []
    modes = doctor_checks.read_modes(target)  # Opening the store corrects some.
    # The clients of a server may be on other machines: `holdfast db status` counts them.
    users = [] if is_postgres(target) else doctor_checks.find_store_users(target)
    found = Examination({"path": hide_password(target), "directory": _directory(target)}, users)
    found.findings = [Finding("problem", "settings", str(each), advice) for each in mistakes]
    try:
        with open_store.open_existing(target, allow_unfinished=True) as db:
            _examine_store(db, found, out, backup)
        # A file that does not open may belong to another program.
        found.findings += doctor_checks.check_modes(target, modes)
    except errors.HoldfastError as error:
        found.findings.append(doctor_checks.explain_error(error, target))
    finally:
        out.progress("")
    found.findings += doctor_checks.check_store_users(users)
    found.versions = _versions()
    return found


def _examine_store(db: store.SessionDB, found: Examination, out: console.Console, backup: config.BackupSection) -> None:
    facts = db.admin.status()
    found.store.update(facts)
    found.leases = _read_leases(db, found.findings)
    found.report = report = db.admin.fsck(lambda done, total: out.progress(f"checking {done:,} of {total:,} messages"))
    out.progress("checking the search index")
    found.search = db.admin.search_status()
    results = [
        *doctor_checks.check_configuration(facts),
        *doctor_checks.check_report(report, db.path),
        *doctor_checks.check_schema(db.admin.schema_faults()),
        *doctor_checks.check_leases(found.leases),
        *doctor_checks.check_leftovers(str(facts["path"])),
        *doctor_checks.check_scrubbed(db),
        *doctor_checks.check_backups(backup, db),
        *doctor_checks.check_search(found.search),
        *doctor_checks.check_upkeep(db),
        *doctor_checks.check_disk(facts),
    ]
    found.findings += [each for each in results if isinstance(each, Finding)]
    is_safe = doctor_checks.SAFE_WHILE_DAMAGED if doctor_checks.is_damaged(report) else None
    repairs = [each for each in results if isinstance(each, doctor_checks.Repair)]
    found.repairs = [each for each in repairs if is_safe is None or each.name in is_safe]


def _read_leases(db: store.SessionDB, findings: list[Finding]) -> list[types.LeaseHeld]:
    try:
        return db.leases()
    except errors.LeasesUnavailable as error:
        advice = "Stop every process that uses the store, then open it again."
        findings.append(Finding("problem", "lease", str(error), advice))
        return []


def _repair(target: str, repairs: list[doctor_checks.Repair], out: console.Console) -> tuple[list[str], list[Finding]]:
    """Run the repairs, and return their results and failures. A failed repair does not stop the others."""

    def progress(name: str, done: int, total: int) -> None:
        out.progress(f"{name}: {done:,} of {total:,}")

    done, failed = [], []
    with open_store.open_existing(target) as db:
        for repair in repairs:
            try:
                done.append(repair.run(db, partial(progress, repair.name)))
            except errors.HoldfastError as error:
                what = f"The repair `{repair.name}` failed: {error}"
                failed.append(Finding("problem", "repair", what, "Run `holdfast doctor --fix` again."))
            out.progress("")
    return done, failed


def _versions() -> dict[str, str]:
    with store.SessionDB(":memory:") as scratch:
        sqlite = scratch.admin.info()["version"]
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


# --- output ----------------------------------------------------------------------------------------------


def _to_json(found: Examination) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "findings": [finding._asdict() for finding in found.findings],
        "store": found.store,
        "versions": found.versions,
        "processes": None if found.processes is None else [each._asdict() for each in found.processes],
        "leases": msgspec.to_builtins(found.leases),
        "report": {"ok": found.report.ok, **msgspec.to_builtins(found.report)} if found.report else None,
        "search": found.search,
        "repairs": [{"name": repair.name, "would": repair.would} for repair in found.repairs],
        "done": found.done,
    }


def _print(out: console.Console, found: Examination) -> None:
    for name, line in _lines(found):
        out.print(safe_text.safe(f"{name:<11} {line}"))
    problems = [finding for finding in found.findings if finding.level == "problem"]
    for finding in found.findings[:MAX_FINDINGS]:
        out.print()
        out.prose(f"{finding.level}: {finding.what}", "red" if finding.level == "problem" else "yellow")
        out.prose(f"   next: {finding.next}")
    if len(found.findings) > MAX_FINDINGS:
        out.print(f"\n{out.glyphs.more} and {len(found.findings) - MAX_FINDINGS:,} more; --json lists all.")
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
    """Return the status lines, each with its label."""
    facts = found.store
    lines = [
        ("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
        ("database", str(facts["path"])),
    ]
    if "engine" in facts:
        details = facts["version"]
        if "journal" in facts:
            filesystem = facts.get("filesystem") or "file system unknown"
            details = f"{facts['journal']}, durability {facts['durability']}, {filesystem}"
        lines.append(("engine", f"{facts['engine']}, {details}"))
    for suffix, entry in (facts.get("files") or {}).items():
        if entry:
            lines.append(("", f"{suffix:<7} {safe_text.size(entry['bytes'])}, mode {entry['mode']}"))
    if facts["directory"]:
        lines.append(("directory", f"{facts['directory']['path']}, mode {facts['directory']['mode']}"))
    if report := found.report:
        counts = ((report.conversations, "conversation"), (report.sessions, "session"), (report.messages, "message"))
        contents = ", ".join(safe_text.count(*each) for each in counts)
        lines.append(("contents", f"{contents}, checked in {report.seconds:.2f} s"))
    if found.search:
        lines.append(("search", _search_state(found.search)))
    lines += [("used by", f"process {each.pid}: {each.command}") for each in found.processes or ()]
    if found.processes is None:
        lines.append(("used by", "unknown: this system does not show which processes have the store open"))
    for lease in found.leases:
        lines.append(("lease", f"{lease.conversation_id} {lease.purpose}: {doctor_checks.lease_state(lease)}"))
    return lines


def _search_state(search: dict[str, Any]) -> str:
    if not search["exists"]:
        return "no index yet; the first search creates it"
    if search["errors"]:
        return "damaged"
    return f"{safe_text.count(search['behind'], 'message')} behind" if search["behind"] else "up to date"
