"""A model of the store in plain Python: each step changes it, or raises the name of the error the store must raise.

A conversation is a list of message objects. A branch copies the list and shares the objects, so a redaction reaches it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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

    def reads(self, said: Said) -> bool:
        return said.seq <= self.last_seq and self.log[said.seq - 1] is said

    def forget(self, seq: int) -> None:
        """A message this conversation reads was redacted."""
        for cut in self.cuts:
            if cut.seen >= seq:
                cut.summary = ""
        self.redo = None
        self.epoch += 1


def _runs(seqs: set[int]) -> list[tuple[int, int]]:
    firsts = sorted(seq for seq in seqs if seq - 1 not in seqs)
    lasts = sorted(seq for seq in seqs if seq + 1 not in seqs)
    return list(zip(firsts, lasts, strict=True))
