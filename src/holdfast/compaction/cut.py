"""Find the cut of a compaction: which messages of a context are summarized, and which stay verbatim. Pure.

A context consists of groups: a message, or a tool call with its results. A group stays or goes as a whole. The tail
stays, and before the cut the pinned groups stay. Two kinds of groups are carried over this one cut only: the last user
message, if its turn has outgrown the tail, and a call whose result came after the cut. The ledger records them, and the
next cut may summarize them.

Pinned are the first exchange and the messages that users pinned. They have a share of the window, filled from the
oldest on; a pinned group that does not fit is summarized. Pins of users are read at every cut, so
they are also carried only: after an unpin, the next cut may summarize the message.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast import types
from holdfast.compaction import speaker

CARRIED = "carried"
"""The key of the carried messages in the ledger of a compaction."""
MIN_TOKENS = 256
"""Fewer tokens than this are hardly longer than their summary."""

Size = Callable[[types.Message], int]
"""Return the tokens of a message."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A cut, and what happens to each message of the context."""

    cut_seq: int
    pinned: tuple[int, ...]
    """The messages up to the cut that stay; for the commit."""
    carried: tuple[int, ...] = ()
    """The messages of `pinned` that the next cut may summarize; for the ledger, under CARRIED."""
    going: tuple[types.Message, ...]
    """The messages that the new summary replaces, besides the earlier summary."""
    tokens: int
    """The tokens of `going`."""
    staying: tuple[types.Message, ...]
    """The messages of the new context, without the summary, in order."""


class _Group(msgspec.Struct, frozen=True):
    """A message, or a tool call with its results."""

    messages: tuple[types.Message, ...]
    tokens: int

    @property
    def head(self) -> types.Message:
        return self.messages[0]

    @property
    def asks(self) -> bool:
        return speaker.is_ask(self.head)

    @property
    def begins_exchange(self) -> bool:
        return speaker.begins_exchange(self.head)

    @property
    def expects_answer(self) -> bool:
        """Whether a turn can start with it: a user message or a notice."""
        return self.asks or speaker.is_notice(self.head)

    def reaches_beyond(self, seq: int) -> bool:
        return any(message.seq > seq for message in self.messages)


