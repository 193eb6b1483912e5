"""Power lost at any moment: the possible contents of the disk, computed from all writes to it."""

from __future__ import annotations

import contextlib
import pickle
import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from holdfast import errors, types
from holdfast.store.db import SessionDB
from tests.faults import checker, steps, zygote
from tests.support import faulty_disk

SECTOR = 512
LIFE = 4
ROUTE, CLAIM = "chat:c", "route:chat:c"


def live(stage: zygote.Stage) -> None:
    """A task: two short lives of a store, written down."""
    shim = faulty_disk.Disk(keep=True)
    shim.arm(stage.args.get("hole"), "hole")
    for life in range(2):
        with stage.open(durability=stage.args["durability"]) as db:
            _converse(db, shim, life)
    with open(stage.args["notes"], "wb") as file:
        pickle.dump(shim.log, file)


def _converse(db: SessionDB, shim: faulty_disk.Disk, life: int) -> None:
    if life == 0:
        db.create_session("c", source="test")
    for number in range(LIFE - 1):
        uid = f"{life}.{number}"
        with contextlib.suppress(errors.StoreError):
            db.append_message("c", role="user", content=f"said {uid} " * 100, uid=uid)
            shim.note(f"said {uid}")
    with contextlib.suppress(errors.StoreError):
        _correspond(db, shim, f"{life}.{LIFE - 1}")
    # Neither this nor the claim is synced, nor is what begins under it.
    lease = db.acquire_lease("c", "compact")
    shim.note(f"leased {msgspec.json.encode(lease).decode()}")
    cut = lease.snapshot.last_seq - 1
    db.commit_compaction(lease, summary=checker.summarize(db.context("c"), cut), cut_seq=cut, child_id=f"c-{life}")
    shim.note(f"compacted c-{life}")


def _correspond(db: SessionDB, shim: faulty_disk.Disk, key: str) -> None:
    """Receive a message, answer it and send the reply; record each acknowledgement."""
    arrival = steps.came(db, "c", key)
    shim.note(f"arrived {key}")
    taken = db.mail.begin_next_inbound(ROUTE, lambda waiting, _: (waiting[0].id, "c", ()))
    assert taken.lease is not None
    shim.note(f"claimed {msgspec.json.encode(taken.lease).decode()}")
    try:
        _answer(db, shim, taken.lease, arrival)
    finally:
        db.mail.release_chat_lease(taken.lease)


def _answer(db: SessionDB, shim: faulty_disk.Disk, claim: types.ChatLease, arrival: types.InboundMessage) -> None:
    key = arrival.key
    seq = db.append_message("c", role="user", content=arrival.text, uid=uid_of(key)).seq
    shim.note(f"said {uid_of(key)}")
    steps.answer(db, claim, arrival.id, seq)
    shim.note(f"answered {key}")
    for part in db.mail.replies(arrival.id):
        db.mail.begin_sending(claim, part.id)
        db.mail.mark_delivered(part.id, "there")
        shim.note(f"delivered {key} {part.part}")


def uid_of(key: str) -> str:
    return f"inbox:far:{key}"


class Moment(NamedTuple):
    """The plug is pulled here: what had been acknowledged, and what the disk may hold."""

    number: int
    acknowledged: list[str]
    files: dict[str, bytes]

    def noted(self, verb: str) -> list[str]:
        """Return the acknowledged writes of one kind, in order."""
        return [note.removeprefix(f"{verb} ") for note in self.acknowledged if note.startswith(f"{verb} ")]


class _Files:
    """The synced content of each file, and the writes that may or may not be on the disk."""

    def __init__(self) -> None:
        self.synced: dict[str, bytearray] = {}
        self.pending: dict[str, list[faulty_disk.Touch]] = {}

    def take(self, touch: faulty_disk.Touch) -> None:
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
        """Return the synced content; with chance, also some of the unsynced writes."""
        names = self.synced.keys() | self.pending.keys()
        return {
            name: bytes(self._with(name, _survivors(self.pending.get(name, []), chance) if chance else []))
            for name in sorted(names)
        }

    def _with(self, name: str, touches: Iterable[faulty_disk.Touch]) -> bytearray:
        data = bytearray(self.synced.get(name, b""))
        for touch in touches:
            if touch.kind == "truncate":
                del data[touch.offset :]
                continue
            data.extend(bytes(max(0, touch.offset - len(data))))
            data[touch.offset : touch.offset + len(touch.data)] = touch.data
        return data


