"""The log: append, and the two ways to read it.

An append is acknowledged only after its commit, has a uid that makes repeating it harmless, and always
finds the head: the id it was given may be any session of the conversation, however old.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast import errors, types
from holdfast.store import (
    compactions,
    conversation_row,
    leases,
    message_codec,
    notifications,
    routes,
    sessions,
    titles,
    tool_pairs,
    visibility,
)
from holdfast.store.driver import Asked, Row, Tx
from holdfast.store.postgres import fast_append

# Characters that one statement may bring.
AT_ONCE = 16 * 1024 * 1024


class Append:
    """An append checked and encoded, to be run in a transaction, alone or with others; it may run again."""

    __slots__ = (
        *("born", "create", "expect_head", "fresh", "lease", "messages", "new_id", "now", "session_id", "tip", "tips"),
    )

    def __init__(
        self,
        session_id: str | conversation_row.NewId,
        messages: Sequence[message_codec.Prepared],
        expect_head: bool,
        create: types.NewConversation | None,
        lease: types.Lease | None,
        now: float,
        seen: fast_append.Tips | None = None,
    ) -> None:
        self.session_id = session_id if isinstance(session_id, str) else session_id.id
        self.new_id = None if isinstance(session_id, str) else session_id
        self.messages = messages
        self.expect_head = expect_head
        self.create = create
        self.lease = lease
        self.now = now
        self.tips = seen
        self.tip: fast_append.Tip | None = None
        self.born = False
        # Uids minted just now cannot be known yet, so the first attempt need not look for them.
        self.fresh = messages[0].minted and (len(messages) == 1 or all(message.minted for message in messages))

    def __call__(self, tx: Tx) -> list[types.Receipt]:
        """Known uids return what is stored, the others get the next numbers in order."""
        fresh, self.fresh = self.fresh, False
        if self.new_id is not None:
            self.session_id = self.new_id.settle(tx)
        messages, row = self.messages, self._locked(tx)
        self.born = row is None
        here = conversation_row.State(*row) if row is not None else self._born(tx)
        if self.create is not None and self.create.owner != here.owner:
            raise errors.IdTaken(self.session_id)
        known = {} if fresh or row is None else _known(tx, here, messages)
        resumed = False
        # What is stored already stays acknowledged, whatever became of the head or the lease since.
        if not known or any(message.uid not in known for message in messages):
            self._check(tx, here)
            resumed = here.live is None
        if resumed:
            here = sessions.continue_(tx, here, self.now)
        stored = _write(tx, here, messages, known)
        if self.tips is not None:
            new = sum(not duplicate for _, _, duplicate in stored)
            place = fast_append.Place(here.key, here.head, here.id, here.head_id)
            self.tips.note(self.session_id, place, here.last_seq + new, new)
        return [
            types.Receipt(seq, message.uid, session, here.id, here.epoch, self._moved(session), duplicate, resumed)
            for message, (seq, session, duplicate) in zip(messages, stored, strict=True)
        ]

    def plain(self) -> Asked | None:
        """In one statement, where nothing is special about it and the end of the log can be guessed; once."""
        if len(self.messages) > 1:
            return several([self])
        tip = self.tip = self.guess()
        if tip is None:
            return None
        (message,), (fresh, self.fresh), place, seen = self.messages, (self.fresh, False), tip.place, tip.last_seq
        said = {"uid": message.uid, "role": message.role, "at": message.at, "body": message.body, "seen": seen}
        digests = [_digest(place, seq, message) for seq in range(seen + 1, seen + 1 + tip.digests(message.body))]
        told = (notifications.Hint("moved", place.conversation_id),)
        if len(digests) == 1:
            where = {
                "key": place.key,
                "conversation": place.conversation_id,
                "head": place.head,
                "digest": digests[0],
            }
            return Asked("append_plain", said | where, told)
        # Where others write too, none of them is to wait for the disk.
        how = {"id": self.session_id, "strict": self.expect_head, "fresh": fresh, "digests": b"".join(digests)}
        return Asked("append_shared", said | how, told, shared=True)

    def guess(self) -> fast_append.Tip | None:
        """Where the log seems to end, if that is all there is to know for this append."""
        if self.tips is None or self.create is not None or self.lease is not None:
            return None
        tip = self.tips.get(self.session_id)
        return None if tip and self.expect_head and tip.place.head_id != self.session_id else tip

    @property
    def conversation_id(self) -> str | None:
        """The conversation, if this process has written to it by this id."""
        tip = self.tips.get(self.session_id) if self.tips else None
        return tip.place.conversation_id if tip else None

    def shares(self) -> bool:
        """Whether others seem to write there, too."""
        tip = self.guess()
        return tip is not None and tip.spread > 1

    def answered(self, row: Row) -> list[types.Receipt]:
        assert self.tip is not None  # there was something to ask
        place, seq = self.tip.place, self.tip.last_seq + len(self.messages)
        if len(self.messages) > 1:
            (epoch,), (head_id,) = row[1:]
        elif len(row) == 2:
            epoch, head_id = row
        else:
            seq, head_id, epoch, key, head = row
            place = place._replace(key=key, head=head)
        return self.written(place._replace(head_id=head_id), seq, epoch)

    def written(self, place: fast_append.Place, last: int, epoch: int) -> list[types.Receipt]:
        """What is to be told of messages that were new, the last of which got this number."""
        if self.tips is not None:
            self.tips.note(self.session_id, place, last, len(self.messages))
        moved = self._moved(place.head_id)
        return [
            types.Receipt(seq, message.uid, place.head_id, place.conversation_id, epoch, moved, False, False)
            for seq, message in enumerate(self.messages, last - len(self.messages) + 1)
        ]

    def _locked(self, tx: Tx) -> Row | None:
        """None when it is not there, which is looked at last: another may have begun it since the first look."""
        row = tx.one("lock_conversation", id=self.session_id)
        while row is None and self.create is not None and tx.one("session_place", id=self.session_id):
            row = tx.one("lock_conversation", id=self.session_id)
        return row

    def _moved(self, session: str) -> str | None:
        return self.session_id if session != self.session_id else None

    def _check(self, tx: Tx, here: conversation_row.State) -> None:
        if self.expect_head and here.asked != here.head:
            raise errors.Superseded(here.head_id, here.epoch)
        if self.lease is not None:
            leases.check_held(tx, here, self.lease)

    def _born(self, tx: Tx) -> conversation_row.State:
        if self.create is None:
            raise conversation_row.missing(tx, self.session_id)
        return _born(tx, self.session_id, self.create, self.now)


def several(steps: Sequence[Append]) -> Asked | None:
    """Appends that share a commit, in one statement: all of them or, where one of them is special, none."""
    ends: dict[int, int] = {}
    firsts: dict[int, fast_append.Tip] = {}
    rows: list[tuple[Any, ...]] = []
    for step in steps:
        tip = step.guess()
        if tip is None or tip.spread > 1:
            return None
        place, last = tip.place, ends.get(tip.place.key, tip.last_seq)
        step.tip, step.fresh = tip._replace(last_seq=last), False
        firsts.setdefault(place.key, step.tip)
        for seq, message in enumerate(step.messages, last + 1):
            said = (message.uid, message.role, message.at, message.body, _digest(place, seq, message))
            rows.append((place.key, seq, place.head, *said))
        ends[place.key] = last + len(step.messages)
    if sum(len(row[6]) for row in rows) > AT_ONCE:
        return None
    columns = ("conversations", "seqs", "sessions", "uids", "roles", "ats", "bodies", "digests")
    where = [(tip.place.conversation_id, tip.last_seq, tip.place.head) for tip in firsts.values()]
    seen = dict(zip(("ids", "seen", "heads"), map(list, zip(*where, strict=True)), strict=True))
    values = {"keys": list(firsts), **seen, **dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True))}
    told = [notifications.Hint("moved", tip.place.conversation_id) for tip in firsts.values()]
    return Asked("append_several", values, told)


def _digest(place: fast_append.Place, seq: int, message: message_codec.Prepared) -> bytes:
    return message_codec.digest(place.conversation_id, seq, message.uid, message.role, message.body)


def _born(tx: Tx, session_id: str, create: types.NewConversation, now: float) -> conversation_row.State:
    if tx.one("tombstone", id=session_id):
        raise errors.ConversationDeleted(session_id)
    if create.title is not None:
        titles.refuse_taken(tx, create.owner, create.title)
    here = sessions.born(
        tx,
        session_id,
        owner=create.owner,
        source=create.source,
        model=create.model,
        title=create.title,
        folder=create.folder,
        now=now,
    )
    if create.route is not None:
        routes.bind_unbound(tx, create.route, here, now)
    return here


Stored = tuple[int, str, bool]


def _known(tx: Tx, here: conversation_row.State, messages: Sequence[message_codec.Prepared]) -> dict[str, Stored]:
    """What is stored already of these uids; other content under a known uid is refused."""
    known: dict[str, Stored] = {}
    for message in messages:
        row = tx.one("message_by_uid", conversation=here.key, uid=message.uid)
        if row is None:
            continue
        seq, session, role, body, redacted = row
        if role != message.role or (not redacted and body != message.body):
            raise errors.UidReused(message.uid, seq)
        known[message.uid] = (seq, session, True)
    return known


def _write(
    tx: Tx, here: conversation_row.State, messages: Sequence[message_codec.Prepared], known: dict[str, Stored]
) -> list[Stored]:
    seq = here.last_seq
    results: list[Stored] = []
    written: dict[str, message_codec.Prepared] = {}
    for message in messages:
        if message.uid in known:
            first = written.get(message.uid, message)
            if (first.role, first.body) != (message.role, message.body):
                raise errors.UidReused(message.uid, known[message.uid][0])
            results.append(known[message.uid])
            continue
        seq += 1
        tx.later(
            "message_insert",
            conversation=here.key,
            seq=seq,
            session=here.head,
            uid=message.uid,
            role=message.role,
            at=message.at,
            body=message.body,
            digest=message_codec.digest(here.id, seq, message.uid, message.role, message.body),
        )
        results.append((seq, here.head_id, False))
        if len(messages) > 1:
            known[message.uid], written[message.uid] = (seq, here.head_id, True), message
    return results


# --- reading -----------------------------------------------------------------------------------------


def seq_of(tx: Tx, session_id: str, uid: str) -> int | None:
    row = tx.one("message_by_uid", conversation=conversation_row.look(tx, session_id).key, uid=uid)
    return None if row is None else int(row[0])


def transcript(tx: Tx, session_id: str, after: int = 0, upto: int | None = None) -> list[types.Message]:
    """The whole log of the conversation, first to last, origins included, hidden turns too."""
    here = conversation_row.look(tx, session_id)
    last = here.last_seq if upto is None else min(upto, here.last_seq)
    return between(tx, here, after, last)


def context(tx: Tx, session_id: str, upto: int | None = None) -> types.Context:
    """Pinned + summary + what comes after the cut and is not hidden, all of one snapshot."""
    here = conversation_row.look(tx, session_id)
    last = here.last_seq if upto is None else min(upto, here.last_seq)
    compaction = compactions.current(tx, here)
    cut = compaction.cut_seq if compaction else 0
    tail = between(tx, here, cut, last)
    pinned = [message for seq in _pinned(compaction, last) for message in between(tx, here, seq - 1, seq)]
    hidden = visibility.in_force(tx, here.key)
    if hidden:
        tail = [message for message in tail if not visibility.covers(hidden, message.seq)]
        pinned = [message for message in pinned if not visibility.covers(hidden, message.seq)]
    running: frozenset[str] = frozenset()
    # One list: a pinned call may have its result after the cut.
    shown = [*pinned, *_summary(compaction), *tail]
    if tool_pairs.has_calls(shown):
        shown, running = tool_pairs.arrange(shown, leases.turn_began(tx, here))
    return types.Context(
        shown,
        conversation_id=here.id,
        session_id=here.head_id,
        epoch=here.epoch,
        last_seq=last,
        cut_seq=cut,
        compaction=compaction,
        running=running,
    )


def _pinned(compaction: types.Compaction | None, last: int) -> list[int]:
    return [seq for seq in compaction.pinned if seq <= last] if compaction else []


def _summary(compaction: types.Compaction | None) -> list[types.Message]:
    """The summary as the model sees it: one message, which stands in no log and has the cut's seq."""
    if compaction is None or not compaction.summary:
        return []
    uid, body = f"summary:{compaction.epoch}", message_codec.written(compaction.summary)
    return [types.Message(compaction.cut_seq, uid, compaction.session_id, "user", compaction.at, body)]


