"""Import: an export is written again, step by step, with every constraint of the database in force.

A conversation is gathered and checked first (in memory, or in a nameless file when it is long), and only
then written, in one transaction: the store is never locked while somebody else's file is read, and a
conversation is there as a whole or not at all. One that is here already, and the same, is left alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import IO, Any, NamedTuple, Protocol

import msgspec

from holdfast import errors, reports, types
from holdfast.store import message_codec, validation
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Tx
from holdfast.store.sqlite import connection as sqlite_connection
from holdfast.store.transfer import export, replay, validate
from holdfast.store.transfer import format as transfer_format

LONGEST = message_codec.MAX_BODY + 65_536
IN_MEMORY = 8 * 1024 * 1024
OFTEN = 1_000


class Readable(Protocol):
    """A file, as far as an import needs one."""

    def readline(self, limit: int, /) -> str | bytes: ...


Source = Readable | Iterable[str | bytes]


class Imports(blobs.Blobs):
    """The part of SessionDB that takes conversations in."""

    def import_from(
        self,
        read: Source | os.PathLike[str],
        *,
        revive: bool = False,
        progress: Progress | None = None,
    ) -> reports.ImportReport:
        """Take in what export_to wrote, from a path, a file (text or binary) or anything that gives lines.

        Beside a path, in `<path>.blobs`, are its attachments; one that is missing is told of and hinders nothing.
        Raises ImportInvalid when it is no export at all. What is wrong with a conversation is in the report,
        and that conversation is not in the store; the others are. Repeating an import changes nothing.
        Ids that were deleted here are refused; with `revive` such a conversation comes in under new ids.
        `progress` is called with how many messages and how many lines are done.
        """
        validation.check(validation.Flag, revive=revive)
        with _opened(read) as (source, brought):
            incoming = blobs.Incoming(self.driver, self._shelf, brought)
            return _Import(self.driver, incoming, self._clock(), revive, progress).run(_numbered(source))


# --- lines from outside ------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened(read: Source | os.PathLike[str]) -> Iterator[tuple[Source, blob_files.Shelf | None]]:
    """What gives the lines; and the attachments beside it, if it is a path."""
    if not isinstance(read, os.PathLike):
        yield read, None
        return
    path = os.fspath(read)
    if not isinstance(path, str) or "\0" in path:
        raise errors.InvalidArgument("The path of an export is text.")
    sqlite_connection.refuse_live(path)
    with atomic_file.saying(path):
        file = open(path, "rb")  # noqa: SIM115 -- closed below, where errors are those of the store
    with file:
        yield file, blobs.beside(path)


class Numbered(NamedTuple):
    """A line of the file; what is wrong with it, if it could not even be read as text."""

    number: int
    data: bytes
    problem: str = ""


def _numbered(read: Source) -> Iterator[Numbered]:
    source = _portions(read)
    for number in itertools.count(1):
        try:
            line = next(source)
        except StopIteration:
            return
        except UnicodeDecodeError:
            # The file decodes by itself and has lost its place; what comes after cannot be trusted.
            yield Numbered(number, b"", "this is not valid UTF-8")
            return
        yield _as_bytes(number, line)


def _portions(read: Source) -> Iterator[str | bytes]:
    readline = getattr(read, "readline", None)
    if readline is None:
        if isinstance(read, str | bytes) or not isinstance(read, Iterable):
            raise errors.InvalidArgument("Give a path, an open file, or something that gives lines.")
        yield from read
        return
    while line := readline(LONGEST + 1):
        yield line
        while len(line) > LONGEST and line[-1:] not in ("\n", b"\n"):
            line = readline(LONGEST + 1)  # the rest of a line that is refused anyway


def _as_bytes(number: int, line: object) -> Numbered:
    if isinstance(line, str):
        try:
            line = line.encode()
        except UnicodeEncodeError:
            return Numbered(number, b"", "this is not valid Unicode")
    if not isinstance(line, bytes):
        return Numbered(number, b"", "this is neither text nor bytes")
    if len(line) > LONGEST:
        return Numbered(number, b"", "this line is longer than any line of an export")
    return Numbered(number, line.rstrip(b"\r\n"))


def _decoded(line: Numbered) -> transfer_format.Line:
    problem = line.problem
    if not problem:
        try:
            return transfer_format.decode(line.data)
        except msgspec.ValidationError as error:
            problem = _misfit(str(error))
        except (msgspec.DecodeError, UnicodeDecodeError):
            problem = "this is not JSON"
        except RecursionError:
            problem = "this is nested too deep"
    # Raised outside of the handlers: the error at hand may hold the text itself.
    raise errors.ImportInvalid(line.number, problem)


def _misfit(problem: str) -> str:
    """What a newer Holdfast added to its lines has no place here, so it cannot be kept: it is never dropped."""
    new = re.fullmatch(r"Object contains unknown field `(.{1,60})`", problem)
    if new:
        return f"this line has a field {errors.shown(new[1])} that this Holdfast does not know; a newer one may"
    if problem.startswith("Invalid value") and problem.endswith("`$.kind`"):
        return "this is a kind of line that this Holdfast does not know; a newer one may"
    return f"this is no line of an export ({problem})"


# --- one conversation --------------------------------------------------------------------------------


class Part(AbstractContextManager["Part"]):
    """The lines of one conversation, gathered and checked; or why they are refused."""

    def __init__(self, first: int, conversation: transfer_format.Conversation | None) -> None:
        self.first = first
        self.conversation = conversation
        self.problem: errors.ImportInvalid | None = None
        self.count = 0
        self.blobs: list[transfer_format.Blob] = []
        self.sessions: list[str] = []
        self._sealing = transfer_format.SealBuilder(conversation.id if conversation else "")
        self._vetting = validate.Vetting(conversation) if conversation else None
        self._kept: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115 -- closed by __exit__

    def __exit__(self, *_: object) -> None:
        self._kept.close()

    def refuse(self, number: int, problem: str) -> None:
        self.problem = self.problem or errors.ImportInvalid(number, problem)

    def add(self, number: int, line: transfer_format.Line, data: bytes) -> None:
        if self.problem or self._vetting is None:
            return
        try:
            self._vetting.check(number, line)
        except errors.ImportInvalid as error:
            self.problem = error
            return
        if isinstance(line, transfer_format.Blob):
            self.blobs.append(line)
        elif isinstance(line, transfer_format.Session):
            self.sessions.append(line.id)
        self._sealing.add(line, data)
        self._kept.write(data + b"\n")
        self.count += 1

    def close(self, number: int, sealed: transfer_format.Sealed) -> None:
        """The last line came: was it all, and as it was written?"""
        if self.problem or self._vetting is None:
            return
        try:
            self._vetting.finish(number)
        except errors.ImportInvalid as error:
            self.problem = error
        if sealed != self._sealing.build():
            self.refuse(number, f"lines of conversation {errors.shown(sealed.id)} were changed, lost or added")

    @property
    def messages(self) -> int:
        return self._sealing.messages

    def lines(self) -> Iterator[tuple[int, transfer_format.Line]]:
        """Every line with its number, as often as asked."""
        self._kept.seek(0)
        for offset in range(self.count):
            yield self.first + offset, transfer_format.decode(self._kept.readline())


# --- the whole file ----------------------------------------------------------------------------------


# What is wrong with one conversation; every other error ends the import.
_REFUSALS = (
    errors.ImportConflict,
    errors.IdTaken,
    errors.ImportInvalid,
    errors.InvalidArgument,
    errors.ConversationDeleted,
)


class _Import:
    """One import on its way in."""

    def __init__(
        self,
        driver: Driver,
        incoming: blobs.Incoming,
        now: float,
        revive: bool,
        progress: Progress | None,
    ) -> None:
        self._driver = driver
        self._incoming = incoming
        self._now = now
        self._revive = revive
        self._progress = progress
        self._outcomes: list[reports.ImportOutcome] = []
        self._ending = transfer_format.EndBuilder()
        self._messages = 0
        # What became of each conversation: the id it has here, or None when it is not here.
        self._here: dict[str, str | None] = {}

    def run(self, source: Iterator[Numbered]) -> reports.ImportReport:
        _check_header(next(source, Numbered(1, b"")))
        part: Part | None = None
        end: transfer_format.End | None = None
        number = 1
        for number, data, problem in source:
            part, end = self._line(Numbered(number, data, problem), part, end)
            if self._progress and number % OFTEN == 0:
                self._progress(self._messages, number)
        if part is not None:
            self._cut_short(part, number, "the file ends in the middle of a conversation")
        elif end is None:
            self._refused(None, number, "the file has no last line: conversations may be missing at its end")
        self._incoming.settle()
        lost = tuple(sorted(self._incoming.lost))
        return reports.ImportReport(tuple(self._outcomes), self._messages, self._incoming.came, lost)

    def _line(
        self, numbered: Numbered, part: Part | None, end: transfer_format.End | None
    ) -> tuple[Part | None, transfer_format.End | None]:
        """One more line; the conversation that is open after it, and the end of the file if it was that."""
        number = numbered.number
        try:
            line = _decoded(numbered)
        except errors.ImportInvalid as error:
            part = part or Part(number, None)
            part.refuse(number, error.reason)
            return part, end
        if end is not None:
            self._refused(None, number, "there are lines after the last one")
            return part, end
        match line:
            case transfer_format.Conversation():
                if part is not None:
                    self._cut_short(part, number, "a conversation begins before the last one is sealed")
                part = Part(number, line)
                part.add(number, line, numbered.data)
            case transfer_format.Sealed():
                self._seal(part or Part(number, None), number, line)
                return None, end
            case transfer_format.End():
                if part is not None:
                    self._cut_short(part, number, "the file ends in the middle of a conversation")
                self._check_end(number, line)
                return None, line
            case _:
                part = part or Part(number, None)
                part.add(number, line, numbered.data)
                if part.conversation is None:
                    part.refuse(number, "this line belongs to no conversation")
        return part, end

    def _check_end(self, number: int, line: transfer_format.End) -> None:
        if line != self._ending.build():
            self._refused(None, number, "conversations were lost, added, repeated or put in another order")

    def _cut_short(self, part: Part, number: int, problem: str) -> None:
        with part:
            part.refuse(number, problem)
            self._outcome(part, None)

    def _refused(self, conversation_id: str | None, number: int, problem: str) -> None:
        error = errors.ImportInvalid(number, problem)
        self._outcomes.append(reports.ImportOutcome(conversation_id, "refused", number, error))

    def _seal(self, part: Part, number: int, sealed: transfer_format.Sealed) -> None:
        with part:
            self._ending.add(sealed)
            if part.conversation is None:
                part.refuse(number, "the end of a conversation without its beginning")
            elif part.conversation.id in self._here:
                part.refuse(part.first, f"conversation {errors.shown(part.conversation.id)} was told before")
            part.close(number, sealed)
            self._outcome(part, number)

    def _outcome(self, part: Part, sealed_at: int | None) -> None:
        told = part.conversation
        name = told.id if told and _is_id(told.id) else None
        try:
            if part.problem:
                raise part.problem
            assert told is not None  # a part without its conversation has a problem
            assert sealed_at is not None
            outcome = self._brought(part, told, sealed_at)
        except (errors.ImportConflict, errors.IdTaken) as error:
            outcome = reports.ImportOutcome(name, "conflict", part.first, error)
        except errors.ImportInvalid as error:
            outcome = reports.ImportOutcome(name, "refused", error.line, error)
        except errors.InvalidArgument as error:  # an id that became too long by its new ending
            outcome = reports.ImportOutcome(name, "refused", part.first, errors.ImportInvalid(part.first, str(error)))
        except errors.ConversationDeleted as error:
            outcome = reports.ImportOutcome(name, "refused", part.first, error)
        self._outcomes.append(outcome)
        if told is not None:
            self._here.setdefault(told.id, outcome.kept_as or outcome.conversation_id if outcome.ok else None)

    def _brought(self, part: Part, told: transfer_format.Conversation, sealed_at: int) -> reports.ImportOutcome:
        try:
            return self._take(part, told, sealed_at)
        except errors.IdTaken:
            # It was not here, and then its ids were: another import of the same file may have come between two looks.
            return self._take(part, told, sealed_at)

    def _take(self, part: Part, told: transfer_format.Conversation, sealed_at: int) -> reports.ImportOutcome:
        """Write a conversation that was gathered and is sound, unless it is here already."""
        names = self._driver.read(lambda tx: self._names(tx, told))
        new_id = names.here(told.id)
        renamed = new_id if new_id != told.id else None
        writing = replay.Replay(told, names)

        def look(tx: Tx) -> bool:
            here = _is_here(tx, new_id, part, names)
            if not here:
                writing.refuse(tx, part.first, part.sessions)
            return here

        # Attachments come first, so that no message names what is not there; but not for what is refused anyway.
        here = self._driver.read(look)
        known = {line.digest: _blob(line, self._now) for line in part.blobs}
        self._incoming.take(known, named=here)
        if here:
            return reports.ImportOutcome(told.id, "already_there", part.first, kept_as=renamed)
        written = self._written(part, new_id, names, writing, sealed_at, known)
        if not written:
            return reports.ImportOutcome(told.id, "already_there", part.first, kept_as=renamed)
        self._messages += part.messages
        return reports.ImportOutcome(
            told.id, "imported", part.first, kept_as=renamed, title=writing.title, routes=tuple(writing.routes)
        )

    def _written(
        self,
        part: Part,
        new_id: str,
        names: replay.Names,
        writing: replay.Replay,
        sealed_at: int,
        known: dict[str, types.Blob | None],
    ) -> bool:
        """In one transaction; whether it was this one that did it. What came for it goes when it is refused."""

        def step(tx: Tx) -> bool:
            # Another import of the same file may have been faster.
            if _is_here(tx, new_id, part, names):
                return False
            writing.run(tx, part.lines(), sealed_at)
            for blob in filter(None, known.values()):
                tx.run("blob_known", **msgspec.structs.asdict(blob))
            return True

        try:
            return self._driver.write("import", step)
        except errors.StoreRefused as error:
            self._incoming.give_back()
            raise errors.ImportInvalid(writing.number, str(error)) from error
        except _REFUSALS:
            self._incoming.give_back()
            raise

    def _names(self, tx: Tx, told: transfer_format.Conversation) -> replay.Names:
        """Under which ids this conversation and its origin are written here."""
        suffix = ""
        if self._revive and tx.one("tombstone", id=told.id):
            number = next(n for n in range(2, 1_000_000) if not tx.one("tombstone", id=f"{told.id}~{n}"))
            suffix = f"~{number}"
        if told.origin is None:
            return replay.Names(suffix)
        origin = self._here.get(told.origin)
        return replay.Names(suffix, None if origin is None else origin.removeprefix(told.origin))


def _check_header(line: Numbered) -> None:
    try:
        version = transfer_format.decode_header(line.data).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        version = 0
    if version < 1:
        raise errors.ImportInvalid(1, line.problem or "this is not an export of Holdfast")
    if version > transfer_format.VERSION:
        raise errors.ImportInvalid(
            1,
            f"export format {version} is newer than format {transfer_format.VERSION}: upgrade Holdfast to read it",
        )


def _is_id(text: str) -> bool:
    return 0 < len(text) <= validation.MAX_ID and text.isprintable()


def _blob(line: transfer_format.Blob, now: float) -> types.Blob | None:
    """What an export knows of an attachment; None where it has no more than the name."""
    if line.size is None or line.media_type is None:
        return None
    return types.Blob(line.digest, line.size, line.media_type, now)


def _is_here(tx: Tx, new_id: str, part: Part, names: replay.Names) -> bool:
    """Whether this very conversation is here; ImportConflict when another one has its id."""
    row = tx.one("conversation_key", id=new_id)
    if row is None:
        return False
    mine = (line for line in export.told(tx, row[0]) if not isinstance(line, _BESIDE))
    theirs = ((number, line) for number, line in part.lines() if not isinstance(line, _BESIDE))
    for number, line in theirs:
        if _content(names.renamed(line)) != _content(next(mine, None)):
            raise errors.ImportConflict(new_id, number)
    if next(mine, None) is not None:
        raise errors.ImportConflict(new_id, part.first + part.count)
    return True


# What hangs on a conversation and is no part of what was said in it.
_BESIDE = (transfer_format.Route, transfer_format.Blob)


def _content(line: transfer_format.Line | None) -> Any:
    """What makes two conversations the same: not the name people gave it, nor where they work on it by now, nor the
    leases it has seen."""
    same = {"title": None, "folder": None, "fence": 0}
    return msgspec.structs.replace(line, **same) if isinstance(line, transfer_format.Conversation) else line
