"""Import an export, with every constraint of the database in force.

A conversation is read and validated first (in memory, or in an unnamed temporary file when it is long) and only then
written, in one transaction: the store is never locked while the input is read, and a conversation is imported as a
whole or not at all. A conversation that the store already has, unchanged, is left alone, so an interrupted import is
resumed by running it again.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TextIO

import msgspec

from holdfast import errors, reports, types
from holdfast.store import message_codec, validation
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import blobs
from holdfast.store.blobs import files as blob_files
from holdfast.store.driver import Driver, Progress, Tx
from holdfast.store.sqlite import connection as sqlite_connection
from holdfast.store.transfer import export, jsonl, replay, validate

MAX_LINE_BYTES = message_codec.MAX_BODY + 65_536
MAX_MEMORY_BYTES = 8 * 1024 * 1024
PROGRESS_LINES = 1_000


Source = TextIO | BinaryIO | Iterable[str | bytes]


class ImportAdmin(blobs.AdminFacet):
    """The import method of `db.admin`."""

    def import_from(
        self, read: Source | os.PathLike[str], *, revive: bool = False, progress: Progress | None = None
    ) -> reports.ImportReport:
        """Import a file that export_to wrote: a path, an open file (text or binary) or an iterable of lines.

        Attachments are read from `<path>.blobs`; missing ones are reported and do not stop the import. Raises
        ImportInvalid when the input is not an export. An invalid conversation is reported and not imported; the others
        are. Repeating an import changes nothing. Ids that were deleted from this store are refused; with `revive` such
        a conversation is imported under new ids. `progress` receives the numbers of messages and lines done.
        """
        with _open_source(read) as (source, attachments):
            incoming = blobs.IncomingBlobs(self.driver, self.blobs.files, attachments)
            return _Import(self.driver, incoming, self._clock(), revive, progress).run(_read_lines(source))


# --- input lines -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_source(read: Source | os.PathLike[str]) -> Iterator[tuple[Source, blob_files.BlobFiles | None]]:
    """Open a path and the folder of its attachments; pass anything else on."""
    if not isinstance(read, os.PathLike):
        yield read, None
        return
    path = validation.check_path(read, "read")
    sqlite_connection.check_not_open_here(path)
    with atomic_file.translate_errors(path):
        file = open(path, "rb")  # noqa: SIM115 -- closed below, where errors are those of the store
    with file:
        yield file, blobs.files_next_to(path)


class InputLine(NamedTuple):
    """A line of the input, or the reason why it could not be read."""

    number: int
    data: bytes
    problem: str = ""


def _read_lines(read: Source) -> Iterator[InputLine]:
    number = 0
    try:
        for number, line in enumerate(_read_portions(read), 1):
            yield _to_bytes(number, line)
    except UnicodeDecodeError:
        # A text file lost its position while decoding: the lines after this one cannot be trusted.
        yield InputLine(number + 1, b"", "this is not valid UTF-8")


def _read_portions(read: Source) -> Iterator[str | bytes]:
    readline = getattr(read, "readline", None)
    if readline is None:
        if isinstance(read, str | bytes) or not isinstance(read, Iterable):
            raise errors.InvalidArgument("Give a path, an open file, or an iterable of lines.")
        yield from read
        return
    while line := readline(MAX_LINE_BYTES + 1):
        yield line
        while len(line) > MAX_LINE_BYTES and line[-1:] not in ("\n", b"\n"):
            line = readline(MAX_LINE_BYTES + 1)  # Skip the rest of a line that is refused.


def _to_bytes(number: int, line: object) -> InputLine:
    if isinstance(line, str):
        try:
            line = line.encode()
        except UnicodeEncodeError:
            return InputLine(number, b"", "this is not valid Unicode")
    if not isinstance(line, bytes):
        return InputLine(number, b"", "this is neither text nor bytes")
    if len(line) > MAX_LINE_BYTES:
        return InputLine(number, b"", f"this line is longer than {MAX_LINE_BYTES:,} bytes")
    return InputLine(number, line.rstrip(b"\r\n"))


def _decode(line: InputLine) -> jsonl.Line:
    problem = line.problem
    if not problem:
        try:
            return jsonl.decode(line.data)
        except msgspec.ValidationError as error:
            problem = _explain(str(error))
        except (msgspec.DecodeError, UnicodeDecodeError):
            problem = "this is not JSON"
        except RecursionError:
            problem = "this is nested too deep"
    # Raised outside of the handlers: the original error may hold the text.
    raise errors.ImportInvalid(line.number, problem)


def _explain(problem: str) -> str:
    """Explain a validation error. A field of a newer version cannot be stored, so it is refused, never dropped."""
    unknown = re.fullmatch(r"Object contains unknown field `(.{1,60})`", problem)
    if unknown:
        return (
            f"this line has an unknown field {errors.quote(unknown[1])}; upgrade Holdfast if a newer version wrote it"
        )
    if problem.startswith("Invalid value") and problem.endswith("`$.kind`"):
        return "this line is of an unknown kind; upgrade Holdfast if a newer version wrote it"
    return f"this is not a line of an export ({problem})"


def _check_header(line: InputLine) -> None:
    try:
        version = jsonl.decode_header(line.data).version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        version = 0
    if version < 1:
        raise errors.ImportInvalid(1, line.problem or "this is not an export of Holdfast")
    if version > jsonl.VERSION:
        newer = f"export format {version} is newer than format {jsonl.VERSION}: upgrade Holdfast to read it"
        raise errors.ImportInvalid(1, newer)


# --- one conversation --------------------------------------------------------------------------------


class ConversationBuffer:
    """The validated lines of one conversation, or the first problem with them."""

    def __init__(self, first: int, conversation: jsonl.ConversationLine | None) -> None:
        self.first = first
        self.conversation = conversation
        self.problem: errors.ImportInvalid | None = None
        self.count = 0
        self.blobs: list[jsonl.BlobLine] = []
        self.sessions: list[str] = []
        self._seal = jsonl.SealBuilder()
        self._validator = validate.ConversationValidator(conversation) if conversation else None
        self._file = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)  # noqa: SIM115 -- closed by `close`

    def close(self) -> None:
        self._file.close()

    def refuse(self, number: int, problem: str) -> None:
        self.problem = self.problem or errors.ImportInvalid(number, problem)

    def add(self, number: int, line: jsonl.Line, data: bytes) -> None:
        if self._validator is None:
            self.refuse(number, "this line is not part of a conversation")
        if self.problem or self._validator is None:
            return
        try:
            self._validator.check(line)
        except errors.InvalidArgument as error:
            self.refuse(number, str(error))
            return
        if isinstance(line, jsonl.BlobLine):
            self.blobs.append(line)
        elif isinstance(line, jsonl.SessionLine):
            self.sessions.append(line.id)
        self._seal.add(line, data)
        self._file.write(data + b"\n")
        self.count += 1

    def check_seal(self, number: int, sealed: jsonl.SealLine) -> None:
        """Check that the lines are complete and that the seal matches them."""
        if self._validator is None:
            self.refuse(number, "a conversation ends without its first line")
        if self.problem or self._validator is None:
            return
        try:
            self._validator.finish()
        except errors.InvalidArgument as error:
            self.refuse(number, str(error))
        if sealed != self._seal.build():
            self.refuse(number, f"lines of conversation {errors.quote(sealed.id)} were changed, lost or added")

    @property
    def messages(self) -> int:
        return self._seal.messages

    def lines(self) -> Iterator[tuple[int, jsonl.Line]]:
        """Read the lines again, with their numbers."""
        self._file.seek(0)
        for offset in range(self.count):
            yield self.first + offset, jsonl.decode(self._file.readline())


# --- the whole file ----------------------------------------------------------------------------------


class _Import:
    """The state of one import."""

    def __init__(
        self, driver: Driver, incoming: blobs.IncomingBlobs, now: float, revive: bool, progress: Progress | None
    ) -> None:
        self._driver = driver
        self._incoming = incoming
        self._now = now
        self._revive = revive
        self._progress = progress
        self._buffer: ConversationBuffer | None = None
        self._end = jsonl.EndBuilder()
        self._ended = False
        self._outcomes: list[reports.ImportOutcome] = []
        self._messages = 0
        self._attachments = set[str]()
        # The id in this store of each conversation of the file; None: it was not imported.
        self._imported: dict[str, str | None] = {}

    def run(self, source: Iterator[InputLine]) -> reports.ImportReport:
        _check_header(next(source, InputLine(1, b"")))
        number = 1
        for line in source:
            number = line.number
            self._add_line(line)
            if self._progress and number % PROGRESS_LINES == 0:
                self._progress(self._messages, number)
        if not self._close_incomplete(number, "the file ends inside a conversation") and not self._ended:
            self._refuse(number, "the file has no end line: conversations may be missing")
        stored, missing = self._incoming.stored & self._attachments, self._incoming.missing & self._attachments
        return reports.ImportReport(tuple(self._outcomes), self._messages, len(stored), tuple(sorted(missing)))

    def _add_line(self, source: InputLine) -> None:
        number = source.number
        try:
            line = _decode(source)
        except errors.ImportInvalid as error:
            self._open_buffer(number).refuse(number, error.reason)
            return
        if self._ended:
            self._refuse(number, "there are lines after the end line")
            return
        match line:
            case jsonl.ConversationLine():
                self._close_incomplete(number, "a conversation begins before the last one is sealed")
                self._open_buffer(number, line).add(number, line, source.data)
            case jsonl.SealLine():
                self._end.add(line)
                buffer = self._open_buffer(number)
                if buffer.conversation is not None and buffer.conversation.id in self._imported:
                    buffer.refuse(buffer.first, f"conversation {errors.quote(buffer.conversation.id)} is repeated")
                buffer.check_seal(number, line)
                self._import(buffer, number)
            case jsonl.EndLine():
                self._close_incomplete(number, "the file ends inside a conversation")
                if line != self._end.build():
                    self._refuse(number, "conversations were lost, added, repeated or reordered")
                self._ended = True
            case _:
                self._open_buffer(number).add(number, line, source.data)

    def _open_buffer(self, number: int, conversation: jsonl.ConversationLine | None = None) -> ConversationBuffer:
        """Return the conversation that is being read; a line outside of any begins one that is refused."""
        if self._buffer is None:
            self._buffer = ConversationBuffer(number, conversation)
        return self._buffer

    def _close_incomplete(self, number: int, problem: str) -> bool:
        """Refuse a conversation that is not sealed. Return whether there is one."""
        if self._buffer is None:
            return False
        self._buffer.refuse(number, problem)
        self._import(self._buffer, number)
        return True

    def _refuse(self, number: int, problem: str) -> None:
        error = errors.ImportInvalid(number, problem)
        self._outcomes.append(reports.ImportOutcome(None, "refused", number, error))

    def _import(self, buffer: ConversationBuffer, sealed_at: int) -> None:
        """Import a conversation, and record the outcome."""
        self._buffer, conversation = None, buffer.conversation
        name = conversation.id if conversation and _is_id(conversation.id) else None
        try:
            if buffer.problem:
                raise buffer.problem
            assert conversation is not None  # A buffer without its conversation has a problem.
            try:
                outcome = self._write(buffer, conversation, sealed_at)
            except errors.IdTaken:
                # A concurrent import of the same file may have written it after the check: look again.
                outcome = self._write(buffer, conversation, sealed_at)
        except (errors.ImportConflict, errors.IdTaken) as error:
            outcome = reports.ImportOutcome(name, "conflict", buffer.first, error)
        except errors.ImportInvalid as error:
            outcome = reports.ImportOutcome(name, "refused", error.line, error)
        except errors.InvalidArgument as error:  # An id is too long with its suffix.
            invalid = errors.ImportInvalid(buffer.first, str(error))
            outcome = reports.ImportOutcome(name, "refused", buffer.first, invalid)
        except errors.ConversationDeleted as error:
            outcome = reports.ImportOutcome(name, "refused", buffer.first, error)
        finally:
            buffer.close()
        self._outcomes.append(outcome)
        if conversation is not None:
            stored_as = outcome.kept_as or outcome.conversation_id if outcome.ok else None
            self._imported.setdefault(conversation.id, stored_as)

    def _write(
        self, buffer: ConversationBuffer, conversation: jsonl.ConversationLine, sealed_at: int
    ) -> reports.ImportOutcome:
        """Write a validated conversation, unless the store has it already."""
        ids = self._driver.read(lambda tx: self._choose_ids(tx, conversation))
        new_id = ids.apply(conversation).id
        outcome = partial(
            reports.ImportOutcome, conversation.id, line=buffer.first, kept_as=new_id if ids.suffix else None
        )
        writer = replay.Replay(ids)

        def look(tx: Tx) -> bool:
            if _is_stored(tx, new_id, buffer, ids):
                return True
            writer.check_ids(tx, buffer.first, conversation, buffer.sessions)
            return False

        # Attachments are stored first, so that no message refers to a missing one; but not if the ids are refused.
        stored = self._driver.read(look)
        attachments = {line.digest: _to_blob(line, self._now) for line in buffer.blobs}
        self._incoming.store(attachments, referenced=stored)

        def step(tx: Tx) -> bool:
            # A concurrent import of the same file may have stored it in the meantime.
            if _is_stored(tx, new_id, buffer, ids):
                return False
            writer.run(tx, buffer.lines(), sealed_at)
            for blob in filter(None, attachments.values()):
                tx.run("blob_known", **msgspec.structs.asdict(blob))
            return True

        try:
            written = not stored and self._driver.write("import", step)
        except errors.StoreRefused as error:
            raise errors.ImportInvalid(writer.number, str(error)) from error
        self._attachments.update(attachments)
        if not written:
            return outcome("already_there")
        self._messages += buffer.messages
        return outcome("imported", title=writer.title, routes=tuple(writer.routes))

    def _choose_ids(self, tx: Tx, conversation: jsonl.ConversationLine) -> replay.IdSuffixes:
        """Choose the suffix for a deleted conversation that is revived, and find the one its origin got."""
        suffix = ""
        if self._revive and tx.one("tombstone", id=conversation.id):
            number = next(n for n in range(2, 1_000_000) if not tx.one("tombstone", id=f"{conversation.id}~{n}"))
            suffix = f"~{number}"
        if conversation.origin is None:
            return replay.IdSuffixes(suffix)
        origin = self._imported.get(conversation.origin)
        return replay.IdSuffixes(suffix, None if origin is None else origin.removeprefix(conversation.origin))


def _is_id(text: str) -> bool:
    return 0 < len(text) <= validation.MAX_ID and text.isprintable()


def _to_blob(line: jsonl.BlobLine, now: float) -> types.Blob | None:
    if line.size is None or line.media_type is None:
        return None
    return types.Blob(line.digest, line.size, line.media_type, now)


def _is_stored(tx: Tx, new_id: str, buffer: ConversationBuffer, ids: replay.IdSuffixes) -> bool:
    """Return whether the store has this conversation. Raises ImportConflict when a different one has its id."""
    row = tx.one("conversation_key", id=new_id)
    if row is None:
        return False
    ours = (line for line in export.read_lines(tx, row[0]) if not isinstance(line, _RELATED))
    theirs = ((number, line) for number, line in buffer.lines() if not isinstance(line, _RELATED))
    for number, line in theirs:
        if _comparable(ids.apply(line)) != _comparable(next(ours, None)):
            raise errors.ImportConflict(new_id, number)
    if next(ours, None) is not None:
        raise errors.ImportConflict(new_id, buffer.first + buffer.count)
    return True


# Lines that do not decide whether two conversations are the same.
_RELATED = (jsonl.RouteLine, jsonl.BlobLine)


def _comparable(line: jsonl.Line | None) -> Any:
    """Return a line without the fields that two copies of one conversation may differ in."""
    same: dict[str, Any] = {"title": None, "folder": None, "metadata": {}, "fence": 0}
    return msgspec.structs.replace(line, **same) if isinstance(line, jsonl.ConversationLine) else line
