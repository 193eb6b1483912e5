"""Export conversations as lines that `import_from` reads, or as Markdown or HTML pages for people.

Each conversation is read in one snapshot, a batch of messages at a time, so that a long one is never held in memory as
a whole. A message whose digest does not match raises StoreCorrupt. Leases are not exported, because they belong to
processes. A file at a path is replaced atomically, after its attachments were copied to `<path>.blobs`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TextIO, TypeVar

import msgspec

from holdfast import errors, fault_points, reports, types
from holdfast.store import compactions, conversation_row, log, message_codec, sessions, validation, visibility
from holdfast.store.backup import atomic_file
from holdfast.store.blobs import blobs
from holdfast.store.conversation_row import ConversationRow
from holdfast.store.driver import Driver, Progress, Row, Tx
from holdfast.store.sqlite import paths as sqlite_paths
from holdfast.store.transfer import jsonl, render

BATCH_ROWS = 500
BATCH_MESSAGES = 1_000
BATCH_BYTES = 4 * 1024 * 1024

T = TypeVar("T", bound=msgspec.Struct)


Write = Callable[[str], object]
Target = TextIO | Write | os.PathLike[str]


class ExportAdmin(blobs.AdminFacet):
    """The export methods of `db.admin`."""

    def export_to(
        self, write: Target, session_ids: Sequence[str] | None = None, *, progress: Progress | None = None
    ) -> reports.ExportReport:
        """Write conversations (default: all) as JSON Lines to a path, a text file or a function that takes text.

        The origin of a branch is exported before it. The same store always gives the same text. With a path, the
        attachments of the messages are copied to `<path>.blobs`; otherwise attachments are not exported.
        `progress` receives the numbers of messages written and of all messages.
        """
        wanted = _check_ids(session_ids)
        with _open_target(self.driver, write) as (put, path):
            report = _export(self.driver, wanted, put, progress)
            if path is None:
                return report
            replaces = os.path.lexists(path)
            # Before the file gets its name, so that a reader of the file finds its attachments.
            lost = blobs.copy_contents(blobs.files_next_to(path), self.blobs.files, report.blobs)
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
            raise errors.InvalidArgument(f"`form` must be one of {', '.join(render.FORMS)}, not {errors.quote(form)}.")
        wanted = _check_ids(session_ids)
        with _open_target(self.driver, write) as (put, _):
            rows = self.driver.read(lambda tx: _choose(tx, wanted, origins=False)[0])
            names = [name for _, name, _ in rows]
            put(render.page_header(", ".join(names[:3]) or "No conversations", form))
            for name in names:
                self.driver.read(partial(_write_page, name, form, put))
            put(render.page_footer(form))


def _check_ids(session_ids: object) -> list[str] | None:
    if session_ids is None:
        return None
    if isinstance(session_ids, str) or not isinstance(session_ids, Sequence):
        raise errors.InvalidArgument("`session_ids` must be a list of session ids.")
    return [validation.check_id(session_id) for session_id in session_ids]


@contextlib.contextmanager
def _open_target(driver: Driver, write: Target) -> Iterator[tuple[Write, str | None]]:
    """Yield the function to write with, and the path of a file that is replaced atomically when the block ends."""
    put = getattr(write, "write", write)
    if callable(put):
        yield put, None
        return
    if not isinstance(write, os.PathLike):
        raise errors.InvalidArgument("Give a path, a text file, or a function that takes text.")
    path = os.path.realpath(validation.check_path(write, "write"))
    if driver.has_file:
        sqlite_paths.check_not_own_file(driver.path, path)
    if os.path.isdir(path):
        raise errors.StoreUnusable(f"{errors.quote(path, 250)} cannot be read or written: it is a folder.")
    with atomic_file.replace(path, "export", private=False) as temp:
        with atomic_file.translate_errors(path), open(temp, "w", encoding="utf-8", newline="\n") as file:
            yield file.write, path
        fault_points.reach("export", "written")


def _export(
    driver: Driver, session_ids: Sequence[str] | None, put: Write, progress: Progress | None
) -> reports.ExportReport:
    chosen, origins = driver.read(lambda tx: _choose(tx, session_ids))
    total = sum(messages for _, _, messages in chosen)
    end = jsonl.EndBuilder()
    sizes: dict[str, int] = {}

    def put_line(data: bytes) -> None:
        put(data.decode() + "\n")

    def write_conversation(tx: Tx, key: int) -> jsonl.SealLine | None:
        seal = jsonl.SealBuilder()
        for line in read_lines(tx, key):
            data = jsonl.encode(line)
            seal.add(line, data)
            put_line(data)
            if isinstance(line, jsonl.BlobLine):
                sizes[line.digest] = line.size or 0
            elif progress and isinstance(line, jsonl.MessageLine):
                done = end.messages + seal.messages
                if done % BATCH_MESSAGES == 0:
                    progress(done, max(total, done))
        return seal.build() if seal.id else None  # It was deleted meanwhile.

    put_line(jsonl.encode(jsonl.HeaderLine(jsonl.VERSION)))
    for key, _, _ in chosen:
        if sealed := driver.read(partial(write_conversation, key=key)):
            end.add(sealed)
            put_line(jsonl.encode(sealed))
    put_line(jsonl.encode(end.build()))
    counts = (end.conversations, end.sessions, end.messages)
    return reports.ExportReport(*counts, origins, tuple(sorted(sizes)), sum(sizes.values()))


def _choose(tx: Tx, session_ids: Sequence[str] | None, *, origins: bool = True) -> tuple[list[Row], tuple[str, ...]]:
    """Choose conversations (None: all) and their origins: rows in the order of export, and the ids of the origins.

    A row has the key, the id and the number of messages. An origin has a smaller key than its branches.
    """
    if session_ids is None:
        return tx.all("export_all"), ()
    named = [conversation_row.read(tx, session_id).key for session_id in session_ids]
    found: dict[int, Row] = {}
    waiting = list(named)
    while waiting:
        key = waiting.pop()
        if key not in found:
            row = tx.one("export_chosen", key=key)
            if row is None:  # A foreign key refers to it.
                raise errors.StoreCorrupt("The origin of a conversation is missing. Run `holdfast doctor`.")
            found[key] = row[:3]
            waiting += [row[3]] if origins and row[3] is not None else []
    return [found[key] for key in sorted(found)], tuple(found[key][1] for key in sorted(found) if key not in named)


# --- a conversation as lines -------------------------------------------------------------------------


def read_lines(tx: Tx, key: int) -> Iterator[jsonl.Line]:
    """Read all lines of a conversation but its seal, in the order in which they can be written again."""
    row = tx.one("export_conversation", key=key)
    if row is None:
        return
    metadata = message_codec.decode_metadata(row[-1], row[0])
    conversation = _line(jsonl.ConversationLine, row, live=bool(row[6]), metadata=metadata)
    yield conversation
    history = jsonl.order_lines(
        conversation,
        [_line(jsonl.SessionLine, row) for row in tx.all("export_sessions", conversation=key)],
        partial(_next_compaction, tx, key, conversation.id),
        lambda after, before: tx.all("export_hides", conversation=key, after=after, before=before),
        partial(_read_messages, tx, key, conversation),
    )
    referenced = set[str]()
    for line in history:
        if isinstance(line, jsonl.MessageLine):
            referenced |= blobs.find_references(bytes(line.body).decode())
        yield line
    for route in tx.all("export_routes", conversation=key):
        yield _line(jsonl.RouteLine, route)
    for digest in sorted(referenced):
        blob = blobs.read_blob(tx, digest)
        size, media_type = (blob.size, blob.media_type) if blob else (None, None)
        yield jsonl.BlobLine(digest=digest, size=size, media_type=media_type)


def _line(kind: type[T], row: Sequence[Any], **other: Any) -> T:
    """Make a line from a row, whose columns are in the order of the line's fields."""
    return kind(**{**dict(zip(kind.__struct_fields__, row, strict=True)), **other})


