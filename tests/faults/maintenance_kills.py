"""Backup, restore, prune, deletion, scrub, import, export and salvage as acts in which processes are killed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from holdfast import errors
from holdfast.salvage import salvage
from holdfast.store.db import SessionDB
from holdfast.store.sqlite import maintenance
from tests.faults import forbidden_states, mutations, zygote
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
    for name in ("one", "two", "three"):
        _talk(db, name, chance)
    marked = db.append_message("two", role="user", content=MARKER * chance.choice((1, 400)), uid="marker").seq
    for name in ("one", "two", "three"):
        blob = db.blobs.put(f"picture of {name}".encode() * chance.choice((1, 5_000)))
        db.append_message(name, role="user", content=[{"type": "image", "blob": blob.digest}], uid=f"{name}:blob")
    lease = db.acquire_lease("two", "compact", "me")
    db.commit_compaction(lease, summary=MARKER, cut_seq=marked, child_id="two on")
    db.branch("one", branch_id="branch")
    _others(db, chance)
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


def _others(db: SessionDB, chance: random.Random) -> None:
    """Up to four more conversations, and what may have become of them."""
    for number in range(chance.randrange(5)):
        name = f"other{number}"
        _talk(db, name, chance)
        match chance.randrange(5):
            case 0:
                db.bind_route(f"chat:{number}", name, version=0)
            case 1:
                db.hide(name, 1, 2)
            case 2:
                db.end_conversation(name, "done")
                db.resume(name)
            case 3:
                db.commit_compaction(db.acquire_lease(name, "compact", "me"), summary="short", cut_seq=2, pinned=[1])


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


def _prune(db: SessionDB, folder: Path) -> None:
    db.admin.prune(db.admin.plan_prune(older_than_days=0), folder / "archive.jsonl")


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


def _salvage(_: SessionDB | None, folder: Path) -> None:
    salvage.run(str(folder / "store.db"), str(folder / "new.db"))


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
    "prune": Act(("prune", "blob", "forget"), _prune),
    "delete": Act(("delete", "forget", "collect", "scrub"), _delete, removes=True),
    "redact": Act(("redact", "forget", "collect", "scrub"), _redact, removes=True),
    "shrink": Act(("shrink",), lambda db, _: db.admin.shrink()),
    "collect": Act(("collect",), lambda db, _: db.blobs.collect(0)),
    "put": Act(("blob",), lambda db, _: db.blobs.put(b"another picture")),
    "export": Act(("export", "blob"), lambda db, folder: db.admin.export_to(folder / "out.jsonl")),
    "import": Act(("import", "blob"), _import, piecemeal=True),
    "salvage": Act(("salvage", "blob"), _salvage, apart=True),
}


def perform(stage: zygote.Stage) -> int:
    """A task: the act itself, by a store that a `mutant` may break; `disk` says when to die, where no point does."""
    act, shim = ACTS[stage.args["act"]], faulty_disk.Disk() if "disk" in stage.args else None
    maintenance.BACKUP_PAGES = PAGES
    opened = contextlib.nullcontext() if act.apart else SessionDB(stage.path, clock=lambda: NOW + 86_400)
    broken = mutations.CARELESS[stage.args["mutant"]].changes if stage.args.get("mutant") else ()
    with opened as db, mutations.apply(broken):
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
        "copy": _copy(folder / "copies" / "copy.db"),
        "due": [_copy(path) for path in due],
        "archive": _archive(folder / "archive.jsonl"),
        "export": _archive(folder / "out.jsonl"),
        "salvaged": _salvaged(folder / "new.db"),
    }


_read: dict[object, Any] = {}


def _content(path: Path, read: Callable[[SessionDB], Any]) -> Any:
    """The content of a backup or an export. Files with the same bytes and attachments are read once."""
    if not path.exists():
        return None
    attachments = frozenset(each.name for each in Path(f"{path}.blobs").rglob("*"))
    key = blake2b(path.read_bytes()).digest(), attachments
    if key not in _read:
        with SessionDB(":memory:") as db:
            assert read(db).lost_blobs == ()
            assert db.admin.fsck().ok
            _read[key] = exported(db)
    return _read[key]


def _copy(path: Path) -> Any:
    return _content(path, lambda db: db.admin.restore(path))


def _archive(path: Path) -> Any:
    def read(db: SessionDB) -> Any:
        report = db.admin.import_from(path)
        assert report.ok
        return report

    return _content(path, read)


def _salvaged(path: Path) -> Any:
    if not path.exists():
        return None
    with SessionDB(path) as db:
        assert db.admin.fsck().ok
        return exported(db)


def drafts(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*.draft*")]


class Template:
    """A populated folder, laid out again for every kill."""

    def __init__(self, running: zygote.Zygote, folder: Path, seed: int) -> None:
        self.seed = seed
        template = folder / f"template {seed}"
        template.mkdir(mode=0o700)
        killed = seed % 2 == 1
        made = running.run(populate_folder, template, {"seed": seed, "killed": killed})
        assert (made.state, made.error) == (("killed", str(int(signal.SIGKILL))) if killed else ("exited", None)), made
        self._content = memory_folders.SavedFolder(template)
        self._home = folder
        self._count = 0

    def fresh(self) -> Path:
        self._count += 1
        return self._content.lay_out(self._home / f"{self.seed}.{self._count}")


class Course(NamedTuple):
    """An act in one history: the points it passes, and the parts before and after it."""

    template: Template
    act: str
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


class Stock:
    """Populated folders of several histories, the courses of acts in them, and the states that were checked."""

    def __init__(self, running: zygote.Zygote, folder: Path, seeds: Sequence[int], mutant: str = "") -> None:
        self._running = running
        self._mutant = mutant
        self._templates = [Template(running, folder, seed) for seed in seeds]
        self._courses: dict[str, list[Course]] = {}
        self.checked = set[tuple[object, ...]]()

    def courses(self, act: str) -> list[Course]:
        if act not in self._courses:
            self._courses[act] = [self._course(template, act) for template in self._templates]
        return self._courses[act]

    def _course(self, template: Template, act: str) -> Course:
        with _fresh(template) as folder:
            before = look(folder, act)
            done = self.run(folder, act)
            assert (done.state, done.error) == ("exited", None), f"{act} of seed {template.seed}: {done}"
            after = look(folder, act)
            assert act != "salvage" or after["salvaged"] == before["store"]
        return Course(template, act, done.reached, before, after)

    def run(self, folder: Path, act: str, *, at: int | None = None, **args: Any) -> zygote.Outcome:
        given, counting = {"act": act, "mutant": self._mutant, **args}, ACTS[act].operations
        return self._running.run(perform, folder / "store.db", given, points=counting, at=at, fingerprint=str(folder))


@contextlib.contextmanager
def _fresh(template: Template) -> Iterator[Path]:
    folder = template.fresh()
    yield folder
    shutil.rmtree(folder)


def look(folder: Path, act: str) -> Parts:
    """The contents; each conversation is a part of an act that goes from conversation to conversation."""
    found = contents(folder)
    if not ACTS[act].piecemeal:
        return found
    talks = conversations(found.pop("store"))
    return {**found, **{name: talks.get(name) for name in {*talks, *INCOMING}}}


def kill_at_every_point(
    stock: Stock, act: str, kills: int, chance: random.Random, among: Sequence[str] = ("",)
) -> Counter[str]:
    """Kill so often at each point (or at each whose name ends so), in different histories, the first, the last or any
    time the point is passed, while another process has the store open or not; how many kills there were."""
    courses = stock.courses(act)
    done: Counter[str] = Counter()
    points = sorted({name for course in courses for name in course.points if name.endswith(tuple(among))})
    for first, point in enumerate(points):
        having = [course for course in courses if point in course.points]
        for number in range(first, first + kills):
            course = having[number % len(having)]
            kind = number + number // len(having)
            places = [at for at, name in enumerate(course.points) if name == point]
            at = (places[0], places[-1], chance.choice(places))[kind % 3]
            where = f"{act} killed at {point} ({at}), kind {kind % 4}, seed {course.template.seed}"
            watched = kind % 2 == 1 and not ACTS[act].apart
            with _fresh(course.template) as folder, contextlib.ExitStack() as stack:
                watcher = stack.enter_context(SessionDB(folder / "store.db")) if watched else None
                outcome = stock.run(folder, act, at=at)
                assert outcome.state == "killed", f"{where}: {outcome}"
                _check(stock, course, folder, outcome.fingerprint, where, watcher, again=kind % 4 > 1)
            done[point] += 1
    return done


def kill_between_writes(stock: Stock, act: str, most: int) -> int:
    """Kill before every write to the disk, or before some of them; return the number of kills."""
    course = stock.courses(act)[0]
    with _fresh(course.template) as folder:
        touches = stock.run(folder, act, disk={"at": None, "how": "kill"}).value
    numbers = range(0, touches, max(1, touches // most))
    for number in numbers:
        where = f"{act} killed at write {number} of {touches}, seed {course.template.seed}"
        with _fresh(course.template) as folder:
            outcome = stock.run(folder, act, disk={"at": number, "how": "kill"})
            assert outcome.state == "killed", where
            _check(stock, course, folder, outcome.fingerprint, where, again=True)
    return len(numbers)


def _check(
    stock: Stock,
    course: Course,
    folder: Path,
    fingerprint: str,
    where: str,
    watcher: SessionDB | None = None,
    *,
    again: bool,
) -> None:
    """Old or new, and the next message is accepted. Two equal folders need no second look."""
    left = (course.template.seed, course.act, fingerprint, watcher is None, again)
    if left in stock.checked:
        return
    stock.checked.add(left)
    try:
        new = course.check_parts(look(folder, course.act))
        assert course.act != "prune" or "store" not in new or "archive" in new, "removed without its archive"
        if again:
            if watcher is not None:
                watcher.close()  # the files are looked into
            _repeat(stock, course, folder, new)
        with contextlib.nullcontext(watcher) if watcher and not again else SessionDB(folder / "store.db") as db:
            receipt = db.append_message("one", role="user", content="next", uid="next")
            assert [message.uid for message in db.transcript("one", after=receipt.seq - 1)] == ["next"]
            assert not again or db.admin.fsck().ok
    except (AssertionError, errors.HoldfastError) as error:
        raise AssertionError(f"{where}: {type(error).__name__} {error}") from error


# An act that cannot be repeated when this part is new: nothing is left to do, or it is refused.
ONCE = {"prune": "store", "salvage": "salvaged"}


def _repeat(stock: Stock, course: Course, folder: Path, new: set[str]) -> None:
    act = course.act
    if ONCE.get(act) in new:
        return
    (folder / "archive.jsonl").unlink(missing_ok=True)
    outcome = stock.run(folder, act)
    assert (outcome.state, outcome.error) == ("exited", None), outcome
    found = look(folder, act)
    # A scheduled backup that was claimed by the dead process is made when the claim has run out.
    wrong = [part for part in found if found[part] != course.after[part] and part != "due"]
    assert not wrong, f"repeated, not done: {wrong}"
    if ACTS[act].removes:
        files = [path for path in folder.glob("store.db*") if path.is_file()]
        assert [path.name for path in files if MARKER.encode() in path.read_bytes()] == []
    if act != "backup_if_due":
        assert drafts(folder) == []
