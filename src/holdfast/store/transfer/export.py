"""Export conversations as lines that `import_from` reads, or as Markdown or HTML pages for people.

Each conversation is read in one snapshot, a batch of messages at a time, so that a long one is never held in memory as
a whole. A message whose digest does not match raises StoreCorrupt. Leases are not exported, because they belong to
processes. A file at a path is replaced atomically, after its attachments were copied to `<path>.blobs`.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec

from holdfast import errors, reports, types
from holdfast.store import (
    compactions,
    conversation_row,
    fault_points,
    log,
    message_codec,
    sessions,
    validation,
    visibility,
)
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import blobs
from holdfast.store.driver import Driver, Progress, Row, Tx
from holdfast.store.sqlite import paths as sqlite_paths
from holdfast.store.transfer import format as transfer_format
from holdfast.store.transfer import render

BATCH_SESSIONS = 500
BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 * 1024 * 1024


class Writable(Protocol):
    """The part of a text file that an export uses."""

    def write(self, text: str, /) -> object: ...


Write = Callable[[str], object]
Target = Writable | Write | os.PathLike[str]


class Exports(blobs.UsesBlobs):
    """The methods of SessionDB that export conversations."""

    def export_to(
        self,
        write: Target,
        session_ids: Sequence[str] | None = None,
        *,
        progress: Progress | None = None,
    ) -> reports.ExportReport:
        """Write conversations (default: all) as JSON Lines to a path, a text file or a function that takes text.

        The origin of a branch is exported before it. The same store always gives the same text. With a path, the
        attachments of the messages are copied to `<path>.blobs`; otherwise attachments are not exported.
        `progress` receives the numbers of messages written and of all messages.
        """
        wanted = _check_ids(session_ids)
        with _open_target(self.driver, write) as (put, path):
            chosen = self.driver.read(lambda tx: _choose(tx, wanted))
            report = _Export(self.driver, put, progress, sum(row[2] for row in chosen)).run(chosen, wanted)
            if path is None:
                return report
            replaces = os.path.lexists(path)
            # Before the file gets its name, so that a reader of the file finds its attachments.
            lost = blobs.copy_contents(blobs.files_next_to(path), self._blob_files, report.blobs)
        if replaces:
            blobs.files_next_to(path).keep_only(report.blobs)
        return msgspec.structs.replace(report, lost_blobs=lost)

    def export_pages(
        self, write: Target, session_ids: Sequence[str] | None = None, form: render.Form = "markdown"
    ) -> None:
        """Write conversations (default: all) for people, as Markdown or as one self-contained HTML file.

        A branch includes the messages it shares with its origin. Attachments are listed by name. Pages cannot be
        imported; see export_to.
        """
        if form not in render.FORMS:
            raise errors.InvalidArgument(f"`form` must be one of {', '.join(render.FORMS)}, not {errors.shown(form)}.")
        wanted = _check_ids(session_ids)
        with _open_target(self.driver, write) as (put, _):
            names = self.driver.read(lambda tx: _conversation_ids(tx, wanted))
            put(render.opening(", ".join(names[:3]) or "No conversations", form))
            for name in names:
                self.driver.read(partial(_write_page, name, form, put))
            put(render.closing(form))


@contextlib.contextmanager
def _open_target(driver: Driver, write: Target) -> Iterator[tuple[Write, str | None]]:
    """Yield the function to write with, and the path of a file that is replaced atomically when the block ends."""
    found = getattr(write, "write", write)
    if callable(found):
        yield found, None
    elif isinstance(write, os.PathLike):
        with _replace_file(driver, validation.check_path(write, "write")) as opened:
            yield opened
    else:
        raise errors.InvalidArgument("Give a path, a text file, or a function that takes text.")


@contextlib.contextmanager
def _replace_file(driver: Driver, given: str) -> Iterator[tuple[Write, str]]:
    path = os.path.realpath(given)
    if driver.has_file:
        sqlite_paths.refuse_own(driver.path, path)
    with atomic_file.translate_errors(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with atomic_file.replace(path, "export", private=False) as temp:
        with atomic_file.translate_errors(path), open(temp, "w", encoding="utf-8", newline="\n") as file:
            yield file.write, path
        fault_points.reach("export", "written")


def _check_ids(session_ids: object) -> list[str] | None:
    if session_ids is None:
        return None
    if isinstance(session_ids, str) or not isinstance(session_ids, Sequence):
        raise errors.InvalidArgument("`session_ids` must be a list of session ids.")
    return [validation.check_id(session_id) for session_id in session_ids]


# The key and id of a conversation, and the number of its own messages.
Choice = tuple[int, str, int]


def _choose(tx: Tx, session_ids: Sequence[str] | None) -> list[Choice]:
    """Choose conversations (None: all) and their origins. An origin has a smaller key than its branches."""
    if session_ids is None:
        return [(row[0], row[1], row[2]) for row in tx.all("export_all")]
    found: dict[int, Choice] = {}
    for session_id in session_ids:
        key: int | None = conversation_row.look(tx, session_id).key
        while key is not None and key not in found:
            row = tx.one("export_chosen", key=key)
            if row is None:  # A foreign key refers to it.
                raise errors.StoreCorrupt("The origin of a conversation is missing. Run `holdfast doctor`.")
            found[key], key = (row[0], row[1], row[2]), row[3]
    return [found[key] for key in sorted(found)]


def _conversation_ids(tx: Tx, session_ids: Sequence[str] | None) -> list[str]:
    if session_ids is None:
        return [row[1] for row in tx.all("export_all")]
    return list(dict.fromkeys(conversation_row.look(tx, session_id).id for session_id in session_ids))


class _Export:
    """The state of one export."""

    def __init__(self, driver: Driver, put: Write, progress: Progress | None, total: int) -> None:
        self._driver = driver
        self._put = put
        self._progress = progress
        self._total = total
        self._sessions = 0
        self._messages = 0
        self._blobs: dict[str, int] = {}
        self._end = transfer_format.EndBuilder()

    def run(self, chosen: Sequence[Choice], wanted: Sequence[str] | None) -> reports.ExportReport:
        self._put_line(transfer_format.encode(transfer_format.Header(transfer_format.VERSION)))
        for key, _, _ in chosen:
            # Nothing is written for a conversation that was deleted meanwhile.
            sealed = self._driver.read(partial(self._write_conversation, key=key))
            if sealed is not None:
                self._end.add(sealed)
                self._put_line(transfer_format.encode(sealed))
                self._sessions += sealed.sessions
        self._put_line(transfer_format.encode(self._end.build()))
        named = set() if wanted is None else self._driver.read(lambda tx: _find_ids(tx, wanted))
        origins = () if wanted is None else tuple(name for _, name, _ in chosen if name not in named)
        counts = (self._end.conversations, self._sessions, self._messages)
        return reports.ExportReport(*counts, origins, tuple(sorted(self._blobs)), sum(self._blobs.values()))

    def _write_conversation(self, tx: Tx, key: int) -> transfer_format.Sealed | None:
        seal: transfer_format.SealBuilder | None = None
        for line in read_lines(tx, key):
            if isinstance(line, transfer_format.Conversation):
                seal = transfer_format.SealBuilder(line.id)
            assert seal is not None  # A conversation begins with its own line.
            data = transfer_format.encode(line)
            seal.add(line, data)
            self._put_line(data)
            if isinstance(line, transfer_format.Message):
                self._messages += 1
                if self._progress and self._messages % BATCH_MESSAGES == 0:
                    self._progress(self._messages, max(self._total, self._messages))
            elif isinstance(line, transfer_format.Blob):
                self._blobs[line.digest] = line.size or 0
        return seal.build() if seal else None

    def _put_line(self, data: bytes) -> None:
        self._put(data.decode() + "\n")


def _find_ids(tx: Tx, session_ids: Sequence[str]) -> set[str]:
    found = (tx.one("look_conversation", id=session_id) for session_id in session_ids)
    return {conversation_row.State(*row).id for row in found if row is not None}


# --- a conversation as lines -------------------------------------------------------------------------


def read_lines(tx: Tx, key: int) -> Iterator[transfer_format.Line]:
    """Read all lines of a conversation but its seal, in the order in which they can be written again."""
    row = tx.one("export_conversation", key=key)
    if row is None:
        return
    metadata = message_codec.decode_metadata(row[-1], row[0])
    values = _fields(transfer_format.Conversation, row, live=bool(row[6]), metadata=metadata)
    conversation = transfer_format.Conversation(**values)
    yield conversation
    history = transfer_format.order_lines(
        conversation,
        _read_sessions(tx, key),
        partial(_next_compaction, tx, key, conversation.id),
        lambda after, before: tx.all("export_hides", conversation=key, after=after, before=before),
        partial(_read_messages, tx, key, conversation),
    )
    referenced = set[str]()
    for line in history:
        if isinstance(line, transfer_format.Message):
            referenced |= blobs.find_references(bytes(line.body).decode())
        yield line
    for route in tx.all("export_routes", conversation=key):
        yield transfer_format.Route(**_fields(transfer_format.Route, route))
    for digest in sorted(referenced):
        blob = blobs.look(tx, digest)
        size, media_type = (blob.size, blob.media_type) if blob else (None, None)
        yield transfer_format.Blob(digest=digest, size=size, media_type=media_type)


def _fields(kind: type[msgspec.Struct], row: Row, **other: Any) -> dict[str, Any]:
    """Name the values of a row by the fields of a line, which are in the same order."""
    return {**dict(zip(kind.__struct_fields__, row, strict=True)), **other}


def _read_sessions(tx: Tx, key: int) -> Iterator[transfer_format.Session]:
    after = 0
    while rows := tx.all("export_sessions", conversation=key, after=after, limit=BATCH_SESSIONS):
        for row in rows:
            yield transfer_format.Session(**_fields(transfer_format.Session, row))
        after = rows[-1][0]


def _next_compaction(tx: Tx, key: int, conversation_id: str, after: int) -> transfer_format.Compaction | None:
    row = tx.one("export_compaction", conversation=key, after=after)
    if row is None:
        return None
    *values, digest = row
    if digest is not None and message_codec.summary_digest(conversation_id, row[0], row[7]) != digest:
        raise _damaged(conversation_id, f"Compaction {row[0]}")
    return transfer_format.Compaction(**_fields(transfer_format.Compaction, tuple(values), body=msgspec.Raw(row[7])))


def _read_messages(
    tx: Tx, key: int, conversation: transfer_format.Conversation, session: transfer_format.Session
) -> Iterator[transfer_format.Message]:
    conversation_id, after = conversation.id, session.first_seq - 1
    last = conversation.last_seq if session.last_seq is None else session.last_seq
    while after < last:
        (upto,) = tx.one(
            "export_reach", conversation=key, after=after, upto=last, limit=BATCH_MESSAGES, room=BATCH_BYTES
        ) or (last,)
        for row in tx.all("export_messages", conversation=key, after=after, upto=upto):
            seq, ordinal, uid, role, at, body, redacted_at, digest = row
            if seq != after + 1 or message_codec.digest(conversation_id, seq, uid, role, body) != digest:
                raise _damaged(conversation_id, f"Message {after + 1}")
            raw = msgspec.Raw(body) if body else transfer_format.NO_BODY
            yield transfer_format.Message(
                seq=seq, session=ordinal, uid=uid, role=role, at=at, body=raw, redacted_at=redacted_at
            )
            after = seq
        if after != upto:
            raise _damaged(conversation_id, f"Message {after + 1}")


def _damaged(conversation_id: str, what: str) -> errors.StoreCorrupt:
    name = errors.shown(conversation_id)
    return errors.StoreCorrupt(f"{what} of conversation {name} is missing or damaged. Run `holdfast doctor`.")


# --- a conversation for people -----------------------------------------------------------------------


def _write_page(conversation_id: str, form: render.Form, put: Write, tx: Tx) -> None:
    """Write the page of one conversation, unless it was deleted meanwhile."""
    if tx.one("conversation_key", id=conversation_id):
        for piece in render.render(_read_page(tx, conversation_row.look(tx, conversation_id)), form):
            put(piece)


def _read_page(tx: Tx, here: conversation_row.State) -> render.Page:
    lineage = _read_lineage(tx, here)
    return render.Page(
        sessions.conversation(tx, here),
        [session for key, limit in lineage for session in _sessions_upto(tx, key, limit, whole=key == here.key)],
        {made.session_id: made for key, _ in lineage for made in _compactions(tx, key)},
        visibility.in_force(tx, here.key),
        compactions.current(tx, here),
        _read_batches(tx, here),
        partial(blobs.look, tx),
    )


def _sessions_upto(tx: Tx, key: int, limit: int, *, whole: bool) -> list[types.Session]:
    found = [sessions.from_row(row) for row in tx.all("sessions_of", conversation=key)]
    return [session for session in found if whole or session.first_seq <= limit]


def _read_lineage(tx: Tx, here: conversation_row.State) -> list[tuple[int, int]]:
    """Return the keys of a conversation and its origins, oldest first, each with the last seq read of it."""
    found, origin, limit = [(here.key, here.last_seq)], here.origin, here.forked_at
    while origin is not None:
        if any(key == origin for key, _ in found):
            raise errors.StoreCorrupt("A conversation is its own origin.")
        found.insert(0, (origin, limit))
        origin, forked_at = (tx.one("origin_of", key=origin) or (None, 0))[:2]
        limit = min(limit, forked_at)
    return found


def _compactions(tx: Tx, key: int) -> list[types.Compaction]:
    return [compactions.from_row(row) for row in tx.all("compactions_of", conversation=key)]


def _read_batches(tx: Tx, here: conversation_row.State) -> Iterator[types.Message]:
    for after in range(0, here.last_seq, BATCH_SESSIONS):
        yield from log.between(tx, here, after, min(after + BATCH_SESSIONS, here.last_seq))
