"""What left the context with a compaction, and what of it must be in the summary word for word. Pure.

The ledger is stored with the compaction and is bounded: it is an index to the log, not a copy of it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast import types
from holdfast.compaction import exact_facts, open_requests, sentences, summary_format
from holdfast.model import tokens

RANGES, TOOLS, FILES, ASKS, NOTES = 64, 64, 128, 32, 16
LONGEST = 320
# Of a call's arguments so much is searched for files: what is written into one may be large.
ARGUMENTS = 2_000

# Who said it, and what the sentence is: what people say themselves is the least to be found elsewhere.
_SPEAKERS = {"user": 2.0, "": 1.5, "assistant": 0.7, "system": 0.3, "tool": 0.15}
CROWDED = 0.97
_TELLING = {"decision": 0.8, "keep": 0.6, "limit": 0.5}


class Ledger(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a compaction took out of the context."""

    messages: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    """First and last seq of each stretch, both of them included."""
    tools: dict[str, int] = {}
    """How often each was called, most often first."""
    files: tuple[str, ...] = ()
    """Those named last, in the order they were last named."""
    asks: tuple[str, ...] = ()
    """What was open, word for word."""
    notes: tuple[str, ...] = ()
    """What went wrong before this summary was accepted, and what no longer fitted into it."""


def of(messages: Sequence[types.Message], notes: Sequence[str] = ()) -> dict[str, Any]:
    """The ledger of the messages that go, as a compaction stores it."""
    real = sentences.real(messages)
    spoken = sentences.sentences(real)
    called = Counter(call.name[:LONGEST] for message in real for call in message.tool_calls)
    ledger = Ledger(
        len(real),
        _ranges(message.seq for message in real),
        dict(called.most_common(TOOLS)),
        tuple(named_files(real, spoken)[-FILES:]),
        tuple(each.text for each in open_requests.still_open(spoken, ())[-ASKS:]),
        tuple(map(noted, notes[:NOTES])),
    )
    return msgspec.json.decode(msgspec.json.encode(ledger), type=dict[str, Any])


def noted(note: str) -> str:
    """Clip a note to what can be stored and shown: a summarizer may raise anything."""
    return sentences.clipped(sentences.folded(sentences.redacted(note)), LONGEST).encode(errors="replace").decode()


def _ranges(seqs: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Stretches without gaps; where there are too many, the nearest are joined over their gap."""
    found: list[tuple[int, int]] = []
    for seq in sorted(set(seqs)):
        if found and found[-1][1] == seq - 1:
            found[-1] = (found[-1][0], seq)
        else:
            found.append((seq, seq))
    gaps = sorted(range(1, len(found)), key=lambda index: found[index][0] - found[index - 1][1])
    joined = set(gaps[: max(0, len(found) - RANGES)])
    kept: list[tuple[int, int]] = []
    for index, (first, last) in enumerate(found):
        if index in joined:
            kept[-1] = (kept[-1][0], last)
        else:
            kept.append((first, last))
    return tuple(kept)


def named_files(messages: Sequence[types.Message], spoken: Sequence[sentences.Sentence]) -> list[str]:
    """Every file named in a sentence or a call of these messages, once, the one named last at the end."""
    last: dict[str, int] = {}
    for each in spoken:
        last.update(dict.fromkeys(exact_facts.files(each.text), each.seq))
    for message in messages:
        for call in message.tool_calls:
            for text in arguments(call).values():
                last.update(dict.fromkeys(exact_facts.files(text[:ARGUMENTS]), message.seq))
    return sorted(last, key=last.__getitem__)


def arguments(call: types.ToolCall) -> dict[str, str]:
    """What a call was given, as far as it is text."""
    given: Any = call.arguments
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given)
        except (msgspec.DecodeError, RecursionError):
            given = {"": given}
    return {str(name): value for name, value in given.items() if isinstance(value, str)} if _is_object(given) else {}


def _is_object(given: object) -> bool:
    return isinstance(given, dict)


# --- what must be kept -------------------------------------------------------------------------------


def must_keep(
    messages: Sequence[types.Message],
    previous: str | None,
    budget: int,
    estimate: Callable[[str], int] = tokens.estimate,
) -> tuple[str, ...]:
    """Open asks, then facts by how much they matter, word for word, as many as fit into `budget` tokens."""
    before = summary_format.parsed(previous)
    real = sentences.real(messages)
    spoken = sentences.sentences(real)
    asked = [each.text for each in reversed(open_requests.still_open(spoken, before))]
    ranked = _ranked([*before, *sentences.telling(spoken)])
    kept = _fitting(asked, budget // 2, estimate)
    room = budget - sum(estimate(text) + 1 for text in kept)
    return (*kept, *_fitting(_distinct(ranked, kept), room, estimate))


def _fitting(texts: Iterable[str], room: int, estimate: Callable[[str], int]) -> list[str]:
    """The first that fit; one that does not makes place for smaller ones, a few times."""
    kept, refused = [], 0
    for text in texts:
        size = estimate(text) + 1
        if size <= room:
            kept.append(text)
            room -= size
        else:
            refused += 1
            if refused > 20:
                break
    return kept


def _distinct(texts: Sequence[str], kept: Sequence[str]) -> Iterator[str]:
    """Without what stands in another one that is kept anyway."""
    whole = "\n".join(kept)
    for text in texts:
        if text not in whole:
            whole += "\n" + text
            yield text


def _ranked(sentences: Sequence[sentences.Sentence]) -> list[str]:
    """Facts, best first. Of each kind the best come early: a table of numbers must not crowd out every name."""
    best: dict[exact_facts.Fact, float] = {}
    count: Counter[exact_facts.Fact] = Counter()
    for index, each in enumerate(sentences):
        told = _told(each) + 0.3 * index / len(sentences)
        for fact in exact_facts.found(each.text):
            count[fact] += 1
            best[fact] = max(best.get(fact, 0.0), fact.weight * told)
    worth = {fact: value + 0.3 * math.log(count[fact]) for fact, value in best.items()}
    before: Counter[str] = Counter()
    for fact in sorted(worth, key=lambda fact: (-worth[fact], fact.text)):
        worth[fact] *= CROWDED ** before[fact.kind]
        before[fact.kind] += 1
    return [fact.text for fact in sorted(worth, key=lambda fact: (-worth[fact], fact.text))]


def _told(given: sentences.Sentence) -> float:
    """How much it counts who said it, and as what."""
    told = _SPEAKERS[given.role] * (0.5 if _says_little(given) else 1.0)
    return told + sum(weight for cue, weight in _TELLING.items() if cue in given.cues and given.role != "tool")


def _says_little(given: sentences.Sentence) -> bool:
    """A question, an entry of a list, or a fact that an earlier summary kept without its sentence."""
    return "question" in given.cues or given.section in summary_format.LISTS or (not given.seq and len(given.words) < 4)
