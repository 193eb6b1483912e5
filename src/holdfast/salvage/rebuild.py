"""Rebuild conversations from recovered rows, as lines that can be replayed.

Only a message whose digest matches is trusted; the digest covers the conversation id, the seq, the uid, the role and
the text. A lost message keeps its seq, so that no seq ever refers to another message. Other rows are used when they are
consistent with each other, and left out otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast import errors, reports
from holdfast.salvage.recovered_rows import ConversationValues, FoundMessage, HideValues, RecoveredRows, SessionValues
from holdfast.store import compactions, message_codec, titles
from holdfast.store.transfer import jsonl

PLACEHOLDER = message_codec.encode("[This message was lost: the file it was in was damaged.]")
LOST_REASON = "lost"
# If the declared last seq is further than this beyond the last message found, it is treated as damaged.
MAX_SEQ_GAP = 10_000

_LOST_CONVERSATION = ConversationValues(None, None, "", "salvaged", None, 0.0, 1, None, 1, 0, 0, *(None,) * 9)
_LOST_SESSION = SessionValues(*(None,) * 12)
_NO_FORK = (None, None, None, None)

_encode = msgspec.json.Encoder(order="deterministic").encode

# An epoch, the first and the last seq of a range, and for a show the epoch of the hide that it ends.
ViewChange = tuple[int, int, int, int | None]

L = TypeVar("L", jsonl.MessageLine, jsonl.CompactionLine, jsonl.RouteLine)


class RebuiltOrigin(NamedTuple):
    """A rebuilt conversation, as far as its branches need it."""

    id: str
    sessions: frozenset[str]
    last_seq: int
    seen: dict[int, int]

    @classmethod
    def from_lines(cls, lines: Sequence[jsonl.Line]) -> RebuiltOrigin:
        (head,) = [line for line in lines if isinstance(line, jsonl.ConversationLine)]
        sessions = frozenset(line.id for line in lines if isinstance(line, jsonl.SessionLine))
        seen = {line.epoch: line.seen_seq for line in lines if isinstance(line, jsonl.CompactionLine)}
        return cls(head.id, sessions, head.last_seq, seen)


class Candidates(NamedTuple):
    """A conversation as alternative lists of lines, the most complete first, each with what it leaves out.

    There are none if the id is lost. `placeholders` is the number of lines that replace lost messages.
    """

    id: str
    versions: list[tuple[list[jsonl.Line], list[reports.Lost]]]
    lost: list[reports.Lost]
    messages: list[FoundMessage]
    placeholders: int


def rebuild(rows: RecoveredRows, key: int, origins: dict[int, RebuiltOrigin]) -> Candidates | None:
    """Rebuild one conversation. Return None if it was deleted or never existed."""
    found = rows.messages.get(key, {})
    # The id is the one under which the digests of most messages match.
    verified = [(id_, _verify_messages(id_, found)) for id_ in sorted(rows.ids.get(key, ()))]
    if not verified:
        lost = reports.Lost(f"{len(found)} messages of a conversation whose name is lost")
        return Candidates("", [], [lost], [], 0) if found else None
    id_, messages = max(verified, key=lambda each: len(each[1]))
    if id_ in rows.tombstones or (not messages and key not in rows.conversations and not rows.sessions.get(key)):
        return None
    return _Rebuild(rows, key, id_, messages, origins).candidates()


def _verify_messages(conversation_id: str, found: dict[int, list[FoundMessage]]) -> dict[int, FoundMessage]:
    """Return the messages whose digests match under this id."""
    verified = {}
    for seq, versions in found.items():
        sound = [
            each
            for each in versions
            if message_codec.digest(conversation_id, seq, each.uid, each.role, each.body) == each.digest
            and (each.redacted_at is None) == (each.body != "")
        ]
        if sound:
            # A redaction is final, even if an older page still has the text.
            verified[seq] = min(sound, key=lambda each: each.redacted_at is None)
    return verified


class _Rebuild:
    """Rebuilds one conversation."""

    def __init__(
        self,
        rows: RecoveredRows,
        key: int,
        conversation_id: str,
        messages: dict[int, FoundMessage],
        origins: dict[int, RebuiltOrigin],
    ) -> None:
        self._id = conversation_id
        self._messages = messages
        self._is_known = key in rows.conversations
        self._row = rows.conversations.get(key, _LOST_CONVERSATION)
        self._sessions = rows.sessions.get(key, {})
        self._compactions = rows.compactions.get(key, {})
        self._hides = rows.hides.get(key, [])
        self._routes = [
            _make_line(jsonl.RouteLine, route) for route in rows.routes.values() if route.conversation == key
        ]
        self._lost: list[reports.Lost] = []
        if not self._is_known:
            self._report("its own row: owner, source, title, folder, metadata and active compaction")
        self._fork = self._find_fork(origins)
        self._base: int = self._fork[1] or 0
        self._last_seq = self._find_last_seq()
        self._folder = self._clean_folder()
        self._metadata = self._decode_metadata()

    def candidates(self) -> Candidates:
        messages = self._rebuild_messages()
        sessions = self._rebuild_sessions()
        versions = []
        if sessions:
            kept = self._rebuild_compactions(sessions)
            for used, hides in ((kept, True), (kept, False), ({}, False)):
                versions.append(self._version(sessions, used, hides, messages))
        single = [self._session(1, self._base + 1, None if self._is_live() else self._last_seq)]
        versions.append(self._version(single, {}, False, messages))
        found = list(self._messages.values())
        return Candidates(self._id, versions, self._lost, found, len(messages.keys() - self._messages.keys()))

    def _report(self, what: str, first: int | None = None, last: int | None = None) -> None:
        self._lost.append(reports.Lost(what, self._id, first, last))

    # --- the conversation and its messages -----------------------------------------------------------------

    def _find_fork(self, origins: dict[int, RebuiltOrigin]) -> tuple[str | None, int | None, int | None, str | None]:
        """Return the session it was forked from, the seq, the compaction and the id of its origin."""
        forked_from, forked_at = self._row.forked_from, self._row.forked_at
        if forked_from is None or forked_at is None:
            return _NO_FORK
        if not forked_at:
            return forked_from, 0, None, None
        origin = origins.get(self._row.origin)
        if origin is None or forked_from not in origin.sessions or forked_at > origin.last_seq:
            self._report("what it read from its origin", 1, forked_at)
            return _NO_FORK
        epoch = self._row.forked_epoch
        return forked_from, forked_at, epoch if origin.seen.get(epoch, forked_at + 1) <= forked_at else None, origin.id

    def _find_last_seq(self) -> int:
        found, declared = max([self._base, *self._messages]), int(self._row.last_seq)
        if found <= declared <= found + MAX_SEQ_GAP:
            return declared
        if declared > found:
            self._report("how many messages it had")
        return found

    def _clean_folder(self) -> str | None:
        try:
            return titles.clean_folder_or_none(self._row.folder)
        except errors.InvalidArgument:
            self._report("its folder")
            return None

    def _decode_metadata(self) -> dict[str, Any]:
        try:
            return message_codec.check_metadata(message_codec.decode_metadata(self._row.metadata, self._id))
        except (errors.StoreCorrupt, errors.InvalidArgument):
            self._report("its metadata")
            return {}

    def _rebuild_messages(self) -> dict[int, jsonl.MessageLine]:
        lines, at, gap = {}, float(self._row.created_at), 0
        for seq in range(self._base + 1, self._last_seq + 1):
            found = self._messages.get(seq)
            if found and gap:
                self._report("messages", gap, seq - 1)
            gap = 0 if found else gap or seq
            at = found.at if found else at
            lines[seq] = _message_line(seq, found, at)
        if gap:
            self._report("messages", gap, self._last_seq)
        return lines

    # --- sessions ------------------------------------------------------------------------------------------

    def _is_live(self) -> bool:
        if self._is_known:
            return bool(self._row.live == 1)
        return not self._sessions or bool(self._sessions[max(self._sessions)].live == 1)

    def _rebuild_sessions(self) -> list[jsonl.SessionLine]:
        """Return the chain of sessions, with new ids for missing ones; empty if the rows contradict each other."""
        rows = self._sessions
        top = max([1, *(ordinal for ordinal in rows if 0 < ordinal <= 2 * len(rows) + 100)])
        if top < self._row.head <= top + 100:
            top = self._row.head
        starts = [self._last_seq + 1] * (top + 2)
        for ordinal in range(top, 0, -1):
            starts[ordinal] = rows[ordinal].first_seq if ordinal in rows else starts[ordinal + 1]
        starts[1] = self._base + 1
        if any(a > b for a, b in itertools.pairwise(starts[1:])):
            self._report("its sessions")
            return []
        for ordinal in range(1, top + 1):
            if ordinal not in rows:
                self._report(f"session {ordinal}")
        ends = [
            None if ordinal == top and self._is_live() else starts[ordinal + 1] - 1 for ordinal in range(1, top + 1)
        ]
        return [self._session(ordinal, starts[ordinal], end) for ordinal, end in enumerate(ends, 1)]

    def _session(self, ordinal: int, first: int, last: int | None) -> jsonl.SessionLine:
        row = self._sessions.get(ordinal, _LOST_SESSION)
        started = float(row.started_at if row.started_at is not None else self._row.created_at)
        return jsonl.SessionLine(
            ordinal=ordinal,
            id=self._id if ordinal == 1 else row.id or f"{self._id}~{ordinal}",
            source=row.source or self._row.source,
            model=row.model,
            started_at=started,
            ended_at=None if last is None else float(row.ended_at if row.ended_at is not None else started),
            end_reason=None if last is None else row.end_reason or LOST_REASON,
            first_seq=first,
            last_seq=last,
        )

    # --- the context ---------------------------------------------------------------------------------------

    def _rebuild_compactions(self, sessions: list[jsonl.SessionLine]) -> dict[int, jsonl.CompactionLine]:
        """Return compactions by the session they opened. Leaving out an inconsistent one hides no message."""
        kept: dict[int, jsonl.CompactionLine] = {}
        by_epoch: dict[int, jsonl.CompactionLine] = {}
        last_session = 1
        for epoch, row in sorted(self._compactions.items()):
            base = by_epoch.get(row.base_epoch)
            opens = last_session < row.session <= len(sessions)
            within = opens and 0 <= row.cut_seq <= row.seen_seq < sessions[row.session - 1].first_seq
            sound = row.digest in (None, message_codec.summary_digest(self._id, epoch, row.body))
            if epoch < 1 or not within or not sound or not _is_canonical(row.body):
                continue
            if base and base.cut_seq > row.cut_seq:
                continue
            last_session = row.session
            changed = {"base_epoch": row.base_epoch if base else None, "body": msgspec.Raw(row.body.encode())}
            kept[row.session] = by_epoch[epoch] = _make_line(jsonl.CompactionLine, row, **changed)
        for before, after in itertools.pairwise(sessions):
            if before.end_reason == "compression" and after.ordinal not in kept:
                self._report(f"the summary that opened session {after.ordinal}")
        return kept

    def _version(
        self,
        sessions: list[jsonl.SessionLine],
        kept: dict[int, jsonl.CompactionLine],
        hides: bool,
        messages: dict[int, jsonl.MessageLine],
    ) -> tuple[list[jsonl.Line], list[reports.Lost]]:
        """Return the lines of a version, and what it leaves out."""
        omitted = {
            "its summaries": self._compactions and not kept,
            "what was hidden": self._hides and not hides,
            "its sessions": len(sessions) == 1 and len(self._sessions) > 1,
        }
        changes = _view_changes(self._hides) if hides else []
        conversation = self._conversation(sessions, kept, changes)

        def messages_of(session: jsonl.SessionLine) -> list[jsonl.MessageLine]:
            last = self._last_seq if session.last_seq is None else session.last_seq
            numbers = range(session.first_seq, last + 1)
            return [msgspec.structs.replace(messages[seq], session=session.ordinal) for seq in numbers]

        history = jsonl.order_lines(
            conversation,
            sessions,
            lambda after: next((made for made in kept.values() if made.epoch > after), None),
            lambda after, before: [change for change in changes if after < change[0] < before],
            messages_of,
        )
        lost = [reports.Lost(what, self._id) for what, is_omitted in omitted.items() if is_omitted]
        return [conversation, *history, *self._routes], lost

    def _conversation(
        self, sessions: list[jsonl.SessionLine], kept: dict[int, jsonl.CompactionLine], changes: list[ViewChange]
    ) -> jsonl.ConversationLine:
        row = self._row
        epochs = {made.epoch for made in kept.values()}
        active = row.compaction_epoch
        if active not in epochs:
            active = None if self._is_known and active is None else max(epochs, default=None)
        forked_from, forked_at, forked_epoch, origin = self._fork
        return jsonl.ConversationLine(
            id=self._id,
            owner=row.owner,
            source=row.source,
            title=row.title,
            created_at=float(row.created_at),
            head=len(sessions),
            live=bool(sessions) and sessions[-1].ended_at is None,
            epoch=max([row.epoch, len(sessions), *epochs, *(change[0] for change in changes)]),
            last_seq=self._last_seq,
            fence=max([row.fence, *(made.token or 0 for made in kept.values())]),
            compaction_epoch=active,
            redo_epoch=row.redo_epoch if row.redo_epoch in epochs else None,
            forked_from=forked_from,
            forked_at=forked_at,
            forked_epoch=forked_epoch,
            origin=origin,
            folder=self._folder,
            metadata=self._metadata,
        )


def _make_line(kind: type[L], row: Any, **values: Any) -> L:
    """Make a line of the columns of a row that are named like its fields, and of other values."""
    columns = {name: value for name, value in row._asdict().items() if name in kind.__struct_fields__}
    return kind(**{**columns, **values})


def _message_line(seq: int, found: FoundMessage | None, at: float) -> jsonl.MessageLine:
    if found is None:
        body = msgspec.Raw(PLACEHOLDER.encode())
        return jsonl.MessageLine(seq=seq, session=1, uid=f"lost-{seq}", role="user", at=at, body=body)
    body = msgspec.Raw(found.body.encode()) if found.body else jsonl.NO_BODY
    return _make_line(jsonl.MessageLine, found, seq=seq, session=1, body=body)


def _is_canonical(text: str) -> bool:
    """Return whether a summary is in its stored form; any other is damaged."""
    try:
        body = msgspec.json.decode(text, type=compactions.CompactionBody)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    return _encode(body).decode() == text


def _view_changes(hides: list[HideValues]) -> list[ViewChange]:
    """List hides and shows in order."""
    hidden = [(row.epoch, row.from_seq, row.to_seq, None) for row in hides]
    shown = [(row.shown_epoch, row.from_seq, row.to_seq, row.epoch) for row in hides if row.shown_epoch is not None]
    return sorted({*hidden, *shown}, key=lambda change: (change[0], change[1]))