def between(tx: Tx, here: conversation_row.State, after: int, upto: int) -> list[types.Message]:
    """Messages with after < seq <= upto, going down the origins of a branch."""
    messages: list[types.Message] = []
    key, origin, forked_at = here.key, here.origin, here.forked_at
    passed = {key}
    while upto > after:
        if upto > forked_at:
            messages = _stretch(tx, key, max(after, forked_at), upto) + messages
        if origin is None:
            break
        upto, key = min(upto, forked_at), origin
        if key in passed:
            raise errors.StoreCorrupt(f"The conversation {here.id} branches off itself.")
        passed.add(key)
        origin, forked_at = (tx.one("origin_of", key=key) or (None, 0))[:2]
    return messages


def _stretch(tx: Tx, key: int, after: int, upto: int) -> list[types.Message]:
    rows = tx.all("messages_between", conversation=key, after=after, upto=upto)
    if not rows:
        return []
    # The log is in session order, so the first and the last row bound the sessions to name.
    names: dict[int, str] = dict(tx.all("session_names", conversation=key, low=rows[0][2], high=rows[-1][2]))
    make = types.Message
    try:
        return [make(seq, uid, names[session], role, at, body) for seq, uid, session, role, at, body in rows]
    except KeyError:
        raise errors.StoreCorrupt("A message is in a session that does not exist.") from None
