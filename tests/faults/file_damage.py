"""Stores damaged in every way a disk, a copy or a tool can damage a file, and the checks of reading and salvage."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from holdfast import errors, reports, types
from holdfast.salvage import salvage
from holdfast.store.db import SessionDB
from tests.faults import zygote

ENOUGH_MEMORY = 2 * 1024**3
ENOUGH_SECONDS = 60
PAGE = 4096
SILENT = "are gone and nothing is said"
ONE_BIT = "one bit"

Written = dict[str, dict[str, Any]]


def populate(db: SessionDB, number: int) -> None:
    """Create a conversation with every kind of row; long texts are on separate pages."""
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
    if number == 1:
        db.redact(c, 7)
        db.end_conversation(c, "done")


def written(db: SessionDB) -> Written:
    return {
        session.conversation_id: {
            str(message.seq): [message.uid, message.role, message.content] for message in db.transcript(session.id)
        }
        for session in db.list_sessions(limit=1000)
    }


def contents(db: SessionDB) -> Any:
    """Everything people and models read, in an order that no time decides."""
    found: list[Any] = [db.routes()]
    for session in sorted(db.list_sessions(every=True, limit=1000), key=lambda session: str(session.id)):
        context = db.context(session.id)
        found.append([session.id, session.conversation_id, session.ordinal, session.parent_session_id, session.live])
        found.append([session.first_seq, session.last_seq, context.epoch, context.last_seq, db.hides(session.id)])
        found.append([(message.seq, message.uid, message.role, message.content) for message in context])
        found.append([(made.epoch, made.cut_seq, made.summary, made.pinned) for made in db.compactions(session.id)])
    return json.loads(json.dumps(found, default=msgspec.to_builtins))


class Bench:
    """A sound store, half of it in its log, to be damaged again and again."""

    def __init__(self, folder: Path, running: zygote.Zygote) -> None:
        self.folder, self._running = folder, running
        path = folder / "sound.db"
        with SessionDB(path) as db:
            for number in range(4):
                populate(db, number)
        with SessionDB(path) as db:
            for number in range(4, 7):
                populate(db, number)
            assert db.admin.fsck().ok
            (folder / "written.json").write_text(json.dumps([written(db), contents(db)]))
            # Another process may copy the open file; this one may not even open it.
            assert os.system(f"cp {path} {folder}/main && cp {path}-wal {folder}/log") == 0
        self.main, self.log = (folder / "main").read_bytes(), (folder / "log").read_bytes()

    def examine(self, kind: str, main: bytes, log: bytes) -> list[str]:
        """The problems that a child finds in a damaged store."""
        folder = self.folder / "damaged"
        folder.mkdir(mode=0o700)
        (folder / "store.db").write_bytes(main)
        (folder / "store.db-wal").write_bytes(log)
        args = {"written": str(self.folder / "written.json"), "all": kind == ONE_BIT}
        outcome = self._running.run(examine, folder / "store.db", args)
        shutil.rmtree(folder)
        if outcome.state != "exited" or outcome.error:
            return [f"{kind}: {outcome.state} {outcome.error}"]
        # A log that is missing, or ends early, leaves no trace of its content.
        silent = SILENT if kind in ("the log gone", "the log cut") else "\0"
        return [f"{kind}: {each}" for each in outcome.value if silent not in each]

    def flip(self, bit: int) -> list[str]:
        return self.examine(ONE_BIT, flip_bits(self.main, [bit]), self.log)


def flip_bits(data: bytes, bits: list[int]) -> bytes:
    wrong = bytearray(data)
    for bit in bits:
        wrong[bit // 8] ^= 1 << bit % 8
    return bytes(wrong)


def _flipped(chance: random.Random, data: bytes, count: int) -> bytes:
    return flip_bits(data, [chance.randrange(len(data) * 8) for _ in range(count)])


def _overwritten(chance: random.Random, data: bytes, page: bytes) -> bytes:
    at = chance.randrange(len(data) // PAGE) * PAGE
    return data[:at] + page + data[at + PAGE :]


def _swapped(chance: random.Random, data: bytes) -> bytes:
    one, two = sorted(chance.sample(range(len(data) // PAGE), 2))
    pages = [data[at : at + PAGE] for at in range(0, len(data), PAGE)]
    pages[one], pages[two] = pages[two], pages[one]
    return b"".join(pages)


def damage(chance: random.Random, main: bytes, log: bytes) -> tuple[str, bytes, bytes]:
    """The kind of damage, the file, the log."""
    cut = chance.randrange(1, len(main))
    place = chance.randrange(len(log))
    noise = chance.randbytes(chance.choice((1, 24, PAGE)))
    kinds = {
        "a bit of the file": (_flipped(chance, main, 1), log),
        "bits of the file": (_flipped(chance, main, 20), log),
        "a page of zeros": (_overwritten(chance, main, bytes(PAGE)), log),
        "a page of noise": (_overwritten(chance, main, chance.randbytes(PAGE)), log),
        "two pages swapped": (_swapped(chance, main), log),
        "a page twice": (_overwritten(chance, main, main[cut // PAGE * PAGE :][:PAGE].ljust(PAGE, b"\0")), log),
        "the file cut": (main[:cut], log),
        "the file cut at a page": (main[: cut // PAGE * PAGE], log),
        "the head gone": (chance.randbytes(100) + main[100:], log),
        "a bit of the log": (main, _flipped(chance, log, 1)),
        "noise in the log": (main, log[:place] + noise + log[place + len(noise) :]),
        "the log cut": (main, log[:place]),
        "the log of noise": (main, chance.randbytes(len(log))),
        "the log gone": (main, b""),
        "both": (_flipped(chance, main, 3), _flipped(chance, log, 3)),
    }
    kind = chance.choice(sorted(kinds))
    return kind, *kinds[kind]


def run_trials(bench: Bench, chance: random.Random, count: int) -> list[str]:
    """Return the problems found in this many damaged stores, with the seed of each."""
    seeds = [chance.getrandbits(32) for _ in range(count)]
    return [
        f"seed {seed}: {problem}"
        for seed in seeds
        for problem in bench.examine(*damage(random.Random(seed), bench.main, bench.log))
    ]


def run_flips(bench: Bench, chance: random.Random, count: int) -> list[str]:
    bits = [chance.randrange(len(bench.main) * 8) for _ in range(count)]
    return [f"bit {bit}: {problem}" for bit in bits for problem in bench.flip(bit)]


def examine(stage: zygote.Stage) -> list[str]:
    """A task: return the problems of reading and of salvaging."""
    # A damaged file may send a reader round in circles: then this child ends, and that is the finding.
    resource.setrlimit(resource.RLIMIT_AS, (ENOUGH_MEMORY, ENOUGH_MEMORY))
    signal.alarm(ENOUGH_SECONDS)
    should, everything = json.loads(Path(stage.args["written"]).read_text())
    if stage.args["all"]:
        return _check_everything(stage.path, everything)
    salvaged = f"{os.path.dirname(stage.path)}/new/store.db"
    return [*_check_salvage(stage.path, salvaged, should), *_check_messages(stage.path, should)]


def _check_everything(path: str, should: Any) -> list[str]:
    with contextlib.suppress(errors.HoldfastError), SessionDB(path) as db:
        if contents(db) != should and db.admin.fsck().ok:
            return ["read otherwise, and not noticed"]
    return []


def _check_messages(path: str, should: Written) -> list[str]:
    wrong: list[str] = []
    with contextlib.suppress(errors.HoldfastError), SessionDB(path) as db:
        for session in _readable(lambda: db.list_sessions(limit=1000)):
            known = should.get(session.conversation_id, {})
            wrong += [
                f"read: message {message.seq} of {session.conversation_id!r} is another"
                for message in _readable(lambda session=session: db.transcript(session.id))
                if known.get(str(message.seq)) != _said(message)
            ]
        if wrong and not db.admin.fsck().ok:
            return []
    return wrong


def _readable(call: Callable[[], Any]) -> list[Any]:
    try:
        return list(call())
    except errors.HoldfastError:
        return []


def _said(message: types.Message) -> Any:
    try:
        return [message.uid, message.role, message.content]
    except errors.StoreCorrupt:
        return None


def _check_salvage(path: str, new: str, should: Written) -> list[str]:
    before = [Path(path + suffix).read_bytes() for suffix in ("", "-wal")]
    report = salvage.run(path, new)
    wrong = ["the damaged file was changed"] * (before != [Path(path + suffix).read_bytes() for suffix in ("", "-wal")])
    with SessionDB(new) as db:
        if not db.admin.fsck().ok:
            wrong.append("salvaged: not sound")
        return [*wrong, *_compare(should, written(db), report)]


def _compare(should: Written, have: Written, report: reports.SalvageReport) -> list[str]:
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
                # A branch shows the lost messages of its origin.
                if not {(c, int(seq)), (c.removesuffix(" branch"), int(seq))} & listed:
                    wrong.append(f"salvaged: message {seq} of {c!r} is lost and not listed")
            elif should.get(c, {}).get(seq) != said:
                wrong.append(f"salvaged: message {seq} of {c!r} is another")
    for c, messages in should.items():
        unlisted = [seq for seq in messages if seq not in have.get(c, {}) and (c, int(seq)) not in listed]
        if unlisted and not report.lost:
            wrong.append(f"salvaged: {len(unlisted)} messages of {c!r} {SILENT}")
    return wrong
