"""The summary that needs no model: what was said, chosen and quoted. Pure and deterministic.

It is the last rung: whatever it is given, it gives back no more than its budget. Sentences of the earlier summary and
of the messages compete in one pool, so it is updated and never nested, and what matters least falls out. First comes
what must be kept, then the focus, then what is worth most for its size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec

from holdfast import redaction, types
from holdfast.compaction import (
    base,
    exact_facts,
    ledger,
    open_requests,
    ranking,
    sentences,
    speaker,
    summary_format,
    time_slices,
)

Estimate = Callable[[str], int]

FOCUS = 0.75
# How much of the room a section may take before the others had theirs; facts may take what is left.
_SHARES = {
    summary_format.GOAL: 0.08,
    summary_format.LIMITS: 0.2,
    summary_format.DECISIONS: 0.25,
    summary_format.DONE: 0.15,
    summary_format.DOING: 0.08,
    summary_format.ASKS: 0.25,
    summary_format.FILES: 0.1,
    summary_format.COMMANDS: 0.06,
    summary_format.ERRORS: 0.1,
}
_SPEAKERS = {"user": 1.0, "": 0.7, "assistant": 0.5, "system": 0.2, "tool": 0.1}
_TELLING = {"decision": 1.0, "keep": 0.6, "limit": 0.5, "goal": 0.2, "done": 0.2, "error": 0.1}
# What is under way is told by the last messages only.
LATEST = 6
COMMANDS, COMMAND = 30, 160
_SHELL = ("command", "cmd", "script")


class _Candidate(msgspec.Struct, frozen=True):
    """A sentence that may be chosen: what it costs, what it is worth, which facts it would save."""

    sentence: sentences.Sentence
    cost: int
    worth: float
    facts: frozenset[str] = frozenset()


def extract(request: base.SummaryRequest, estimate: Estimate) -> str:
    """A summary within the budget; empty where nothing was said or nothing fits."""
    messages = sentences.real(request.messages)
    previous = redaction.redact(_previous(request))
    measure = lru_cache(maxsize=None)(estimate)
    pool = _pool(messages, summary_format.parsed(previous))
    candidates = _weighed(pool, measure)
    chosen = _Choice(request.budget, measure)
    chosen.keep(request.must_keep, candidates)
    if request.focus:
        chosen.fill(_about(request.focus, candidates), FOCUS)
    chosen.fill_fairly(candidates)
    return chosen.text()


def _previous(request: base.SummaryRequest) -> str:
    """The summary so far; where nobody names it, the one that stands among the messages."""
    if request.previous is not None:
        return request.previous
    stands = [message for message in request.messages if speaker.is_summary(message)]
    return "\n".join(message.content for message in stands if isinstance(message.content, str))


# --- what may be chosen ------------------------------------------------------------------------------


def _pool(messages: Sequence[types.Message], previous: Sequence[sentences.Sentence]) -> list[sentences.Sentence]:
    """Everything that may be quoted, each line once, under the heading it would stand under."""
    latest = messages[-LATEST].seq if len(messages) >= LATEST else 0
    spoken = sentences.sentences(messages)
    wants = open_requests.still_open(spoken, previous)
    goal = _goal(messages, previous)
    said = [_placed(each, latest) for each in sentences.telling(spoken)]
    # An ask that was answered is no ask any more, and what was under way has moved on.
    old = [each for each in previous if each.section not in (summary_format.ASKS, summary_format.DOING)]
    found: dict[str, sentences.Sentence] = {}
    for each in [*wants, *goal, *old, *said, *_files(messages, spoken), *_commands(messages)]:
        found.setdefault(each.text, each)
    return list(found.values())


def _listed(given: Iterable[sentences.Sentence], section: str) -> list[sentences.Sentence]:
    return [msgspec.structs.replace(each, section=section) for each in given]


def _goal(messages: Sequence[types.Message], previous: Sequence[sentences.Sentence]) -> list[sentences.Sentence]:
    """What a conversation began with, unless the summary says so already."""
    if any(each.section == summary_format.GOAL for each in previous):
        return []
    first = next((message for message in messages if speaker.of(message) == "user"), None)
    return _listed(sentences.sentences([first])[:2] if first else (), summary_format.GOAL)


def _placed(given: sentences.Sentence, latest: int) -> sentences.Sentence:
    time_slices.breathe()
    return msgspec.structs.replace(given, section=_section(given, latest))


def _section(given: sentences.Sentence, latest: int) -> str:
    cues = given.cues
    if given.role in ("tool", "system"):
        return summary_format.ERRORS if "error" in cues else summary_format.FACTS
    if "question" in cues:
        return summary_format.FACTS
    if "decision" in cues:
        return summary_format.DECISIONS
    if given.role == "user":
        return summary_format.LIMITS if "limit" in cues else summary_format.FACTS
    if "doing" in cues and given.seq >= latest:
        return summary_format.DOING
    return summary_format.DONE if "done" in cues else summary_format.ERRORS if "error" in cues else summary_format.FACTS


def _files(messages: Sequence[types.Message], spoken: Sequence[sentences.Sentence]) -> list[sentences.Sentence]:
    named = ledger.named_files(messages, spoken)[-100:]
    seq = messages[-1].seq if messages else 0
    return [sentences.sentence(seq, "", sentences.folded(file), summary_format.FILES) for file in reversed(named)]


def _commands(messages: Sequence[types.Message]) -> list[sentences.Sentence]:
    """The last commands that were run, the last one first."""
    ran: dict[str, int] = {}
    for message in reversed(messages):
        for call in message.tool_calls:
            given = ledger.arguments(call)
            command = next((given[name] for name in _SHELL if given.get(name)), "")
            text = sentences.clipped(sentences.folded(sentences.redacted(command)[:2_000]), COMMAND)
            if text:
                ran.setdefault(text, message.seq)
        if len(ran) >= COMMANDS:
            break
    return [sentences.sentence(seq, "", text, summary_format.COMMANDS) for text, seq in ran.items()]


def _weighed(pool: Sequence[sentences.Sentence], estimate: Estimate) -> list[_Candidate]:
    """The pool with costs and worths, best first."""
    ranks = ranking.ranked([each.words for each in pool])
    last = max((each.seq for each in pool), default=0) or 1
    found = [_candidate(each, rank, each.seq / last, estimate) for each, rank in zip(pool, ranks, strict=True)]
    order = sorted(range(len(found)), key=lambda index: (-found[index].worth / (found[index].cost + 4) ** 0.5, index))
    return [found[index] for index in order]


def _candidate(given: sentences.Sentence, rank: float, recent: float, estimate: Estimate) -> _Candidate:
    named = exact_facts.found(given.text)
    weight = min(2.0, sum(fact.weight for fact in named))
    cost = estimate(summary_format.line(given)) + 1
    if given.section in summary_format.LISTS:
        worth = 0.5 + 0.3 * recent
    elif given.section in (summary_format.ASKS, summary_format.GOAL):
        worth = 4.0 + recent
    else:
        telling = sum(_TELLING.get(cue, 0.0) for cue in given.cues)
        worth = 0.5 * rank + 0.15 * recent + _SPEAKERS[given.role] * (0.3 + weight + telling)
        worth *= (0.4 if "question" in given.cues else 1.0) * min(1.0, len(given.words) / 5)
    return _Candidate(given, cost, worth, frozenset(fact.text for fact in named))


def _about(focus: str, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Those that speak of the focus, the most telling first."""
    meant = sentences.terms(focus)
    common = {word: sum(word in each.sentence.words for each in candidates) for word in meant}
    scores = [sum(1 / (1 + common[word]) for word in meant & each.sentence.words) for each in candidates]
    told = sorted((index for index, score in enumerate(scores) if score), key=lambda index: (-scores[index], index))
    return [candidates[index] for index in told]


