"""Stores damaged in every way a disk, a copy or a tool can damage a file, and what becomes of them.

Whoever reads a damaged store reads messages as they were written, or gets a typed error, or fsck names the
damage. A salvage brings over only what was written, and lists what it could not bring.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
from pathlib import Path
from typing import Any

from holdfast import errors, reports, types
from holdfast.salvage import salvage
from holdfast.store.db import SessionDB
from tests.faults import zygote

ENOUGH_MEMORY = 2 * 1024**3
ENOUGH_TIME = 60
PAGE = 4096
SILENT = "are gone and nothing is said"


def furnish(db: SessionDB, number: int) -> None:
    """One conversation with every kind of row; long texts lie on pages of their own."""
    c = f"talk {number}"
    db.create_session(c, source="fault", model="m", title=f"title of {c}")
    for seq in range(1, 25):
        db.append_message(c, role="user", content=f"{c} says {seq} " * (seq * seq % 83), uid=f"{c}:{seq}")
    lease = db.acquire_lease(c, "compact", "me")
    db.commit_compaction(lease, summary=f"summary of {c}", cut_seq=9, pinned=[2], child_id=f"{c} on")
    db.append_message(c, role="assistant", content="long " * 3_000, uid=f"{c}:25")
    db.hide(c, 20, 21)
    db.branch(c, 15, branch_id=f"{c} branch")
    db.append_message(f"{c} branch", role="user", content="in the branch", uid=f"{c}:branch")
    db.bind_route(f"chat:{number}", c, version=0)
    db.update_budget(c, 0, {"attempts": [f"of {c}"] * number * 100})


def written(db: SessionDB) -> dict[str, dict[str, Any]]:
    return {
        session.conversation_id: {
            str(message.seq): [message.uid, message.role, message.content] for message in db.transcript(session.id)
        }
        for session in db.list_sessions(limit=1000)
    }


class Bench:
    """A sound store, half of it in its log, to be damaged again and again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / "sound.db"
        with SessionDB(path) as db:
            for number in range(4):
                furnish(db, number)
        with SessionDB(path) as db:
            for number in range(4, 7):
                furnish(db, number)
            assert db.admin.fsck().ok
            (folder / "written.json").write_text(json.dumps(written(db)))
            # Another process may copy what is open here; this one may not even open it.
            assert os.system(f"cp {path} {folder}/main && cp {path}-wal {folder}/log") == 0
        self.main, self.log = (folder / "main").read_bytes(), (folder / "log").read_bytes()

    def put(self, name: str, main: bytes, log: bytes) -> Path:
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        (folder / "store.db").write_bytes(main)
        (folder / "store.db-wal").write_bytes(log)
        return folder / "store.db"


# --- damage --------------------------------------------------------------------------------------------------


def flipped(chance: random.Random, data: bytes, bits: int) -> bytes:
    wrong = bytearray(data)
    for _ in range(bits):
        wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
    return bytes(wrong)