def find_cut(
    context: types.Context,
    size: Size,
    *,
    tail_tokens: int,
    pinned_tokens: int | None = None,
    pinned: Collection[int] = (),
    keep_exchanges: int | None = None,
    min_tokens: int = MIN_TOKENS,
    manual: bool = False,
) -> Cut | None:
    """Return the cut of this context; None if nothing before the tail is worth a summary.

    `pinned` are the messages that users pinned; those pinned by earlier cuts stay as well. All pinned messages may take
    `pinned_tokens`, by default half of the tail. With `keep_exchanges`, the tail is the last exchanges, at least one,
    whatever their size. At least `min_tokens` must go. With `manual`, the tail is at most a third of the messages after
    the last cut, and `min_tokens` does not apply if these are more than one exchange.
    """
    groups = _groups(context, size)
    before = [group for group in groups if group.head.seq <= context.cut_seq]
    after = groups[len(before) :]
    if manual:
        tail_tokens = min(tail_tokens, sum(group.tokens for group in after) // 3)
        min_tokens = 0 if _exchange_start(after, 1) else min_tokens
    start = _tail_start(after, tail_tokens) if keep_exchanges is None else _exchange_start(after, keep_exchanges)
    if start == 0:
        return None
    cut_seq = after[start].head.seq - 1
    before, tail = before + after[:start], after[start:]
    wanted = _find_pinned(before, context, pinned)
    # A user who compacts two exchanges wants the first one summarized, so only the pins of users are kept.
    keep_first = not (manual and len(wanted) == len(before))
    wanted = wanted if keep_first else _find_pinned(before, context, pinned, keep_first=False)
    fitting = _take_fitting(before, wanted, tail_tokens // 2 if pinned_tokens is None else pinned_tokens)
    carried = _find_carried(before, tail, cut_seq) - fitting
    by_users = fitting.difference(_find_pinned(before, context, (), keep_first))
    going = [group for place, group in enumerate(before) if place not in fitting | carried]
    tokens = sum(group.tokens for group in going)
    if not going or tokens < min_tokens:
        return None
    kept = [before[place] for place in sorted(fitting | carried)]
    return Cut(
        cut_seq=cut_seq,
        pinned=_seqs(kept, cut_seq),
        carried=_seqs([before[place] for place in carried | by_users], cut_seq),
        going=_messages(going),
        tokens=tokens,
        staying=_messages(kept + tail),
    )


def visible_seqs(context: types.Context) -> set[int]:
    """Return the seqs of the messages that are verbatim in this context."""
    return {message.seq for group in _groups(context, lambda _: 0) for message in group.messages}


def find_excess_pins(
    context: types.Context, size: Size, pinned_tokens: int, pinned: Collection[int]
) -> tuple[int, ...]:
    """Return the pins that would not fit if all of this context were cut."""
    groups = _groups(context, size)
    wanted = _find_pinned(groups, context, pinned)
    fitting = _take_fitting(groups, wanted, pinned_tokens)
    excess = {message.seq for place in wanted if place not in fitting for message in groups[place].messages}
    return tuple(sorted(excess.intersection(pinned)))


def _groups(context: types.Context, size: Size) -> list[_Group]:
    """Return the groups of a context without its summary. Tool results already follow their calls."""
    summary = f"{speaker.SUMMARY}{context.compaction.epoch}" if context.compaction else None
    found: list[list[types.Message]] = []
    for message in context:
        if message.uid == summary and message.seq == context.cut_seq:
            continue
        if message.role == "tool" and found:
            found[-1].append(message)
        else:
            found.append([message])
    return [_Group(tuple(group), sum(map(size, group))) for group in found]


# --- the tail --------------------------------------------------------------------------------------------


def _tail_start(groups: Sequence[_Group], tokens: int) -> int:
    """Return the start of the tail: as many groups as fit, at least the last one, and no reply without its request."""
    if not groups:
        return 0
    start = len(groups) - 1
    left = tokens - groups[start].tokens
    while start and groups[start - 1].tokens <= left:
        start -= 1
        left -= groups[start].tokens
    waiting = [place for place, group in enumerate(groups) if group.expects_answer]
    return start - 1 if waiting and waiting[-1] == start - 1 else start


def _exchange_start(groups: Sequence[_Group], exchanges: int) -> int:
    """Return the start of the last exchanges. User messages in a row begin one exchange."""
    begins = [group.begins_exchange for group in groups]
    starts = [place for place, begun in enumerate(begins) if begun and not (place and begins[place - 1])]
    wanted = max(1, exchanges)
    return starts[-wanted] if len(starts) >= wanted else 0


# --- groups before the cut that stay, as indexes ---------------------------------------------------------


def _find_pinned(
    groups: Sequence[_Group], context: types.Context, pinned: Collection[int], keep_first: bool = True
) -> list[int]:
    """Return the groups pinned by earlier cuts and by users and, at the first cut, the first exchange."""
    stored = context.compaction.ledger.get(CARRIED) if context.compaction else None
    carried = {seq for seq in stored if isinstance(seq, int)} if isinstance(stored, list) else set[int]()
    by_users = set(pinned)
    found = {
        place
        for place, group in enumerate(groups)
        if (group.head.seq <= context.cut_seq and group.head.seq not in carried)
        or any(message.seq in by_users for message in group.messages)
    }
    # At later cuts, the first exchange is pinned already, or was too large.
    if keep_first and context.compaction is None:
        found |= _find_first_exchange(groups)
    return sorted(found)


def _find_first_exchange(groups: Sequence[_Group]) -> set[int]:
    ask = next((place for place, group in enumerate(groups) if group.asks), None)
    if ask is None:
        return set()
    reply = next((place for place in range(ask, len(groups)) if groups[place].head.role == "assistant"), ask)
    return {ask, reply}


def _take_fitting(groups: Sequence[_Group], wanted: Sequence[int], tokens: int) -> set[int]:
    fitting = set[int]()
    for place in wanted:
        if groups[place].tokens <= tokens:
            tokens -= groups[place].tokens
            fitting.add(place)
    return fitting


def _find_carried(groups: Sequence[_Group], tail: Sequence[_Group], cut_seq: int) -> set[int]:
    """Return the calls with results after the cut and, if the tail has no user message, the current request."""
    carried = {place for place, group in enumerate(groups) if group.reaches_beyond(cut_seq)}
    return carried if any(group.asks for group in tail) else carried | _find_current(groups, [*groups, *tail])


def _find_current(groups: Sequence[_Group], all_groups: Sequence[_Group]) -> set[int]:
    """Return the last user message and, if notices followed, the last notice and the answer before the notices."""
    waiting = [place for place, group in enumerate(all_groups) if group.expects_answer]
    ask = next((place for place in reversed(waiting) if all_groups[place].asks), None)
    notices = [place for place in waiting if ask is None or place > ask]
    answer = notices[0] - 1 if notices and ask is not None else None
    return {place for place in (ask, answer, *notices[-1:]) if place is not None and place < len(groups)}


def _seqs(groups: Sequence[_Group], cut_seq: int) -> tuple[int, ...]:
    return tuple(sorted({message.seq for message in _messages(groups) if message.seq <= cut_seq}))


def _messages(groups: Sequence[_Group]) -> tuple[types.Message, ...]:
    return tuple(message for group in groups for message in group.messages)
