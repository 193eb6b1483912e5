"""Export: conversations as lines that `imports` makes the very same conversations of; and pages for people.

Each conversation is read in one snapshot, a stretch at a time, so that a long one is never held whole.
Messages that are no longer what was written are not passed on. Leases stay: they belong to processes.
Given a path, an export is there in full or not at all, and the attachments its messages name lie beside it.
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

SESSIONS = 500
MESSAGES = 1_000
ROOM = 4 * 1024 * 1024


class Writable(Protocol):
    """A text file, as far as an export needs one."""

    def write(self, text: str, /) -> object: ...


Write = Callable[[str], object]
Target = Writable | Write | os.PathLike[str]


class Exports(blobs.Blobs):
    """The part of SessionDB that gives conversations away."""

    def export_to(
        self,
        write: Target,
        session_ids: Sequence[str] | None = None,
        *,
        progress: Progress | None = None,
    ) -> reports.ExportReport:
        """Write conversations (default: all) as JSON Lines: to a path, a text file or a function that takes text.

        What a branch reads from comes along, before it. The same store always gives the same text. Beside a
        path, in `<path>.blobs`, are the attachments that messages name; whoever gives no path gets none.
        `progress` is called with how many messages are written, of how many.
        """
        asked = None if session_ids is None else _checked(session_ids)
        with _opened(self.driver, write) as (put, path):
            chosen = self.driver.read(lambda tx: _all(tx) if asked is None else _chosen(tx, asked))
            export = _Export(self.driver, put, progress, sum(row[2] for row in chosen))
            report = export.run(chosen, asked)
            if path is None:
                return report
            replaces = os.path.lexists(path)
            # Before the file has its name: whoever finds that finds what it speaks of.
            lost = blobs.copied(blobs.beside(path), self._shelf, report.blobs)
        if replaces:
            blobs.beside(path).keep_only(report.blobs)
        return msgspec.structs.replace(report, lost_blobs=lost)

    def export_pages(
        self, write: Target, session_ids: Sequence[str] | None = None, form: render.Form = "markdown"
    ) -> None:
        """Write conversations (default: all) for people: as Markdown, or as one HTML file that needs nothing else.

        A branch is told with what it shares. Pages are not for importing: see export_to. Attachments are named.
        """
        if form not in render.FORMS:
            raise errors.InvalidArgument(f"A page is one of {', '.join(render.FORMS)}, not {errors.shown(form)}.")
        asked = None if session_ids is None else _checked(session_ids)
        with _opened(self.driver, write) as (put, _):
            found = self.driver.read(lambda tx: _all(tx) if asked is None else _looked_up(tx, asked))
            put(render.opening(", ".join(name for _, name, _ in found[:3]) or "No conversations", form))
            for _, name, _ in found:
                self.driver.read(partial(_page, name, form, put))
            put(render.closing(form))


@contextlib.contextmanager
def _opened(driver: Driver, write: Target) -> Iterator[tuple[Write, str | None]]:
    """What to write with; and where it ends up, if that is a file of ours: there in full, or as it was before."""
    found = getattr(write, "write", write)
    if callable(found):
        yield found, None
    elif isinstance(write, os.PathLike):
        with _replacing(driver, os.fspath(write)) as opened:
            yield opened
    else:
        raise errors.InvalidArgument("Give a path, a text file, or a function that takes text.")


@contextlib.contextmanager
def _replacing(driver: Driver, given: object) -> Iterator[tuple[Write, str]]:
    if not isinstance(given, str) or "\0" in given:
        raise errors.InvalidArgument("The path of an export is text.")
    path = os.path.realpath(given)
    if not driver.memory:
        sqlite_paths.refuse_own(driver.path, path)
    with atomic_file.saying(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        folder, name = os.path.split(path)
        temp = atomic_file.new(folder, name[:50])  # room for the rest of its name
    try:
        with atomic_file.saying(path), open(temp, "w", encoding="utf-8", newline="\n") as file:
            yield file.write, path
        fault_points.reach("export", "written")
        with atomic_file.saying(path):
            atomic_file.put(temp, path, "export")
    except BaseException:
        atomic_file.discard(temp)
        raise


def _checked(session_ids: object) -> list[str]:
    if isinstance(session_ids, str) or not isinstance(session_ids, Sequence):
        raise errors.InvalidArgument("Give the ids of sessions as a list.")
    return [validation.check_id(session_id) for session_id in session_ids]


Choice = tuple[int, str, int]


def _all(tx: Tx) -> list[Choice]:
    return [(row[0], row[1], row[2]) for row in tx.all("export_all")]


def _chosen(tx: Tx, session_ids: Sequence[str]) -> list[Choice]:
    """These conversations and all they read from; an origin has a smaller key than its branches."""
    found: dict[int, Choice] = {}
    for session_id in session_ids:
        key: int | None = conversation_row.look(tx, session_id).key
        while key is not None and key not in found:
            row = tx.one("export_chosen", key=key)
            if row is None:  # It was looked up in the same snapshot, or a foreign key leads to it.
                raise errors.StoreCorrupt("A conversation that another reads from is missing. Run `holdfast doctor`.")
            found[key], key = (row[0], row[1], row[2]), row[3]
    return [found[key] for key in sorted(found)]


def _looked_up(tx: Tx, session_ids: Sequence[str]) -> list[Choice]:
    found = {here.id: here for here in (conversation_row.look(tx, session_id) for session_id in session_ids)}
    return [(here.key, here.id, 0) for here in found.values()]


class _Export:
    """One export on its way out."""

    def __init__(self, driver: Driver, put: Write, progress: Progress | None, total: int) -> None:
        self._driver = driver
        self._put = put
        self._progress = progress
        self._total = total
        self._sessions = 0
        self._messages = 0
        self._blobs: dict[str, int] = {}
        self._ending = transfer_format.EndBuilder()

    def run(self, chosen: Sequence[Choice], asked: Sequence[str] | None) -> reports.ExportReport:
        self._line(transfer_format.encode(transfer_format.Header(transfer_format.VERSION)))
        for key, _, _ in chosen:
            self._conversation(key)
        self._line(transfer_format.encode(self._ending.build()))
        named = set() if asked is None else self._driver.read(lambda tx: _names(tx, asked))
        extra = () if asked is None else tuple(name for _, name, _ in chosen if name not in named)
        counts = (self._ending.conversations, self._sessions, self._messages)
        return reports.ExportReport(*counts, extra, tuple(sorted(self._blobs)), sum(self._blobs.values()))

    def _conversation(self, key: int) -> None:
        """All of it as it is now; nothing, when it was deleted meanwhile."""
        sealed = self._driver.read(lambda tx: self._told(tx, key))
        if sealed is not None:
            self._ending.add(sealed)
            self._line(transfer_format.encode(sealed))
            self._sessions += sealed.sessions

    def _told(self, tx: Tx, key: int) -> transfer_format.Sealed | None:
        sealing: transfer_format.SealBuilder | None = None
        for line in told(tx, key):
            if isinstance(line, transfer_format.Conversation):
                sealing = transfer_format.SealBuilder(line.id)
            assert sealing is not None  # a conversation begins with its own line
            data = transfer_format.encode(line)
            sealing.add(line, data)
            self._line(data)
            self._count(line)
            if isinstance(line, transfer_format.Blob):
                self._blobs[line.digest] = line.size or 0
        return sealing.build() if sealing else None

    def _count(self, line: transfer_format.Line) -> None:
        if isinstance(line, transfer_format.Message):
            self._messages += 1
            if self._progress and self._messages % MESSAGES == 0:
                self._progress(self._messages, max(self._total, self._messages))

    def _line(self, data: bytes) -> None:
        self._put(data.decode() + "\n")


def _names(tx: Tx, session_ids: Sequence[str]) -> set[str]:
    found = (tx.one("look_conversation", id=session_id) for session_id in session_ids)
    return {conversation_row.State(*row).id for row in found if row is not None}


# --- a conversation as lines -------------------------------------------------------------------------


def told(tx: Tx, key: int) -> Iterator[transfer_format.Line]:
    """Everything of a conversation but its seal, in the order in which it can be written again."""
    row = tx.one("export_conversation", key=key)
    if row is None:
        return
    conversation = transfer_format.Conversation(**_named(transfer_format.Conversation, row, live=bool(row[6])))
    yield conversation
    named = set[str]()
    for line in _history(tx, key, conversation):
        if isinstance(line, transfer_format.Message):
            named |= blobs.mentioned(bytes(line.body).decode())
        yield line
    for route in tx.all("export_routes", conversation=key):
        yield transfer_format.Route(**_named(transfer_format.Route, route))
    for digest in sorted(named):
        known = blobs.look(tx, digest)
        size, media_type = (known.size, known.media_type) if known else (None, None)
        yield transfer_format.Blob(digest=digest, size=size, media_type=media_type)


def _named(kind: type[msgspec.Struct], row: Row, **other: Any) -> dict[str, Any]:
    """The values of a row by the names of a line: they are in the same order."""
    return {**dict(zip(kind.__struct_fields__, row, strict=True)), **other}


def _history(tx: Tx, key: int, conversation: transfer_format.Conversation) -> Iterator[transfer_format.Line]:
    stands, since = None, 0
    coming = _next_compaction(tx, key, conversation.id, 0)
    for session in _sessions(tx, key):
        opened = coming if coming and coming.session == session.ordinal else None
        if opened:
            yield from _views(tx, key, (stands, opened.base_epoch), since, opened.epoch)
        yield session
        if opened:
            yield opened
            stands = since = opened.epoch
            coming = _next_compaction(tx, key, conversation.id, since)
        last = conversation.last_seq if session.last_seq is None else session.last_seq
        yield from _messages(tx, key, conversation.id, session.first_seq - 1, last)
    yield from _views(tx, key, (stands, conversation.compaction_epoch), since, conversation.epoch + 1)


def _sessions(tx: Tx, key: int) -> Iterator[transfer_format.Session]:
    after = 0
    while rows := tx.all("export_sessions", conversation=key, after=after, limit=SESSIONS):
        for row in rows:
            yield transfer_format.Session(**_named(transfer_format.Session, row))
        after = rows[-1][0]


def _next_compaction(tx: Tx, key: int, conversation_id: str, after: int) -> transfer_format.Compaction | None:
    row = tx.one("export_compaction", conversation=key, after=after)
    if row is None:
        return None
    *values, digest = row
    if digest is not None and message_codec.summary_digest(conversation_id, row[0], row[7]) != digest:
        raise _damaged(conversation_id, f"Compaction {row[0]}")
    return transfer_format.Compaction(**_named(transfer_format.Compaction, tuple(values), body=msgspec.Raw(row[7])))


def _views(
    tx: Tx, key: int, stands: tuple[int | None, int | None], after: int, before: int
) -> Iterator[transfer_format.ActiveCompaction | transfer_format.Hide | transfer_format.Show]:
    """What changed of the view between two compactions: what it stood on, what was hidden and shown."""
    if stands[0] != stands[1]:
        yield transfer_format.ActiveCompaction(compaction_epoch=stands[1])
    for at, from_seq, to_seq, hidden in tx.all("export_hides", conversation=key, after=after, before=before):
        if hidden is None:
            yield transfer_format.Hide(epoch=at, from_seq=from_seq, to_seq=to_seq)
        else:
            yield transfer_format.Show(epoch=hidden, from_seq=from_seq, shown_epoch=at)


def _messages(tx: Tx, key: int, conversation_id: str, after: int, last: int) -> Iterator[transfer_format.Message]:
    while after < last:
        (upto,) = tx.one("export_reach", conversation=key, after=after, upto=last, limit=MESSAGES, room=ROOM) or (last,)
        for row in tx.all("export_messages", conversation=key, after=after, upto=upto):
            seq, session, uid, role, at, body, redacted_at, digest = row
            if seq != after + 1 or message_codec.digest(conversation_id, seq, uid, role, body) != digest:
                raise _damaged(conversation_id, f"Message {after + 1}")
            raw = msgspec.Raw(body) if body else transfer_format.NO_BODY
            yield transfer_format.Message(
                seq=seq, session=session, uid=uid, role=role, at=at, body=raw, redacted_at=redacted_at
            )
            after = seq
        if after != upto:
            raise _damaged(conversation_id, f"Message {after + 1}")


def _damaged(conversation_id: str, what: str) -> errors.StoreCorrupt:
    return errors.StoreCorrupt(
        f"{what} of conversation {errors.shown(conversation_id)} is not what was written. Run `holdfast doctor`."
    )


# --- a conversation for people -----------------------------------------------------------------------


def _page(conversation_id: str, form: render.Form, put: Write, tx: Tx) -> None:
    """One conversation as it is now; nothing, when it was deleted meanwhile."""
    if tx.one("conversation_key", id=conversation_id):
        for piece in render.render(_story(tx, conversation_row.look(tx, conversation_id)), form):
            put(piece)


def _story(tx: Tx, here: conversation_row.State) -> render.Story:
    line = _line(tx, here)
    return render.Story(
        sessions.conversation(tx, here),
        [session for key, limit in line for session in _sessions_upto(tx, key, limit, whole=key == here.key)],
        {made.session_id: made for key, _ in line for made in _compactions(tx, key)},
        visibility.in_force(tx, here.key),
        compactions.current(tx, here),
        _stretches(tx, here),
        partial(blobs.look, tx),
    )


def _sessions_upto(tx: Tx, key: int, limit: int, *, whole: bool) -> list[types.Session]:
    found = [types.Session(*row) for row in tx.all("sessions_of", conversation=key)]
    return [session for session in found if whole or session.first_seq <= limit]


def _line(tx: Tx, here: conversation_row.State) -> list[tuple[int, int]]:
    """The keys a conversation reads from, origin first, each with the last seq that is read of it."""
    found, origin, limit = [(here.key, here.last_seq)], here.origin, here.forked_at
    while origin is not None:
        if any(key == origin for key, _ in found):
            raise errors.StoreCorrupt("A conversation branches off itself.")
        found.insert(0, (origin, limit))
        origin, forked_at = (tx.one("origin_of", key=origin) or (None, 0))[:2]
        limit = min(limit, forked_at)
    return found


def _compactions(tx: Tx, key: int) -> list[types.Compaction]:
    return [compactions.from_row(row) for row in tx.all("compactions_of", conversation=key)]


def _stretches(tx: Tx, here: conversation_row.State) -> Iterator[types.Message]:
    for after in range(0, here.last_seq, SESSIONS):
        yield from log.between(tx, here, after, min(after + SESSIONS, here.last_seq))
