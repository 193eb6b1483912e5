"""Check the promises P1 to P8 (holdfast/promises.py) over the whole store, without changing it."""

from __future__ import annotations

import contextlib
import time

from holdfast import errors, types
from holdfast.store import message_codec, queries
from holdfast.store.driver import MISSING, DatabaseReader, Progress, Tx

ROWS_PER_PAGE = 5_000

# Every query of this prefix is a check: it returns a place and a description of each violation. The word after the
# prefix is a promise, or the subject of other rules.
_PREFIX = "check_"


def _promise(query: str) -> str:
    subject = query.removeprefix(_PREFIX).partition("_")[0]
    return subject.upper() if subject[0] == "p" and subject[1:].isdigit() else subject


CHECKS = {name: _promise(name) for name in queries.load("sqlite") if name.startswith(_PREFIX)}


def check(driver: DatabaseReader, progress: Progress | None = None, *, schema: bool = False) -> types.Report:
    """Check every promise and every digest in one snapshot.

    With `schema`, triggers and indexes that differ from the declared ones are reported too. Tables are not: a table of
    an older version lacks constraints that cannot be added later.
    """
    began = time.monotonic()
    counts, found = (0, 0, 0), list[types.Violation]()
    try:
        found += [types.Violation("database", "", error) for error in driver.integrity_errors()]
    except (errors.StoreCorrupt, errors.StoreBroken) as error:  # too damaged to be checked
        found.append(types.Violation("database", "", str(error)))
    with contextlib.suppress(errors.StoreCorrupt, errors.StoreBroken):  # the other checks report the same damage
        faults = [each for each in driver.schema_faults() if each.what == MISSING or (schema and each.kind != "table")]
        found += [types.Violation("schema", "", str(fault)) for fault in faults]
    try:
        counts, violations = driver.read(lambda tx: _check_all(tx, progress))
        found += violations
    except (errors.StoreCorrupt, errors.StoreBroken) as error:
        found.append(types.Violation("database", "", str(error)))
    return types.Report(*counts, tuple(found), time.monotonic() - began)


def raise_if_damaged(report: types.Report, path: str) -> types.Report:
    """Return the report of a copy. Raises CopyDamaged if it lists violations."""
    if not report.ok:
        raise errors.CopyDamaged(path, [f"{bad.promise} {bad.detail}" for bad in report.violations])
    return report


def _check_all(tx: Tx, progress: Progress | None) -> tuple[tuple[int, int, int], list[types.Violation]]:
    counts = tx.one("fsck_counts")
    assert counts is not None  # an aggregate returns one row
    violations: list[types.Violation] = []
    for query, promise in CHECKS.items():
        try:
            with tx.savepoint():
                violations += [types.Violation(promise, str(where), detail) for where, detail in tx.all(query)]
        except errors.StoreBroken as error:
            violations.append(types.Violation("database", "", str(error)))
    violations += _check_summaries(tx)
    violations += _check_digests(tx, counts[2], progress)
    return (counts[0], counts[1], counts[2]), violations


def _check_summaries(tx: Tx) -> list[types.Violation]:
    return [
        types.Violation("P5", conversation_id, f"the summary of compaction {epoch} does not match its digest")
        for conversation_id, epoch, body, digest in tx.all("fsck_summaries")
        if message_codec.summary_digest(conversation_id, epoch, body) != digest
    ]


def _check_digests(tx: Tx, total: int, progress: Progress | None) -> list[types.Violation]:
    violations: list[types.Violation] = []
    done = 0
    for key, conversation_id, _ in tx.all("fsck_conversations"):
        after = 0
        while rows := tx.all("fsck_digests", conversation=key, after=after, limit=ROWS_PER_PAGE):
            violations += [
                types.Violation("P1", conversation_id, f"message {seq} does not match its digest")
                for seq, uid, role, body, digest in rows
                if message_codec.digest(conversation_id, seq, uid, role, body) != digest
            ]
            if rows[-1][0] <= after:
                # A damaged B-tree can lead back to an earlier page, endlessly.
                violations.append(
                    types.Violation("P2", conversation_id, f"the log repeats messages after message {after}")
                )
                break
            after, done = rows[-1][0], done + len(rows)
            if progress:
                progress(done, total)
    return violations