def _survivors(touches: Sequence[faulty_disk.Touch], chance: random.Random) -> Iterator[faulty_disk.Touch]:
    for touch in touches:
        if touch.kind == "truncate":
            yield touch
        for start in range(0, len(touch.data), SECTOR):
            if chance.random() < 0.7:
                yield touch._replace(offset=touch.offset + start, data=touch.data[start : start + SECTOR])


def opened(moment: Moment, folder: Path) -> SessionDB:
    """A store on this disk."""
    folder.mkdir(mode=0o700)
    # The child may have called its store anything.
    for name, data in moment.files.items():
        (folder / f"store.db{name.partition('.db')[2]}").write_bytes(data)
    return SessionDB(folder / "store.db")


def check(moment: Moment, folder: Path) -> None:
    """Assert that nothing acknowledged is missing, and remove the folder."""
    where, messages = f"power lost at {moment.number}", moment.noted("said")
    with opened(moment, folder) as db:
        log = [message.uid for message in db.transcript("c")] if db.get_session("c") else []
        assert checker.verify(db, also=["c"] if log else []) == [], where
        # One more message may be stored and not yet acknowledged.
        assert log[: len(messages)] == messages, where
        assert len(log) <= len(messages) + 1, where
        assert set(moment.noted("compacted")) <= {session.id for session in db.list_sessions(every=True)}, where
        _check_mail(db, moment, where)
        _check_old_leases(db, moment)
    shutil.rmtree(folder)


def _check_mail(db: SessionDB, moment: Moment, where: str) -> None:
    for key in moment.noted("arrived"):
        inbound = db.mail.inbound_by_key("far", key)
        assert inbound is not None, f"{where}: {key} is lost"
        replies = db.mail.replies(inbound.id)
        if key in moment.noted("answered"):
            assert (inbound.outcome, len(replies)) == ("answered", 2), f"{where}: {key}"
        sent = {f"{key} {each.part}" for each in replies if each.delivered_at is not None}
        assert {each for each in moment.noted("delivered") if each.startswith(f"{key} ")} <= sent, where


def _check_old_leases(db: SessionDB, moment: Moment) -> None:
    """Assert that the last holders of a chat lease and of a lease cannot write after another process took it over.

    The store may have forgotten a lease: then the next holder gets the same token, and yet is another.
    """
    for text in moment.noted("claimed")[-1:]:
        last = steps.came(db, "c", "last").id
        db.mail.acquire_chat_lease(CLAIM)
        with pytest.raises(errors.LeaseLost):
            db.mail.settle_inbound(msgspec.json.decode(text, type=types.ChatLease), last, "ignored")
    for text in moment.noted("leased")[-1:]:
        db.acquire_lease("c", "compact")
        with pytest.raises((errors.LeaseLost, errors.Superseded)):
            db.commit_compaction(msgspec.json.decode(text, type=types.Lease), summary="", cut_seq=1)


def last_moment(notes: Path) -> Moment:
    """Return the disk after all writes, with synced content only."""
    return list(moments(notes, None))[-1]


def moments(notes: Path, chance: random.Random | None, every: int = 1) -> Iterator[Moment]:
    """After every sync the synced content; with chance, after every touch of the disk, or every so many-th, also a
    part of what was not synced. While the store is made, which is long and acknowledges nothing, after every fifth."""
    files, acknowledged, is_new = _Files(), list[str](), False
    for number, touch in enumerate(_noted(notes)):
        files.take(touch)
        if touch.kind == "note":
            acknowledged.append(touch.data.decode())
            is_new = True
            continue
        # A check is worthwhile where the synced content or the acknowledgements are new.
        if is_new or touch.kind in ("sync", "delete"):
            yield Moment(number, list(acknowledged), files.kept(None))
        is_new = False
        if chance and number % (every if acknowledged else max(every, 5)) == 0:
            yield Moment(number, list(acknowledged), files.kept(chance))


def syncs_of_the_log(notes: Path) -> list[int]:
    """The number of each among all touches of the disk."""
    touches = [touch for touch in _noted(notes) if touch.kind not in ("note", "delete")]
    return [number for number, touch in enumerate(touches) if touch.kind == "sync" and touch.file.endswith("-wal")]


def _noted(notes: Path) -> list[faulty_disk.Touch]:
    with notes.open("rb") as file:
        return list(pickle.load(file))
