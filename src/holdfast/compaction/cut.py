"""Where to cut: which messages of a context go into the summary, and which stay word for word. Pure.

A context is looked at in groups: a message, or a call with its results. Groups stay or go as a whole. What
stays is a tail, at the end of the log, and before the cut what is pinned. Two kinds of group are only
carried over this one cut, as pinned messages are: the last user message, when what came of it has outgrown
the tail, and a call whose result came after the cut. The next cut may take them: which ones they are is
written into the ledger.

Pinned are the first exchange and what people pinned. They have a share of the window, filled from the oldest
on; a pinned group that does not fit goes into the summary like any other, and the cut says which. What people
pinned is asked for at every cut, and so is only carried, too: unpinned, the next cut may take it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec

from holdfast import types
from holdfast.compaction import speaker

# Under this key the ledger of a compaction has what was only carried.
CARRIED = "carried"
# What takes fewer tokens than this is hardly longer than its summary.
LEAST = 256

Size = Callable[[types.Message], int]
"""The tokens of a message, by the meter that serves everything else too."""


class Cut(msgspec.Struct, frozen=True, kw_only=True):
    """A place to cut, and what becomes of each message of the context."""

    cut_seq: int
    pinned: tuple[int, ...]
    """What stays of the messages up to the cut; for the commit."""
    carried: tuple[int, ...] = ()
    """Those of them that the next cut may take; for the ledger, under CARRIED."""
    going: tuple[types.Message, ...]
    """What the new summary is to stand for, beside the summary so far."""
    tokens: int
    """What that takes."""
    staying: tuple[types.Message, ...]
    """What the context will have beside the summary, in its order."""
    running: tuple[types.ToolCall, ...] = ()
    """Calls that go and have no result yet: their results will come as notes."""
    unpinned: tuple[int, ...] = ()
    """Messages that were pinned and go, since pinned messages would have taken too much of the window."""


class _Group(msgspec.Struct, frozen=True):
    messages: tuple[types.Message, ...]
    tokens: int

    @property
    def head(self) -> types.Message:
        return self.messages[0]

    @property
    def asks(self) -> bool:
        return speaker.is_ask(self.head)

    @property
    def begins(self) -> bool:
        return speaker.begins(self.head)

    @property
    def is_answered(self) -> bool:
        """Whether it is there to be answered: a turn may begin with a notice, too."""
        return self.asks or speaker.is_notice(self.head)

    def reaches_beyond(self, seq: int) -> bool:
        return any(message.seq > seq for message in self.messages)

    def open_calls(self) -> list[types.ToolCall]:
        answered = {message.tool_call_id for message in self.messages[1:]}
        return [call for call in self.head.tool_calls if self.head.role == "assistant" and call.id not in answered]


def find_cut(
    context: types.Context,
    size: Size,
    *,
    tail_tokens: int,
    pinned_tokens: int | None = None,
    pinned: Collection[int] = (),
    keep_exchanges: int | None = None,
    least: int = LEAST,
    manual: bool = False,
) -> Cut | None:
    """Where to cut this context; None when nothing before the tail is worth it.

    pinned: seqs that people pinned, beside those pinned by earlier cuts, which stay. pinned_tokens: what all of
    them may take; None, half of the tail. keep_exchanges: the tail is the last so many exchanges, at least one,
    whatever they take. least: the tokens that must go. manual: a person asked, so the tail is at most a third of the
    messages after the last cut, and where these are more than one exchange, `least` does not apply.
    """
    groups = _groups(context, size)
    before, after = _split(groups, context.cut_seq)
    if manual:
        tail_tokens = min(tail_tokens, sum(group.tokens for group in after) // 3)
        least = 0 if _exchange_start(after, 1) else least
    start = _tail_start(after, tail_tokens) if keep_exchanges is None else _exchange_start(after, keep_exchanges)
    if start == 0:
        return None
    cut_seq = after[start].head.seq - 1
    before, tail = before + after[:start], after[start:]
    wanted = _wanted(before, context, pinned)
    # A person who compacts two exchanges wants the first one summarized, so nothing but pins by people is kept.
    first = not (manual and len(wanted) == len(before))
    wanted = wanted if first else _wanted(before, context, pinned, first=False)
    fitting = _fitting(before, wanted, tail_tokens // 2 if pinned_tokens is None else pinned_tokens)
    carried = _carried(before, tail, cut_seq) - fitting
    by_people = fitting.difference(_wanted(before, context, (), first))
    going = [group for place, group in enumerate(before) if place not in fitting | carried]
    tokens = sum(group.tokens for group in going)
    if not going or tokens < least:
        return None
    kept = [before[place] for place in sorted(fitting | carried)]
    return Cut(
        cut_seq=cut_seq,
        pinned=_seqs(kept, cut_seq),
        carried=_seqs([before[place] for place in carried | by_people], cut_seq),
        going=_messages(going),
        tokens=tokens,
        staying=_messages(kept + tail),
        running=tuple(call for group in going for call in group.open_calls()),
        unpinned=_seqs([before[place] for place in wanted if place not in fitting | carried], cut_seq),
    )


def in_view(context: types.Context) -> set[int]:
    """The messages this context has word for word."""
    return {message.seq for group in _groups(context, lambda _: 0) for message in group.messages}


def too_much(context: types.Context, size: Size, pinned_tokens: int, pinned: Collection[int]) -> tuple[int, ...]:
    """Which of these pins a cut behind all of this context would have no room for."""
    groups = _groups(context, size)
    wanted = _wanted(groups, context, pinned)
    fitting = _fitting(groups, wanted, pinned_tokens)
    left = {message.seq for place in wanted if place not in fitting for message in groups[place].messages}
    return tuple(sorted(left.intersection(pinned)))


def _groups(context: types.Context, size: Size) -> list[_Group]:
    """The context without its summary; results stand next to their calls already."""
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


def _split(groups: list[_Group], cut_seq: int) -> tuple[list[_Group], list[_Group]]:
    place = next((place for place, group in enumerate(groups) if group.head.seq > cut_seq), len(groups))
    return groups[:place], groups[place:]


# --- the tail --------------------------------------------------------------------------------------------


def _tail_start(groups: Sequence[_Group], tokens: int) -> int:
    """Where the tail begins: as much as fits, the newest group at least, and no ask without the reply after it."""
    if not groups:
        return 0
    start = len(groups) - 1
    left = tokens - groups[start].tokens
    while start and groups[start - 1].tokens <= left:
        start -= 1
        left -= groups[start].tokens
    waiting = [place for place, group in enumerate(groups) if group.is_answered]
    return start - 1 if waiting and waiting[-1] == start - 1 else start


def _exchange_start(groups: Sequence[_Group], exchanges: int) -> int:
    """Where the last so many exchanges begin; several asks in a row begin one together."""
    begins = [group.begins for group in groups]
    starts = [place for place, begun in enumerate(begins) if begun and not (place and begins[place - 1])]
    wanted = max(1, exchanges)
    return starts[-wanted] if len(starts) >= wanted else 0


# --- what stays before the cut: places among the groups up to it -----------------------------------------


def _wanted(groups: Sequence[_Group], context: types.Context, pinned: Collection[int], first: bool = True) -> list[int]:
    """What is pinned: by earlier cuts, by people, and once, at the first cut, the first exchange."""
    carried = _carried_before(context)
    chosen = set(pinned)
    wanted = {
        place
        for place, group in enumerate(groups)
        if (group.head.seq <= context.cut_seq and group.head.seq not in carried)
        or any(message.seq in chosen for message in group.messages)
    }
    # Later the first ask in view would be any ask: the true one is pinned by then, or was too big.
    if first and context.compaction is None:
        wanted |= _first_exchange(groups)
    return sorted(wanted)


def _carried_before(context: types.Context) -> set[int]:
    kept = context.compaction.ledger.get(CARRIED, ()) if context.compaction else ()
    return {seq for seq in kept if isinstance(seq, int)} if isinstance(kept, list | tuple) else set()


def _first_exchange(groups: Sequence[_Group]) -> set[int]:
    ask = next((place for place, group in enumerate(groups) if group.asks), None)
    if ask is None:
        return set()
    replies = (place for place in range(ask, len(groups)) if groups[place].head.role == "assistant")
    return {ask, *[place for place in (next(replies, None),) if place is not None]}


def _fitting(groups: Sequence[_Group], wanted: Sequence[int], tokens: int) -> set[int]:
    fitting = set[int]()
    for place in wanted:
        if groups[place].tokens <= tokens:
            tokens -= groups[place].tokens
            fitting.add(place)
    return fitting


def _carried(groups: Sequence[_Group], tail: Sequence[_Group], cut_seq: int) -> set[int]:
    """Calls with results beyond the cut; and what the conversation is at, unless the tail has an ask."""
    carried = {place for place, group in enumerate(groups) if group.reaches_beyond(cut_seq)}
    return carried if any(group.asks for group in tail) else carried | _at(groups, [*groups, *tail])


def _at(groups: Sequence[_Group], every: Sequence[_Group]) -> set[int]:
    """The last ask; where notices came since, its answer, lest it look open, and the last notice."""
    waiting = [place for place, group in enumerate(every) if group.is_answered]
    ask = next((place for place in reversed(waiting) if every[place].asks), None)
    since = [place for place in waiting if ask is None or place > ask]
    answer = since[0] - 1 if since and ask is not None else None
    return {place for place in (ask, answer, *since[-1:]) if place is not None and place < len(groups)}


def _seqs(groups: Sequence[_Group], cut_seq: int) -> tuple[int, ...]:
    return tuple(sorted({message.seq for message in _messages(groups) if message.seq <= cut_seq}))


def _messages(groups: Sequence[_Group]) -> tuple[types.Message, ...]:
    return tuple(message for group in groups for message in group.messages)
