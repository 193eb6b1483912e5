"""The plug pulled at any moment: what a disk may then hold, computed from what was written to it.

A child writes down every write, truncation, deletion and sync of its life, and every acknowledgement
between them. A disk keeps what was synced. Of what was not, it may keep all, nothing, or any part, down to
single sectors. From the notes every such disk can be made, and a store opened on it.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from holdfast import errors
from holdfast.store.db import SessionDB
from tests.faults import checker, disk, zygote

SECTOR = 512
LIFE = 4


def live(stage: zygote.Stage) -> None:
    """A task: two short lives of a store, written down."""
    shim = disk.Disk(keep=True)
    shim.arm(stage.args.get("hole"), "hole")
    for life in range(2):
        with stage.open(durability=stage.args["durability"]) as db:
            _converse(db, shim, life)
    with open(stage.args["notes"], "wb") as file:
        pickle.dump(shim.log, file)


def _converse(db: SessionDB, shim: disk.Disk, life: int) -> None:
    if life == 0:
        db.create_session("c", source="test")
    for number in range(LIFE):
        uid = f"{life}.{number}"
        with contextlib.suppress(errors.StoreError):
            db.append_message("c", role="user", content=f"said {uid} " * 100, uid=uid)
            shim.note(uid)
    lease = db.acquire_lease("c", "compact", "me")
    cut = lease.snapshot.last_seq - 1
    db.commit_compaction(lease, summary=checker.summarize(db.context("c"), cut), cut_seq=cut, child_id=f"c-{life}")
    shim.note(f"compacted c-{life}")


class Moment(NamedTuple):
    """The plug is pulled here: what had been acknowledged, and what the disk may hold."""

    number: int
    acknowledged: list[str]
    files: dict[str, bytes]
    certain: bool  # nothing but what was synced


class _Files:
    """What is surely on the disk, and what may be."""

    def __init__(self) -> None:
        self.synced: dict[str, bytearray] = {}
        self.pending: dict[str, list[disk.Touch]] = {}

    def take(self, touch: disk.Touch) -> None:
        if touch.kind == "note":
            return
        if touch.kind == "sync":
            self.synced[touch.file] = self._with(touch.file, self.pending.pop(touch.file, []))
        elif touch.kind == "lost":
            self.pending.pop(touch.file, None)
        elif touch.kind == "delete":
            self.synced.pop(touch.file, None)
            self.pending.pop(touch.file, None)
        else:
            self.pending.setdefault(touch.file, []).append(touch)

    def kept(self, chance: random.Random | None) -> dict[str, bytes]:
        """Without chance, only what was synced; else also some of the rest."""
        names = self.synced.keys() | self.pending.keys()
        return {name: bytes(self._with(name, self._survivors(name, chance))) for name in sorted(names)}

    def _survivors(self, name: str, chance: random.Random | None) -> Iterator[disk.Touch]:
        for touch in self.pending.get(name, ()) if chance else ():
            if touch.kind == "truncate" or chance is None:
                yield touch
                continue
            for start in range(0, len(touch.data), SECTOR):
                if chance.random() < 0.7:
                    yield touch._replace(offset=touch.offset + start, data=touch.data[start : start + SECTOR])

    def _with(self, name: str, touches: Sequence[disk.Touch] | Iterator[disk.Touch]) -> bytearray:
        data = bytearray(self.synced.get(name, b""))
        for touch in touches:
            if touch.kind == "truncate":
                del data[touch.offset :]
                continue
            data.extend(bytes(max(0, touch.offset - len(data))))
            data[touch.offset : touch.offset + len(touch.data)] = touch.data
        return data


def opened(moment: Moment, folder: Path) -> SessionDB:
    """A store on such a disk."""
    folder.mkdir(mode=0o700)
    # The child may have called its store anything.
    for name, data in moment.files.items():
        (folder / f"store.db{name.partition('.db')[2]}").write_bytes(data)
    return SessionDB(folder / "store.db")


def wrong(moment: Moment, folder: Path) -> list[str]:
    """What is missing of what was acknowledged, or broken; the folder is gone afterwards."""
    messages = [uid for uid in moment.acknowledged if not uid.startswith("compacted ")]
    compacted = {uid.removeprefix("compacted ") for uid in moment.acknowledged if uid not in messages}
    with opened(moment, folder) as db:
        log = [message.uid for message in db.transcript("c")] if db.get_session("c") else []
        found = checker.verify(db, also=["c"] if log else [])
        # One more may be there: written, and not yet acknowledged.
        if log[: len(messages)] != messages or len(log) > len(messages) + 1:
            found.append(f"the log is {log} and should be {messages}")
        if not compacted <= {session.id for session in db.list_sessions(every=True)}:
            found.append(f"of the compactions {compacted} one is missing")
    shutil.rmtree(folder)
    return [f"power lost at {moment.number}: {problem}" for problem in found]


def last_moment(notes: Path) -> Moment:
    """After all of it, with what was synced alone."""
    log, files = _noted(notes), _Files()
    last = max(number for number in range(len(log)) if _certain(log, number))
    for touch in log[: last + 1]:
        files.take(touch)
    acknowledged = [touch.data.decode() for touch in log[:last] if touch.kind == "note"]
    return Moment(last, acknowledged, files.kept(None), certain=True)


def moments(notes: Path, chance: random.Random) -> Iterator[Moment]:
    """After every touch of the disk, with a part of what was not synced; after every sync also without."""
    log = _noted(notes)
    files, acknowledged = _Files(), list[str]()
    for number, touch in enumerate(log):
        files.take(touch)
        if touch.kind == "note":
            acknowledged.append(touch.data.decode())
            continue
        if _certain(log, number):
            yield Moment(number, list(acknowledged), files.kept(None), certain=True)
        yield Moment(number, list(acknowledged), files.kept(chance), certain=False)


def _noted(notes: Path) -> list[disk.Touch]:
    with notes.open("rb") as file:
        return list(pickle.load(file))


def _certain(log: Sequence[disk.Touch], number: int) -> bool:
    """Whether this is worth a look with what was synced alone: that, or what was acknowledged, is new."""
    kind = log[number].kind
    return kind in ("sync", "delete") or (kind != "note" and log[number - 1].kind == "note")
