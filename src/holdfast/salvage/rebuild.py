"""Rebuild conversations from recovered rows, as lines that can be replayed.

Only a message whose digest matches is trusted; the digest covers the conversation id, the seq, the uid, the role and
the text. A lost message keeps its seq, so that no seq ever refers to another message. Other rows are used when they are
consistent with each other, and left out otherwise.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import msgspec

from holdfast import errors, reports
from holdfast.salvage import recovered_rows
from holdfast.store import compactions, message_codec, titles
from holdfast.store.transfer import format as transfer_format

PLACEHOLDER = message_codec.encode("[This message was lost: the file it was in was damaged.]")
LOST_REASON = "lost"
# If the declared last seq is further than this beyond the last message found, it is treated as damaged.
MAX_SEQ_GAP = 10_000

_encode = msgspec.json.Encoder(order="deterministic").encode


class RebuiltOrigin(NamedTuple):
    """A rebuilt conversation, as far as its branches need it."""

    id: str
    sessions: frozenset[str]
    last_seq: int
    seen: dict[int, int]


class Candidates(NamedTuple):
    """A conversation as alternative lists of lines, the most complete first, each with what it leaves out."""

    id: str
    versions: list[tuple[list[transfer_format.Line], list[reports.Lost]]]
    lost: list[reports.Lost]
    bodies: list[str]


class Unnamed(NamedTuple):
    """Messages of a conversation whose id is lost."""

    messages: int


def rebuild(
    rows: recovered_rows.RecoveredRows, key: int, origins: dict[int, RebuiltOrigin]
) -> Candidates | Unnamed | None:
    """Rebuild one conversation. Return None if it was deleted or never existed."""
    found = rows.messages.get(key, {})
    name, good = _verify(rows.names.get(key, set()), found)
    if name is None:
        return Unnamed(len(found)) if found else None
    if name in rows.tombstones or (not good and key not in rows.conversations and not rows.sessions.get(key)):
        return None
    return _Rebuild(rows, key, name, good, origins).candidates()


def _verify(
    names: set[str], found: dict[int, list[recovered_rows.FoundMessage]]
) -> tuple[str | None, dict[int, recovered_rows.FoundMessage]]:
    """Return the id under which the digests of most messages match, and those messages."""
    best: tuple[str | None, dict[int, recovered_rows.FoundMessage]] = (None, {})
    for name in sorted(names):
        good = {
            seq: true for seq, versions in found.items() if (true := _choose_version(name, seq, versions)) is not None
        }
        if best[0] is None or len(good) > len(best[1]):
            best = (name, good)
    return best


def _choose_version(
    name: str, seq: int, versions: list[recovered_rows.FoundMessage]
) -> recovered_rows.FoundMessage | None:
    sound = [
        each
        for each in versions
        if message_codec.digest(name, seq, each.uid, each.role, each.body) == each.digest
        and (each.redacted_at is None) == (each.body != "")
    ]
    # A redaction is final, even if an older page still has the text.
    return min(sound, key=lambda each: each.redacted_at is None, default=None)


class _Rebuild:
    """Rebuilds one conversation."""

    def __init__(
        self,
        rows: recovered_rows.RecoveredRows,
        key: int,
        name: str,
        good: dict[int, recovered_rows.FoundMessage],
        origins: dict[int, RebuiltOrigin],
    ) -> None:
        self._rows = rows
        self._key = key
        self._name = name
        self._good = good
        self._row = rows.conversations.get(key)
        self.lost: list[reports.Lost] = []
        self._fork = self._fork_point(origins)
        self._base = self._fork[1] or 0 if self._fork else 0
        self._last = self._last_seq()

    def candidates(self) -> Candidates:
        messages = self._messages()
        sessions = self._sessions()
        kept = self._compactions(sessions) if sessions else {}
        single = self._single()
        versions = [self._version(single, {}, False, messages)]
        if sessions:
            more = [(kept, True), (kept, False), ({}, False)]
            versions = [*(self._version(sessions, used, hides, messages) for used, hides in more), *versions]
        return Candidates(self._name, versions, self.lost, [found.body for found in self._good.values()])

    def _miss(self, what: str, first: int | None = None, last: int | None = None) -> None:
        self.lost.append(reports.Lost(what, self._name, first, last))

    # --- extent --------------------------------------------------------------------------------------------

    def _fork_point(self, origins: dict[int, RebuiltOrigin]) -> tuple[str, int, int | None, str | None] | None:
        """Return the session it was forked from, the seq, the compaction and the origin."""
        if self._row is None:
            self._miss("its own row: owner, source, title and active compaction")
            return None
        forked_from, forked_at, forked_epoch, origin = self._row[13:17]
        if forked_from is None or forked_at is None:
            return None
        if not forked_at:
            return forked_from, 0, None, None
        kept = origins.get(origin)
        if kept is None or forked_from not in kept.sessions or forked_at > kept.last_seq:
            self._miss("what it read from its origin", 1, forked_at)
            return None
        epoch = forked_epoch if kept.seen.get(forked_epoch, forked_at + 1) <= forked_at else None
        return forked_from, forked_at, epoch, kept.id

    def _last_seq(self) -> int:
        found = max([self._base, *self._good])
        claimed = self._row[9] if self._row else found
        if found <= claimed <= found + MAX_SEQ_GAP:
            return int(claimed)
        if claimed > found:
            self._miss("how many messages it had")
        return found

    def _messages(self) -> dict[int, transfer_format.Message]:
        lines, at, gap = {}, self._row[5] if self._row else 0.0, 0
        for seq in range(self._base + 1, self._last + 2):
            found = self._good.get(seq)
            if (found is not None or seq > self._last) and gap:
                self._miss("messages", gap, seq - 1)
                gap = 0
            if seq > self._last:
                break
            gap = gap or (0 if found else seq)
            at = found.at if found else float(at)
            lines[seq] = _line(seq, found, at)
        return lines

    # --- sessions ------------------------------------------------------------------------------------------

    def _live(self) -> bool:
        if self._row is not None:
            return bool(self._row[7] == 1)
        rows = self._rows.sessions.get(self._key)
        return not rows or bool(rows[max(rows)][4] == 1)

    def _single(self) -> list[transfer_format.Session]:
        row = self._rows.sessions.get(self._key, {}).get(1)
        return [self._session(1, row, self._base + 1, None if self._live() else self._last)]

    def _sessions(self) -> list[transfer_format.Session]:
        """Return the chain of sessions, with new ids for missing ones; empty if the rows contradict each other."""
        rows = self._rows.sessions.get(self._key, {})
        top = max([1, *(ordinal for ordinal in rows if 0 < ordinal <= 2 * len(rows) + 100)])
        if self._row and top < self._row[6] <= top + 100:
            top = self._row[6]
        starts = [self._last + 1] * (top + 2)
        for ordinal in range(top, 0, -1):
            starts[ordinal] = rows[ordinal][10] if ordinal in rows else starts[ordinal + 1]
        starts[1] = self._base + 1
        if any(a > b for a, b in itertools.pairwise(starts[1:])):
            self._miss("its sessions")
            return []
        for ordinal in range(1, top + 1):
            if ordinal not in rows:
                self._miss(f"session {ordinal}")
        ends = [None if ordinal == top and self._live() else starts[ordinal + 1] - 1 for ordinal in range(1, top + 1)]
        return [self._session(o, rows.get(o), starts[o], end) for o, end in enumerate(ends, 1)]

    def _session(
        self, ordinal: int, row: tuple[Any, ...] | None, first: int, last: int | None
    ) -> transfer_format.Session:
        _, _, name, _, _, source, model, started, ended, reason, _, _ = row or (None,) * 12
        started = float(started if started is not None else self._row[5] if self._row else 0.0)
        known = name if ordinal > 1 and name else f"{self._name}~{ordinal}"
        return transfer_format.Session(
            ordinal=ordinal,
            id=self._name if ordinal == 1 else known,
            source=source or (self._row[3] if self._row else "salvaged"),
            model=model,
            started_at=started,
            ended_at=None if last is None else float(ended if ended is not None else started),
            end_reason=None if last is None else reason or LOST_REASON,
            first_seq=first,
            last_seq=last,
        )

    # --- the context ---------------------------------------------------------------------------------------

    def _compactions(self, sessions: list[transfer_format.Session]) -> dict[int, transfer_format.Compaction]:
        """Return compactions by the session they opened. Leaving out an inconsistent one hides no message."""
        kept: dict[int, transfer_format.Compaction] = {}
        by_epoch: dict[int, transfer_format.Compaction] = {}
        newest = (0, 0, 0)
        for epoch, row in sorted(self._rows.compactions.get(self._key, {}).items()):
            _, _, base, session, cut, seen, token, text, at, redacted_at, digest = row
            active = by_epoch.get(base)
            opens = 1 < session <= len(sessions) and session > newest[1]
            within = 0 <= cut <= seen and opens and seen < sessions[session - 1].first_seq
            true = digest in (None, message_codec.summary_digest(self._name, epoch, text)) and _exact(text) is not None
            if not within or epoch <= newest[0] or not true or (active and active.cut_seq > cut):
                continue
            newest = (epoch, session, max(newest[2], token or 0))
            made = transfer_format.Compaction(
                epoch=epoch,
                base_epoch=base if active else None,
                session=session,
                cut_seq=cut,
                seen_seq=seen,
                token=token,
                at=float(at),
                body=msgspec.Raw(text.encode()),
                redacted_at=redacted_at,
            )
            kept[session] = by_epoch[epoch] = made
        for before, after in itertools.pairwise(sessions):
            if before.end_reason == "compression" and after.ordinal not in kept:
                self._miss(f"the summary that opened session {after.ordinal}")
        return kept

    def _version(
        self,
        sessions: list[transfer_format.Session],
        kept: dict[int, transfer_format.Compaction],
        hides: bool,
        messages: dict[int, transfer_format.Message],
    ) -> tuple[list[transfer_format.Line], list[reports.Lost]]:
        """Return the lines of a version, and what it leaves out."""
        omitted = (
            [] if kept or not self._rows.compactions.get(self._key) else [reports.Lost("its summaries", self._name)]
        )
        events = _events(self._rows.hides.get(self._key, [])) if hides else []
        if not hides and self._rows.hides.get(self._key):
            omitted.append(reports.Lost("what was hidden", self._name))
        if len(sessions) == 1 and len(self._rows.sessions.get(self._key, {})) > 1:
            omitted.append(reports.Lost("its sessions", self._name))
        epochs = {made.epoch for made in kept.values()}
        active = self._row[11] if self._row and self._row[11] in epochs else max(epochs, default=None)
        if self._row is not None and self._row[11] is None:
            active = None
        head = self._conversation(sessions, active, epochs, events, kept)

        def messages_of(session: transfer_format.Session) -> list[transfer_format.Message]:
            last = self._last if session.last_seq is None else session.last_seq
            numbers = range(session.first_seq, last + 1)
            return [msgspec.structs.replace(messages[n], session=session.ordinal) for n in numbers]

        history = transfer_format.order_lines(
            head,
            sessions,
            lambda after: next((made for made in kept.values() if made.epoch > after), None),
            lambda after, before: [event for event in events if after < event[0] < before],
            messages_of,
        )
        routes = [
            transfer_format.Route(key=key, version=version, updated_at=float(at))
            for key, conversation, version, at in self._rows.routes.values()
            if conversation == self._key
        ]
        return [head, *history, *routes], omitted

    def _conversation(
        self,
        sessions: list[transfer_format.Session],
        active: int | None,
        epochs: set[int],
        events: list[tuple[int, int, int, int | None]],
        kept: dict[int, transfer_format.Compaction],
    ) -> transfer_format.Conversation:
        row = self._row or (None, None, "", "salvaged", None, 0.0, 1, 1, 1, 0, 0, *(None,) * 9)
        forked_from, forked_at, forked_epoch, origin = self._fork or (None, None, None, None)
        return transfer_format.Conversation(
            id=self._name,
            owner=row[2],
            source=row[3],
            title=row[4],
            created_at=float(row[5]),
            head=len(sessions),
            live=bool(sessions) and sessions[-1].ended_at is None,
            epoch=max([row[8], len(sessions), *epochs, *(event[0] for event in events)]),
            last_seq=self._last,
            fence=max([row[10], *(made.token or 0 for made in kept.values())]),
            compaction_epoch=active,
            redo_epoch=row[12] if row[12] in epochs else None,
            forked_from=forked_from,
            forked_at=forked_at,
            forked_epoch=forked_epoch,
            origin=origin,
            folder=_folder(row[18]),
            metadata=_metadata(row[19]),
        )


def _metadata(found: str | None) -> dict[str, Any]:
    """Return the metadata of a conversation, none if it is damaged."""
    try:
        return message_codec.check_metadata(message_codec.decode_metadata(found, ""))
    except (errors.StoreCorrupt, errors.InvalidArgument):
        return {}


def _folder(found: str | None) -> str | None:
    """Return the folder if it is valid."""
    try:
        return titles.clean_folder_or_none(found)
    except errors.InvalidArgument:
        return None


def _line(seq: int, found: recovered_rows.FoundMessage | None, at: float) -> transfer_format.Message:
    if found is None:
        body = msgspec.Raw(PLACEHOLDER.encode())
        return transfer_format.Message(seq=seq, session=1, uid=f"lost-{seq}", role="user", at=at, body=body)
    raw = msgspec.Raw(found.body.encode()) if found.body else transfer_format.NO_BODY
    redacted = None if found.redacted_at is None else float(found.redacted_at)
    return transfer_format.Message(
        seq=seq, session=1, uid=found.uid, role=found.role, at=found.at, body=raw, redacted_at=redacted
    )


def _exact(text: str) -> compactions.Body | None:
    """Decode a summary that is in its stored form; any other is damaged."""
    try:
        body = msgspec.json.decode(text, type=compactions.Body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return body if _encode(body).decode() == text else None


def _events(rows: list[tuple[Any, ...]]) -> list[tuple[int, int, int, int | None]]:
    """List hides and shows in order: epoch, first seq, last seq, and the epoch of the hide that a show ends."""
    hidden = [(epoch, low, high, None) for epoch, low, high, _ in rows]
    shown = [(shown, low, high, epoch) for epoch, low, high, shown in rows if shown is not None]
    return sorted({*hidden, *shown}, key=lambda event: (event[0], event[1]))
