"""A model of the store in plain Python: each step changes it, or raises the name of the error the store must raise.

A conversation is a list of message objects. A branch copies the list and shares the objects, so a redaction reaches it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast import SessionDB, errors
from tests.support import conversations


class Refused(Exception):
    """The model says: the store must refuse this, with this error."""


def refuse(condition: object, error: str) -> None:
    if condition:
        raise Refused(error)


@dataclass(eq=False)
class Said:
    """A message, shared by every conversation that reads it."""

    seq: int
    uid: str
    text: str | None  # None: redacted


@dataclass(eq=False)
class Cut:
    """A compaction."""

    epoch: int
    base: Cut | None
    cut: int
    seen: int
    summary: str
    pinned: list[int]


@dataclass(eq=False)
class Segment:
    """A session."""

    id: str
    first: int
    reason: str | None = None
    last: int | None = None


@dataclass(eq=False)
class Held:
    """A lease that is held, or was."""

    conversation: Talk
    purpose: str
    token: int
    holder: str
    expires: float
    head: str
    epoch: int
    last_seq: int
    real: Any = None


@dataclass(eq=False)
class Talk:
    """A conversation."""

    id: str
    log: list[Said] = field(default_factory=list)
    own_from: int = 1
    sessions: list[Segment] = field(default_factory=list)
    epoch: int = 1
    fence: int = 0
    current: Cut | None = None
    redo: Cut | None = None
    cuts: list[Cut] = field(default_factory=list)
    hidden: list[list[int]] = field(default_factory=list)  # each: epoch, from, to
    leases: dict[str, Held] = field(default_factory=dict)
    title: str | None = None
    origin: Talk | None = None  # read from
    deleted: bool = False

    def __post_init__(self) -> None:
        self.sessions = self.sessions or [Segment(self.id, self.own_from)]

    @property
    def head(self) -> Segment:
        return self.sessions[-1]

    @property
    def live(self) -> bool:
        return self.head.reason is None

    @property
    def last_seq(self) -> int:
        return len(self.log)

    def counts(self) -> list[int]:
        ends = [self.last_seq if segment.last is None else segment.last for segment in self.sessions]
        return [end - segment.first + 1 for segment, end in zip(self.sessions, ends, strict=True)]

    def context(self) -> list[str]:
        cut = self.current.cut if self.current else 0
        hidden = {seq for _, low, high in self.hidden for seq in range(low, high + 1)}
        pinned = [self.log[seq - 1] for seq in (self.current.pinned if self.current else [])]
        summary = [self.current.summary] if self.current and self.current.summary else []
        shown = [said for said in [*pinned, None, *self.log[cut:]] if said is None or said.seq not in hidden]
        texts = [[said.text or ""] if said else summary for said in shown]
        return [text for some in texts for text in some]

    def stands_on(self) -> tuple[int | None, int | None]:
        """The epochs of the own compaction in force and of the one that can be redone."""
        own = self.current.epoch if self.current in self.cuts else None
        return own, self.redo.epoch if self.redo else None

    def held(self) -> list[tuple[str, int, str]]:
        return [(purpose, lease.token, lease.holder) for purpose, lease in self.leases.items()]

    def append(
        self, session_id: str, said: list[tuple[str, str]], *, strict: bool, lease: Held | None, now: float
    ) -> None:
        known = {message.uid: message for message in self.log[self.own_from - 1 :]}
        new: dict[str, str] = {}
        for uid, text in said:
            stored = known[uid].text if uid in known else new.setdefault(uid, text)
            refuse(stored is not None and stored != text, "UidReused")
        new = {uid: text for uid, text in new.items() if uid not in known}
        if not new:
            return
        refuse(strict and session_id != self.head.id, "Superseded")
        refuse(lease and not self.holds(lease, now), "LeaseLost")
        if not self.live:
            self.go_on("?")
        self.log += [Said(self.last_seq + number, uid, text) for number, (uid, text) in enumerate(new.items(), 1)]

    def go_on(self, child: str) -> None:
        self.sessions.append(Segment(child, self.last_seq + 1))
        self.epoch += 1

    def end(self, reason: str) -> None:
        self.head.reason, self.head.last = reason, self.last_seq
        self.epoch += 1

    def holds(self, lease: Held, now: float) -> bool:
        return lease.conversation is self and self.leases.get(lease.purpose) is lease and lease.expires > now

    def acquire(self, purpose: str, holder: str, ttl: float, now: float) -> Held:
        held = self.leases.get(purpose)
        refuse(held and held.holder != holder and held.expires > now, "Busy")
        self.fence += 1
        lease = Held(self, purpose, self.fence, holder, now + ttl, self.head.id, self.epoch, self.last_seq)
        self.leases[purpose] = lease
        return lease

    def commit(self, work: Held, cut: int, summary: str, pinned: list[int], child: str, now: float) -> None:
        refuse(work.token and not self.holds(work, now), "LeaseLost")
        refuse((work.head, work.epoch) != (self.head.id, self.epoch) or not self.live, "Superseded")
        refuse(cut < (self.current.cut if self.current else 0), "InvalidArgument")
        self.end("compression")
        self.epoch -= 1
        self.rotate(cut, work.last_seq, summary, pinned, child)
        if work.token:
            del self.leases["compact"]

    def rotate(self, cut: int, seen: int, summary: str, pinned: list[int], child: str) -> None:
        self.go_on(child)
        self.current = Cut(self.epoch, self.current, cut, seen, summary, pinned)
        self.cuts.append(self.current)
        self.redo = None

    def undo(self) -> None:
        refuse(self.current not in self.cuts, "NothingToUndo")
        self.redo, self.current = self.current, self.current.base
        self.epoch += 1

    def redone(self) -> None:
        refuse(self.redo is None, "NothingToUndo")
        self.current, self.redo = self.redo, None
        self.epoch += 1

    def hide(self, low: int, high: int) -> None:
        refuse(not 1 <= low <= high <= self.last_seq, "InvalidArgument")
        self.epoch += 1
        self.redo = None
        self.hidden.append([self.epoch, low, high])

    def show(self) -> None:
        refuse(not self.hidden, "NothingToUndo")
        newest = max(self.hidden, key=lambda hide: (hide[0], hide[1]))
        refuse(self.current and newest[1] <= self.current.cut, "ShowRefused")
        self.hidden.remove(newest)
        self.redo = None
        self.epoch += 1

    def branch(self, at: int, id: str) -> Talk:
        base = self.current
        while base and base.seen > at:
            base = base.base
        runs = _runs({seq for _, low, high in self.hidden for seq in range(low, min(high, at) + 1)})
        return Talk(
            id,
            log=self.log[:at],
            own_from=at + 1,
            current=base if at else None,
            hidden=[[1, low, high] for low, high in runs],
            origin=self if at else None,
        )

    def redact(self, seq: int, talks: Iterable[Talk]) -> None:
        """Redact a message, and every summary that was made from it in these conversations."""
        said = self.log[seq - 1]
        said.text = None
        for reader in talks:
            if seq <= reader.last_seq and reader.log[seq - 1] is said:
                for cut in reader.cuts:
                    cut.summary = "" if cut.seen >= seq else cut.summary
                reader.redo = None
                reader.epoch += 1


def _runs(seqs: set[int]) -> list[tuple[int, int]]:
    firsts = sorted(seq for seq in seqs if seq - 1 not in seqs)
    lasts = sorted(seq for seq in seqs if seq + 1 not in seqs)
    return list(zip(firsts, lasts, strict=True))


def do_both(step: Callable[[], Any], call: Callable[[], Any]) -> tuple[Any, Any] | None:
    """Do a step in the model and in the store; None if both refuse it, which they must do for the same reason."""
    (expected, refusal), (actual, answer) = _outcome(step), _outcome(call)
    assert answer == refusal, f"the store: {answer or 'done'}, the model: {refusal or 'done'}"
    return None if refusal else (expected, actual)


def _outcome(call: Callable[[], Any]) -> tuple[Any, str | None]:
    try:
        return call(), None
    except Refused as refused:
        return None, str(refused)
    except errors.HoldfastError as error:
        return None, type(error).__name__


def learn_head(db: SessionDB, talk: Talk) -> None:
    """Learn the id of a continuation from the store, which generated it."""
    if talk.head.id == "?":
        talk.head.id = db.head(talk.id).id


def compare(db: SessionDB, talk: Talk) -> None:
    """Assert that a conversation of the store equals its model."""
    context, now, sessions = db.context(talk.id), db.conversation(talk.head.id), db.sessions(talk.id)
    read = {
        "context": conversations.contents(context),
        "position": (context.epoch, context.last_seq, context.session_id),
        "state": (now.live, now.compaction_epoch, now.redo_epoch),
        "log": [(said.seq, said.uid, said.content) for said in db.transcript(talk.head.id)],
        "compactions": [(cut.epoch, cut.cut_seq, cut.seen_seq, cut.summary) for cut in db.compactions(talk.id)],
        "sessions": [(each.id, each.end_reason, each.message_count, each.title) for each in sessions],
        "continuations": [[each.id for each in db.continuations(session.id)] for session in sessions],
    }
    ends = zip(talk.sessions, talk.counts(), strict=True)
    expected = {
        "context": talk.context(),
        "position": (talk.epoch, talk.last_seq, talk.head.id),
        "state": (talk.live, *talk.stands_on()),
        "log": [(said.seq, said.uid, said.text or "") for said in talk.log],
        "compactions": [(cut.epoch, cut.cut, cut.seen, cut.summary) for cut in talk.cuts],
        "sessions": [(each.id, each.reason, count, talk.title) for each, count in ends],
        "continuations": [[each.id] for each in talk.sessions[1:]] + [[]],
    }
    differences = {name: (read[name], expected[name]) for name in read if read[name] != expected[name]}
    assert not differences, f"the store and the model differ: {differences}"