# --- choosing ----------------------------------------------------------------------------------------


class _Choice:
    """The summary as it grows, and the room that is left."""

    def __init__(self, budget: int, estimate: Estimate) -> None:
        self.budget = budget
        self.estimate = estimate
        self.taken: dict[str, _Candidate] = {}
        self.bare: dict[str, int] = {}
        self.saved: set[str] = set()
        self.spent: dict[str, int] = {}

    @property
    def room(self) -> int:
        return self.budget - sum(self.spent.values()) - sum(self.bare.values())

    def keep(self, wanted: Sequence[str], candidates: Sequence[_Candidate]) -> None:
        """What must be in it: each at least by itself, and in its sentence while there is room for that."""
        for text in filter(None, map(sentences.folded, wanted)):
            cost = self.estimate(f"> {text}\n")
            if cost <= self.room - self._heading(summary_format.FACTS):
                self.bare[text] = cost
        for text in list(self.bare):
            time_slices.breathe()
            holder = (
                next((each for each in candidates if text in each.sentence.text), None) if text in self.bare else None
            )
            if holder is not None:
                self._put_in_sentence(holder)

    def _put_in_sentence(self, holder: _Candidate) -> None:
        freed = {text: cost for text, cost in self.bare.items() if text in holder.sentence.text}
        if self._price(holder) - sum(freed.values()) <= self.room:
            for text in freed:
                del self.bare[text]
            self.take(holder)

    def fill(self, candidates: Iterable[_Candidate], share: float) -> None:
        """The first of them that fit into a share of the room."""
        least = self.room * (1 - share)
        for each in candidates:
            if self.room - self._price(each) >= least:
                self.take(each)

    def fill_fairly(self, candidates: Sequence[_Candidate]) -> None:
        """First what says something new, each section within its share; then whatever fits."""
        for each in candidates:
            section = each.sentence.section
            limit = _SHARES.get(section, 1.0) * self.budget
            new = not each.facts or not each.facts <= self.saved
            if new and self.spent.get(section, 0) + each.cost <= limit and self._price(each) <= self.room:
                self.take(each)
        for each in candidates:
            if self._price(each) <= self.room:
                self.take(each)

    def take(self, each: _Candidate) -> None:
        if each.sentence.text not in self.taken:
            price = self._price(each)
            self.taken[each.sentence.text] = each
            self.saved |= each.facts
            self.spent[each.sentence.section] = self.spent.get(each.sentence.section, 0) + price

    def _price(self, each: _Candidate) -> int:
        time_slices.breathe()
        return each.cost + self._heading(each.sentence.section)

    def _heading(self, section: str) -> int:
        return 0 if section in self.spent else self.estimate(summary_format.heading(section)) + 1

    def text(self) -> str:
        """The summary. Costs are estimates of parts: where the whole has more, the last that were taken go."""
        chosen = [each.sentence for each in self.taken.values()]
        kept = [sentences.sentence(0, "", text, summary_format.FACTS) for text in self.bare]
        lines = [*kept, *chosen]
        text = summary_format.written(lines)
        while lines and self.estimate(text) > self.budget:
            time_slices.breathe()
            lines = lines[: min(len(lines) - 1, int(len(lines) * 0.97))]
            text = summary_format.written(lines)
        return text
