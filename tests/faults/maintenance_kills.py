"""Backup, restore, prune, deletion, scrub, import, export and salvage as acts in which processes are killed."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import errors
from holdfast.salvage import salvage
from holdfast.store.db import SessionDB
from holdfast.store.sqlite import maintenance
from tests.faults import forbidden_states, zygote
from tests.support import faulty_disk, memory_folders

NOW = 2_000_000_000.0
MARKER = "a text that must go"
# A copy of these small stores takes many steps, as that of a large one does.
PAGES = 9
INCOMING = ("a", "b", "a-b", "e", "u", "m")


Parts = dict[str, Any]


def populate(db: SessionDB, folder: Path, seed: int) -> None:
    """Create a store, an earlier backup of it, and changes after that backup; the seed determines the history."""
    chance = random.Random(seed)
    names = ["one", "two", "three", *(f"other{number}" for number in range(chance.randrange(5)))]
    for name in names:
        _talk(db, name, chance)
    marked = db.append_message("two", role="user", content=MARKER * chance.choice((1, 400)), uid="marker").seq
    for name in names[:3]:
        blob = db.blobs.put(f"picture of {name}".encode() * chance.choice((1, 5_000)))
        db.append_message(name, role="user", content=[{"type": "image", "blob": blob.digest}], uid=f"{name}:blob")
    lease = db.acquire_lease("two", "compact", "me")
    db.commit_compaction(lease, summary=MARKER, cut_seq=marked, child_id="two on")
    db.branch("one", branch_id="branch")
    for name in names[3:]:
        db.bind_route(f"chat:{name}", name, version=0)
        db.hide(name, 1, 2)
        db.end_conversation(name, "done")
        db.resume(name)
        db.commit_compaction(db.acquire_lease(name, "compact", "me"), summary="short", cut_seq=2, pinned=[1])
    db.admin.backup(folder / "copies" / "copy.db")
    db.admin.export_to(folder / "out.jsonl")
    if chance.random() < 0.5:
        db.admin.update_search_index()
    blob = db.blobs.put(b"picture taken after the backup")
    db.append_message("one", role="user", content=[{"type": "image", "blob": blob.digest}], uid="after")
    db.create_session("later", source="fault")
    db.append_message("later", role="user", content="later", uid="later")
    db.blobs.put(b"no message names this")
    db.delete_conversation("three")
    if chance.random() < 0.5:
        db.blobs.collect()  # the attachment of the deleted is now in the backup only


def _talk(db: SessionDB, name: str, chance: random.Random) -> None:
    db.create_session(name, source="fault", title=name)
    for number in range(chance.randint(3, 9)):
        content = f"{name} {number} " * chance.choice((1, 1, 40, 900))
        db.append_message(name, role=chance.choice(("user", "assistant")), content=content, uid=f"{name}:{number}")
    db.update_budget(name, 0, {"attempts": [name] * 900})


def populate_folder(stage: zygote.Stage) -> None:
    """A task: create a folder whose last process closed the store, or died and left its log behind."""
    folder = Path(stage.path)
    with SessionDB(":memory:", clock=lambda: NOW) as other:
        forbidden_states.populate(other)
        blob = other.blobs.put(b"picture from elsewhere")
        other.append_message("e", role="user", content=[{"type": "image", "blob": blob.digest}], uid="e:blob")
        other.admin.export_to(folder / "incoming.jsonl")
    with SessionDB(folder / "store.db", clock=lambda: NOW) as db:
        populate(db, folder, stage.args["seed"])
        if stage.args["killed"]:
            os.kill(os.getpid(), signal.SIGKILL)


def _delete(db: SessionDB, _: Path) -> None:
    if db.get_session("two"):
        db.delete_conversation("two")
    db.admin.scrub()


def _redact(db: SessionDB, _: Path) -> None:
    said = next(message for message in db.transcript("two") if message.uid == "marker")
    if not said.redacted:
        db.redact("two", said.seq)
    db.admin.scrub()


def _import(db: SessionDB, folder: Path) -> None:
    report = db.admin.import_from(folder / "incoming.jsonl")
    assert (report.ok, report.lost_blobs) == (True, ())


class Act(NamedTuple):
    """A task, the operations whose fault points count, and whether the marker must be in no file in the end.

    `piecemeal`: conversation after conversation, each of them wholly. `apart`: no process may have the store open.
    """

    operations: tuple[str, ...]
    run: Callable[[Any, Path], Any]
    removes: bool = False
    piecemeal: bool = False
    apart: bool = False


ACTS = {
    "backup": Act(("backup", "blob"), lambda db, folder: db.admin.backup(folder / "copies" / "copy.db")),
    "backup_if_due": Act(("backup", "blob", "claim"), lambda db, folder: db.admin.backup_if_due(folder / "due", 24, 2)),
    "restore": Act(("restore", "blob"), lambda db, folder: db.admin.restore(folder / "copies" / "copy.db")),
    "prune": Act(
        ("prune", "blob", "forget"),
        lambda db, folder: db.admin.prune(db.admin.plan_prune(older_than_days=0), folder / "archive.jsonl"),
    ),
    "delete": Act(("delete", "forget", "collect", "scrub"), _delete, removes=True),
    "redact": Act(("redact", "forget", "collect", "scrub"), _redact, removes=True),
    "shrink": Act(("shrink",), lambda db, _: db.admin.shrink()),
    "collect": Act(("collect",), lambda db, _: db.blobs.collect(0)),
    "put": Act(("blob",), lambda db, _: db.blobs.put(b"another picture")),
    "export": Act(("export", "blob"), lambda db, folder: db.admin.export_to(folder / "out.jsonl")),
    "import": Act(("import", "blob"), _import, piecemeal=True),
    "salvage": Act(
        ("salvage", "blob"),
        lambda _, folder: salvage.run(str(folder / "store.db"), str(folder / "new.db")),
        apart=True,
    ),
}


def perform(stage: zygote.Stage) -> int:
    """A task: the act itself; `disk` says when to die, where no point does."""
    act, shim = ACTS[stage.args["act"]], faulty_disk.Disk() if "disk" in stage.args else None
    maintenance.BACKUP_PAGES = PAGES
    with contextlib.nullcontext() if act.apart else SessionDB(stage.path, clock=lambda: NOW + 86_400) as db:
        if shim:
            shim.arm(**stage.args["disk"])
        act.run(db, Path(stage.path).parent)
    return shim.count if shim else 0


def copy(stage: zygote.Stage) -> str:
    """A task: copy everything of one store into another; the digest."""
    with SessionDB(stage.args["source"]) as source, SessionDB(stage.args["target"]) as target:
        return source.admin.copy_to(target.admin).digest


# Lines with counters or digests of them; a text inside of a line has its quotes escaped.
_COUNTING = re.compile(r'"kind":"(conversation|route|sealed|end)"')
_CHANGING = ("epoch", "fence", "version", "digest", "created_at")


def exported(db: SessionDB) -> list[str]:
    """The lines of an export. They stay text: thousands are kept and compared."""
    out = io.StringIO()
    db.admin.export_to(out)
    return [_steady(line) if _COUNTING.search(line) else line for line in out.getvalue().splitlines()]


def _steady(line: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line).items() if key not in _CHANGING})


def conversations(lines: list[str]) -> dict[str, list[str]]:
    """An export, conversation by conversation."""
    found: dict[str, list[str]] = {}
    for line in lines:
        if '"kind": "conversation"' in line:
            found[json.loads(line)["id"]] = []
        if found and '"kind": "end"' not in line:
            found[next(reversed(found))].append(line)
    return found


def contents(folder: Path) -> Parts:
    """The store, the copies and the archives, each sound; a part that is not there is None."""
    with SessionDB(folder / "store.db", clock=lambda: NOW) as db:
        assert db.admin.fsck().ok, db.admin.fsck()
        kept = {digest: db.blobs.files.state(digest) for digest, *_ in db.driver.read(lambda tx: tx.all("blobs_all"))}
        # The content of an unnamed attachment goes before its row; fsck has checked the named ones.
        found = {"store": exported(db), "blobs": [digest for digest, state in kept.items() if state == "sound"]}
    due = sorted((folder / "due").glob("*.db")) if (folder / "due").exists() else []
    return {
        **found,
        "copy": _content(folder / "copies" / "copy.db", "restore"),
        "due": [_content(path, "restore") for path in due],
        "archive": _content(folder / "archive.jsonl", "import_from"),
        "export": _content(folder / "out.jsonl", "import_from"),
        "salvaged": _salvaged(folder / "new.db"),
    }


_read: dict[object, Any] = {}


def _content(path: Path, read: str) -> Any:
    """The content of a backup or an export, read by a method. Equal files with equal attachments are read once."""
    if not path.exists():
        return None
    attachments = frozenset(each.name for each in Path(f"{path}.blobs").rglob("*"))
    key = blake2b(path.read_bytes()).digest(), attachments
    if key not in _read:
        with SessionDB(":memory:") as db:
            assert getattr(db.admin, read)(path).lost_blobs == ()
            assert db.admin.fsck().ok
            _read[key] = exported(db)
    return _read[key]


def _salvaged(path: Path) -> Any:
    if not path.exists():
        return None
    with SessionDB(path) as db:
        assert db.admin.fsck().ok
        return exported(db)


class Course(NamedTuple):
    """The points that an act passes in one history, and the parts before and after it."""

    points: tuple[str, ...]
    before: Parts
    after: Parts

    def check_parts(self, found: Parts) -> set[str]:
        """The parts that are new already; each part must be the old or the new one."""
        half = [part for part in found if found[part] not in (self.before[part], self.after[part])]
        # Attachments are files, each there or not: the next collection takes what a deletion leaves of them.
        before, after = set(self.before["blobs"]), set(self.after["blobs"])
        if half == ["blobs"] and before & after <= set(found["blobs"]) <= before | after:
            half = []
        assert not half, f"half done: {half}"
        return {part for part in found if found[part] != self.before[part]}


class History:
    """A populated folder, laid out again for every kill, the courses of acts in it, and the states already checked."""

    def __init__(self, running: zygote.Zygote, home: Path, seed: int) -> None:
        self.seed = seed
        self.checked = set[tuple[object, ...]]()
        self._running, self._home = running, home
        self._courses, self._numbers = dict[str, Course](), itertools.count()
        template = home / f"template {seed}"
        template.mkdir(mode=0o700)
        killed = seed % 2 == 1
        made = running.run(populate_folder, template, {"seed": seed, "killed": killed})
        assert (made.state, made.error) == (("killed", str(int(signal.SIGKILL))) if killed else ("exited", None)), made
        self._content = memory_folders.SavedFolder(template)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Path]:
        folder = self._content.lay_out(self._home / f"{self.seed}.{next(self._numbers)}")
        try:
            yield folder
        finally:
            shutil.rmtree(folder)

    def run(self, folder: Path, act: str, *, at: int | None = None, **args: Any) -> zygote.Outcome:
        given, counting = {"act": act, **args}, ACTS[act].operations
        return self._running.run(perform, folder / "store.db", given, points=counting, at=at, fingerprint=str(folder))

    def course(self, act: str) -> Course:
        if act not in self._courses:
            with self.fresh() as folder:
                before = look(folder, act)
                done = self.run(folder, act)
                assert (done.state, done.error) == ("exited", None), f"{act} of seed {self.seed}: {done}"
                after = look(folder, act)
                assert act != "salvage" or after["salvaged"] == before["store"]
            self._courses[act] = Course(done.reached, before, after)
        return self._courses[act]


def look(folder: Path, act: str) -> Parts:
    """The contents; each conversation is a part of an act that goes from conversation to conversation."""
    found = contents(folder)
    if not ACTS[act].piecemeal:
        return found
    talks = conversations(found.pop("store"))
    return {**found, **{name: talks.get(name) for name in {*talks, *INCOMING}}}


def kill_at_every_point(histories: Sequence[History], act: str, kills: int, chance: random.Random) -> list[str]:
    """Kill so often at each point, in different histories, the first, the last or any time the point is passed, while
    another process has the store open or not; return the points."""
    points = sorted({name for history in histories for name in history.course(act).points})
    for first, point in enumerate(points):
        having = [history for history in histories if point in history.course(act).points]
        for number in range(first, first + kills):
            history = having[number % len(having)]
            kind = number + number // len(having)
            places = [at for at, name in enumerate(history.course(act).points) if name == point]
            at = (places[0], places[-1], chance.choice(places))[kind % 3]
            where = f"{act} killed at {point} ({at}), kind {kind % 4}, seed {history.seed}"
            watched = kind % 2 == 1 and not ACTS[act].apart
            with history.fresh() as folder, contextlib.ExitStack() as stack:
                watcher = stack.enter_context(SessionDB(folder / "store.db")) if watched else None
                outcome = history.run(folder, act, at=at)
                assert outcome.state == "killed", f"{where}: {outcome}"
                _check(history, act, folder, outcome.fingerprint, where, watcher, again=kind % 4 > 1)
    return points


def kill_between_writes(history: History, act: str, most: int) -> int:
    """Kill before every write to the disk, or before some of them; return the number of kills."""
    with history.fresh() as folder:
        touches = history.run(folder, act, disk={"at": None, "how": "kill"}).value
    numbers = range(0, touches, max(1, touches // most))
    for number in numbers:
        where = f"{act} killed at write {number} of {touches}, seed {history.seed}"
        with history.fresh() as folder:
            outcome = history.run(folder, act, disk={"at": number, "how": "kill"})
            assert outcome.state == "killed", where
            _check(history, act, folder, outcome.fingerprint, where, again=True)
    return len(numbers)


def _check(
    history: History,
    act: str,
    folder: Path,
    fingerprint: str,
    where: str,
    watcher: SessionDB | None = None,
    *,
    again: bool,
) -> None:
    """Old or new, and the next message is accepted. Two equal folders need no second look."""
    left = (act, fingerprint, watcher is None, again)
    if left in history.checked:
        return
    history.checked.add(left)
    try:
        new = history.course(act).check_parts(look(folder, act))
        assert act != "prune" or "store" not in new or "archive" in new, "removed without its archive"
        if again:
            if watcher is not None:
                watcher.close()  # the files are looked into
            _repeat(history, act, folder, new)
        with contextlib.nullcontext(watcher) if watcher and not again else SessionDB(folder / "store.db") as db:
            receipt = db.append_message("one", role="user", content="next", uid="next")
            assert [message.uid for message in db.transcript("one", after=receipt.seq - 1)] == ["next"]
            assert not again or db.admin.fsck().ok
    except (AssertionError, errors.HoldfastError) as error:
        raise AssertionError(f"{where}: {type(error).__name__} {error}") from error


# An act that cannot be repeated when this part is new: nothing is left to do, or it is refused.
ONCE = {"prune": "store", "salvage": "salvaged"}


def _repeat(history: History, act: str, folder: Path, new: set[str]) -> None:
    if ONCE.get(act) in new:
        return
    (folder / "archive.jsonl").unlink(missing_ok=True)
    outcome = history.run(folder, act)
    assert (outcome.state, outcome.error) == ("exited", None), outcome
    found = look(folder, act)
    # A scheduled backup that was claimed by the dead process is made when the claim has run out.
    wrong = [part for part in found if found[part] != history.course(act).after[part] and part != "due"]
    assert not wrong, f"repeated, not done: {wrong}"
    if ACTS[act].removes:
        files = [path for path in folder.glob("store.db*") if path.is_file()]
        assert [path.name for path in files if MARKER.encode() in path.read_bytes()] == []
    if act != "backup_if_due":
        assert list(folder.rglob("*.draft*")) == []