def _next_compaction(tx: Tx, key: int, conversation_id: str, after: int) -> jsonl.CompactionLine | None:
    row = tx.one("export_compaction", conversation=key, after=after)
    if row is None:
        return None
    *values, digest = row
    if digest is not None and message_codec.summary_digest(conversation_id, row[0], row[7]) != digest:
        raise _damage_error(conversation_id, f"Compaction {row[0]}")
    return _line(jsonl.CompactionLine, values, body=msgspec.Raw(row[7]))


def _read_messages(
    tx: Tx, key: int, conversation: jsonl.ConversationLine, session: jsonl.SessionLine
) -> Iterator[jsonl.MessageLine]:
    conversation_id, after = conversation.id, session.first_seq - 1
    last = conversation.last_seq if session.last_seq is None else session.last_seq
    while after < last:
        (upto,) = tx.one(
            "export_reach", conversation=key, after=after, upto=last, limit=BATCH_MESSAGES, room=BATCH_BYTES
        ) or (last,)
        for row in tx.all("export_messages", conversation=key, after=after, upto=upto):
            seq, ordinal, uid, role, at, body, redacted_at, digest = row
            if seq != after + 1 or message_codec.digest(conversation_id, seq, uid, role, body) != digest:
                raise _damage_error(conversation_id, f"Message {after + 1}")
            raw = msgspec.Raw(body) if body else jsonl.NO_BODY
            yield jsonl.MessageLine(
                seq=seq, session=ordinal, uid=uid, role=role, at=at, body=raw, redacted_at=redacted_at
            )
            after = seq
        if after != upto:
            raise _damage_error(conversation_id, f"Message {after + 1}")


def _damage_error(conversation_id: str, what: str) -> errors.StoreCorrupt:
    name = errors.quote(conversation_id)
    return errors.StoreCorrupt(f"{what} of conversation {name} is missing or damaged. Run `holdfast doctor`.")


# --- a conversation for people -----------------------------------------------------------------------


def _write_page(conversation_id: str, form: render.Form, put: Write, tx: Tx) -> None:
    """Write the page of one conversation, unless it was deleted meanwhile."""
    if tx.one("conversation_key", id=conversation_id):
        for piece in render.render(_read_page(tx, conversation_row.read(tx, conversation_id)), form):
            put(piece)


def _read_page(tx: Tx, here: ConversationRow) -> render.ConversationPage:
    shared: list[types.Session] = []
    made: dict[str, types.Compaction] = {}
    for part in reversed(list(conversation_row.lineage(tx, here))):
        found = [sessions.from_row(row) for row in tx.all("sessions_of", conversation=part.key)]
        shared += [session for session in found if part.key == here.key or session.first_seq <= part.upto]
        for row in tx.all("compactions_of", conversation=part.key):
            compaction = compactions.from_row(row)
            made[compaction.session_id] = compaction
    return render.ConversationPage(
        sessions.get_conversation(tx, here),
        shared,
        made,
        visibility.hidden_ranges(tx, here.key),
        compactions.current(tx, here),
        itertools.chain.from_iterable(
            log.read_range(tx, here, after, min(after + BATCH_ROWS, here.last_seq))
            for after in range(0, here.last_seq, BATCH_ROWS)
        ),
        partial(blobs.read_blob, tx),
    )
