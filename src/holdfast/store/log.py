"""The log: append, and the two ways to read it.

An append is acknowledged only after its commit, has a uid that makes repeating it harmless, and always
finds the head: the id it was given may be any session of the conversation, however old.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast import errors, types
from holdfast.store import bodies, compactions, hides, leases, port, routes, sessions, state, titles, view


class Append:
    """An append checked and encoded, to be run in a transaction, alone or with others; it may run again."""

    __slots__ = ("create", "expect_head", "fresh", "lease", "messages", "new_id", "now", "session_id")

    def __init__(
        self,
        session_id: str | state.NewId,
        messages: Sequence[bodies.Prepared],
        expect_head: bool,
        create: types.NewConversation | None,
        lease: types.Lease | None,
        now: float,
    ) -> None:
        self.session_id = session_id if isinstance(session_id, str) else session_id.id
        self.new_id = None if isinstance(session_id, str) else session_id
        self.messages = messages
        self.expect_head = expect_head
        self.create = create
        self.lease = lease
        self.now = now
        # Uids minted just now cannot be known yet, so the first attempt need not look for them.
        self.fresh = messages[0].minted and (len(messages) == 1 or all(message.minted for message in messages))

    def __call__(self, tx: port.Tx) -> list[types.Receipt]:
        """Known uids return what is stored, the others get the next numbers in order."""
        fresh, self.fresh = self.fresh, False
        if self.new_id is not None:
            self.session_id = self.new_id.settle(tx)
        messages, row = self.messages, tx.one("lock_conversation", id=self.session_id)
        here = state.State(*row) if row is not None else self._born(tx)
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
        return [
            types.Receipt(seq, message.uid, session, here.id, here.epoch, self._moved(session), duplicate, resumed)
            for message, (seq, session, duplicate) in zip(messages, stored, strict=True)
        ]

    def _moved(self, session: str) -> str | None:
        return self.session_id if session != self.session_id else None

    def _check(self, tx: port.Tx, here: state.State) -> None:
        if self.expect_head and here.asked != here.head:
            raise errors.Superseded(here.head_id, here.epoch)
        if self.lease is not None:
            leases.check_held(tx, here, self.lease)

    def _born(self, tx: port.Tx) -> state.State:
        if self.create is None:
            raise state.missing(tx, self.session_id)
        return _born(tx, self.session_id, self.create, self.now)


def _born(tx: port.Tx, session_id: str, create: types.NewConversation, now: float) -> state.State:
    sessions.refuse_taken(tx, session_id)
    if create.title is not None:
        titles.refuse_taken(tx, create.owner, create.title)
    here = sessions.born(
        tx, session_id, owner=create.owner, source=create.source, model=create.model, title=create.title, now=now
    )
    if create.route is not None:
        routes.bind_unbound(tx, create.route, here, now)
    return here


Stored = tuple[int, str, bool]


def _known(tx: port.Tx, here: state.State, messages: Sequence[bodies.Prepared]) -> dict[str, Stored]:
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
    tx: port.Tx, here: state.State, messages: Sequence[bodies.Prepared], known: dict[str, Stored]
) -> list[Stored]:
    seq = here.last_seq
    results: list[Stored] = []
    written: dict[str, bodies.Prepared] = {}
    for message in messages:
        if message.uid in known:
            first = written.get(message.uid, message)
            if (first.role, first.body) != (message.role, message.body):
                raise errors.UidReused(message.uid, known[message.uid][0])
            results.append(known[message.uid])
            continue
        seq += 1
        tx.run(
            "message_insert",
            conversation=here.key,
            seq=seq,
            session=here.head,
            uid=message.uid,
            role=message.role,
            at=message.at,
            body=message.body,
            digest=bodies.digest(here.id, seq, message.uid, message.role, message.body),
        )
        results.append((seq, here.head_id, False))
        if len(messages) > 1:
            known[message.uid], written[message.uid] = (seq, here.head_id, True), message
    return results


# --- reading -----------------------------------------------------------------------------------------


def transcript(tx: port.Tx, session_id: str, after: int = 0, upto: int | None = None) -> list[types.Message]:
    """The whole log of the conversation, first to last, origins included, hidden turns too."""
    here = state.look(tx, session_id)
    last = here.last_seq if upto is None else min(upto, here.last_seq)
    return between(tx, here, after, last)


def context(tx: port.Tx, session_id: str, upto: int | None = None) -> types.Context:
    """Pinned + summary + what comes after the cut and is not hidden, all of one snapshot."""
    here = state.look(tx, session_id)
    last = here.last_seq if upto is None else min(upto, here.last_seq)
    compaction = compactions.current(tx, here)
    cut = compaction.cut_seq if compaction else 0
    tail = between(tx, here, cut, last)
    pinned = [message for seq in _pinned(compaction, last) for message in between(tx, here, seq - 1, seq)]
    hidden = hides.in_force(tx, here.key)
    if hidden:
        tail = [message for message in tail if not hides.covers(hidden, message.seq)]
        pinned = [message for message in pinned if not hides.covers(hidden, message.seq)]
    running: frozenset[str] = frozenset()
    # One list: a pinned call may have its result after the cut.
    shown = [*pinned, *_summary(compaction), *tail]
    if view.has_calls(shown):
        shown, running = view.arrange(shown, leases.turn_began(tx, here))
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
    uid, body = f"summary:{compaction.epoch}", bodies.written(compaction.summary)
    return [types.Message(compaction.cut_seq, uid, compaction.session_id, "user", compaction.at, body)]


def between(tx: port.Tx, here: state.State, after: int, upto: int) -> list[types.Message]:
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


def _stretch(tx: port.Tx, key: int, after: int, upto: int) -> list[types.Message]:
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