def overwritten(chance: random.Random, data: bytes, what: bytes) -> bytes:
    at = chance.randrange(len(data) // PAGE) * PAGE
    return data[:at] + what + data[at + PAGE :]


def swapped(chance: random.Random, data: bytes) -> bytes:
    one, two = sorted(chance.sample(range(len(data) // PAGE), 2))
    pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
    pages[one], pages[two] = pages[two], pages[one]
    return b"".join(pages)


def wreck(chance: random.Random, main: bytes, log: bytes) -> tuple[str, bytes, bytes]:
    """The name of the damage, the file, the log."""
    cut = chance.randrange(1, len(main))
    place = chance.randrange(len(log))
    noise = chance.randbytes(chance.choice((1, 24, PAGE)))
    kinds = {
        "a bit of the file": (flipped(chance, main, 1), log),
        "bits of the file": (flipped(chance, main, 20), log),
        "a page of zeros": (overwritten(chance, main, bytes(PAGE)), log),
        "a page of noise": (overwritten(chance, main, chance.randbytes(PAGE)), log),
        "two pages swapped": (swapped(chance, main), log),
        "a page twice": (overwritten(chance, main, main[cut // PAGE * PAGE :][:PAGE].ljust(PAGE, b"\0")), log),
        "the file cut": (main[:cut], log),
        "the file cut at a page": (main[: cut // PAGE * PAGE], log),
        "the head gone": (chance.randbytes(100) + main[100:], log),
        "a bit of the log": (main, flipped(chance, log, 1)),
        "noise in the log": (main, log[:place] + noise + log[place + len(noise) :]),
        "the log cut": (main, log[:place]),
        "the log of noise": (main, chance.randbytes(len(log))),
        "the log gone": (main, b""),
        "both": (flipped(chance, main, 3), flipped(chance, log, 3)),
    }
    kind = chance.choice(sorted(kinds))
    return kind, *kinds[kind]


# --- what becomes of it --------------------------------------------------------------------------------------


def examine(stage: zygote.Stage) -> list[str]:
    """A task: what is wrong with what is read and with what is salvaged."""
    # A damaged file may send whoever reads it round in circles: then this child ends, and that is the finding.
    resource.setrlimit(resource.RLIMIT_AS, (ENOUGH_MEMORY, ENOUGH_MEMORY))
    signal.alarm(ENOUGH_TIME)
    should = json.loads(Path(stage.args["written"]).read_text())
    folder = os.path.dirname(stage.path)
    return [*_salvaged(stage.path, f"{folder}/new/store.db", should), *_read(stage.path, should)]


def _read(path: str, should: dict[str, dict[str, Any]]) -> list[str]:
    wrong: list[str] = []
    with contextlib.suppress(errors.HoldfastError), SessionDB(path) as db:
        for session in _each(lambda: db.list_sessions(limit=1000)):
            known = should.get(session.conversation_id, {})
            wrong += [
                f"read: message {message.seq} of {session.conversation_id!r} is another"
                for message in _each(lambda session=session: db.transcript(session.id))
                if known.get(str(message.seq)) != _said(message)
            ]
        if wrong and not db.admin.fsck().ok:
            return []
    return wrong


def _each(call: Any) -> list[Any]:
    try:
        return list(call())
    except errors.HoldfastError:
        return []


def _said(message: types.Message) -> Any:
    try:
        return [message.uid, message.role, message.content]
    except errors.StoreCorrupt:
        return None


def _salvaged(path: str, new: str, should: dict[str, dict[str, Any]]) -> list[str]:
    before = [Path(path + suffix).read_bytes() for suffix in ("", "-wal")]
    report = salvage.run(path, new)
    wrong = ["the damaged file was changed"] * (before != [Path(path + suffix).read_bytes() for suffix in ("", "-wal")])
    with SessionDB(new) as db:
        if not db.admin.fsck().ok:
            wrong.append("salvaged: not sound")
        have = written(db)
    return [*wrong, *_compared(should, have, report)]


def _compared(
    should: dict[str, dict[str, Any]], have: dict[str, dict[str, Any]], report: reports.SalvageReport
) -> list[str]:
    listed = {
        (lost.conversation_id, seq)
        for lost in report.lost
        if lost.first_seq is not None and lost.last_seq is not None
        for seq in range(lost.first_seq, lost.last_seq + 1)
    }
    wrong = []
    for c, messages in have.items():
        for seq, said in messages.items():
            if said[0] == f"lost-{seq}":
                # A branch shows what was lost of its origin.
                if not {(c, int(seq)), (c.removesuffix(" branch"), int(seq))} & listed:
                    wrong.append(f"salvaged: message {seq} of {c!r} is lost and not listed")
            elif should.get(c, {}).get(seq) != said:
                wrong.append(f"salvaged: message {seq} of {c!r} is another")
    for c, messages in should.items():
        unlisted = [seq for seq in messages if seq not in have.get(c, {}) and (c, int(seq)) not in listed]
        if unlisted and not report.lost:
            wrong.append(f"salvaged: {len(unlisted)} messages of {c!r} {SILENT}")
    return wrong


def trials(bench: Bench, running: zygote.Zygote, seed: int, count: int) -> list[str]:
    """So many damaged stores; what was wrong, with the trial to repeat."""
    problems = []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        kind, main, log = wreck(chance, bench.main, bench.log)
        path = bench.put(f"trial {number}", main, log)
        outcome = running.run(examine, path, {"written": str(bench.folder / "written.json")})
        found = (
            outcome.value if outcome.state == "exited" and not outcome.error else [f"{outcome.state} {outcome.error}"]
        )
        # A log that is gone, or ends early, leaves no trace of what it held.
        silent = SILENT if kind in ("the log gone", "the log cut") else "\0"
        problems += [f"seed {seed}, trial {number} ({kind}): {each}" for each in found if silent not in each]
        shutil.rmtree(path.parent)
    return problems
