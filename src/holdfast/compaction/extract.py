"""Write a summary without a model: select sentences and quote them. Pure and deterministic.

The extract is the last fallback: it never exceeds its budget. Sentences of the earlier summary and of the messages
compete in one pool, so the summary is updated and never nested. Text that must be kept comes first, then the focus,
then the sentences that are worth most for their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import msgspec

from holdfast import types
from holdfast.compaction import base, must_keep, sentences, speaker, summary_format
from holdfast.model import tokens

Estimate = Callable[[str], int]

FOCUS_SHARE = 0.75
_ROLE_WEIGHTS = {"user": 1.0, "": 0.7, "assistant": 0.5, "system": 0.2, "tool": 0.1}
_CUE_WEIGHTS = {"decision": 1.0, "keep": 0.6, "limit": 0.5, "goal": 0.2, "done": 0.2, "error": 0.1}
RECENT_MESSAGES = 6
"""Only the last messages say what is in progress."""
MAX_FILES, MAX_COMMANDS, MAX_COMMAND_LENGTH = 100, 30, 160
_COMMAND_ARGUMENTS = ("command", "cmd", "script")


class _Candidate(msgspec.Struct, frozen=True):
    """A sentence with its cost in tokens, its worth and the facts in it."""

    sentence: sentences.Sentence
    cost: int
    worth: float
    facts: frozenset[str] = frozenset()


def extract(request: base.SummaryRequest, estimate: Estimate = tokens.estimate) -> str:
    """Return a summary within the budget; empty if there is nothing to quote or nothing fits."""
    messages = sentences.drop_summaries(request.messages)
    previous = sentences.redact(_find_previous(request))
    cached_estimate = lru_cache(maxsize=None)(estimate)
    pool = _collect(messages, summary_format.parse(previous))
    last = max((each.seq for each in pool), default=0) or 1
    candidates = [_build_candidate(each, each.seq / last, cached_estimate) for each in pool]
    candidates.sort(key=lambda each: -each.worth / (each.cost + 4) ** 0.5)
    selection = _Selection(request.budget, cached_estimate)
    selection.keep(request.must_keep, candidates)
    if request.focus:
        selection.fill(_match_focus(request.focus, candidates), FOCUS_SHARE)
    # First what is new, then whatever fits.
    selection.fill(candidates, new_only=True)
    selection.fill(candidates)
    return selection.render()


def _find_previous(request: base.SummaryRequest) -> str:
    """Return the earlier summary of the request, else the summaries among its messages."""
    if request.previous is not None:
        return request.previous
    summaries = [message for message in request.messages if speaker.is_summary(message)]
    return "\n".join(message.content for message in summaries if isinstance(message.content, str))


# --- candidates ------------------------------------------------------------------------------------------


def _collect(messages: Sequence[types.Message], previous: Sequence[sentences.Sentence]) -> list[sentences.Sentence]:
    """Return all sentences that may be quoted, without duplicates, each with its section."""
    recent = messages[-RECENT_MESSAGES].seq if len(messages) >= RECENT_MESSAGES else 0
    spoken = sentences.split_messages(messages)
    # Requests and work in progress of the earlier summary are outdated.
    earlier = [each for each in previous if each.section not in (summary_format.ASKS, summary_format.DOING)]
    found: dict[str, sentences.Sentence] = {}
    for each in (
        *must_keep.find_open_requests(spoken, previous),
        *_find_goal(messages, previous),
        *earlier,
        *(
            msgspec.structs.replace(each, section=_choose_section(each, recent))
            for each in sentences.select_informative(spoken)
        ),
        *_list_files(messages, spoken),
        *_list_commands(messages),
    ):
        found.setdefault(each.text, each)
    return list(found.values())


def _find_goal(messages: Sequence[types.Message], previous: Sequence[sentences.Sentence]) -> list[sentences.Sentence]:
    """Return the beginning of the first user message, unless the earlier summary has a goal."""
    if any(each.section == summary_format.GOAL for each in previous):
        return []
    first = next((message for message in messages if speaker.role_of(message) == "user"), None)
    spoken = sentences.split_messages([first])[:2] if first else []
    return [msgspec.structs.replace(each, section=summary_format.GOAL) for each in spoken]


def _choose_section(sentence: sentences.Sentence, recent: int) -> str:
    cues = sentence.cues
    if sentence.role in ("tool", "system"):
        return summary_format.ERRORS if "error" in cues else summary_format.FACTS
    if "question" in cues:
        return summary_format.FACTS
    if "decision" in cues:
        return summary_format.DECISIONS
    if sentence.role == "user":
        return summary_format.LIMITS if "limit" in cues else summary_format.FACTS
    if "doing" in cues and sentence.seq >= recent:
        return summary_format.DOING
    return summary_format.DONE if "done" in cues else summary_format.ERRORS if "error" in cues else summary_format.FACTS


def _list_files(messages: Sequence[types.Message], spoken: Sequence[sentences.Sentence]) -> list[sentences.Sentence]:
    files = must_keep.find_named_files(messages, spoken)[-MAX_FILES:]
    seq = messages[-1].seq if messages else 0
    return [sentences.build_sentence(seq, "", sentences.fold(file), summary_format.FILES) for file in reversed(files)]


def _list_commands(messages: Sequence[types.Message]) -> list[sentences.Sentence]:
    """Return the last commands that were run, the newest first."""
    commands: dict[str, int] = {}
    for message in reversed(messages):
        for call in message.tool_calls:
            arguments = must_keep.text_arguments(call)
            command = next((arguments[name] for name in _COMMAND_ARGUMENTS if arguments.get(name)), "")
            text = sentences.clip(sentences.fold(sentences.redact(command)[:2_000]), MAX_COMMAND_LENGTH)
            if text:
                commands.setdefault(text, message.seq)
        if len(commands) >= MAX_COMMANDS:
            break
    return [sentences.build_sentence(seq, "", text, summary_format.COMMANDS) for text, seq in commands.items()]


def _build_candidate(sentence: sentences.Sentence, recency: float, estimate: Estimate) -> _Candidate:
    facts = must_keep.find_facts(sentence.text)
    cost = estimate(summary_format.render_line(sentence)) + 1
    if sentence.section in summary_format.LISTS:
        worth = 0.5 + 0.3 * recency
    elif sentence.section in (summary_format.ASKS, summary_format.GOAL):
        worth = 4.0 + recency
    else:
        fact_weight = min(2.0, sum(fact.weight for fact in facts))
        cue_weight = sum(weight for cue, weight in _CUE_WEIGHTS.items() if cue in sentence.cues)
        worth = 0.5 + 0.15 * recency + _ROLE_WEIGHTS[sentence.role] * (0.3 + fact_weight + cue_weight)
        worth *= (0.4 if "question" in sentence.cues else 1.0) * min(1.0, len(sentence.words) / 5)
    return _Candidate(sentence, cost, worth, frozenset(fact.text for fact in facts))


def _match_focus(focus: str, candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Return the candidates that share words with the focus, the best match first."""
    words = sentences.terms(focus)
    counts = {word: sum(word in each.sentence.words for each in candidates) for word in words}
    scores = [sum(1 / (1 + counts[word]) for word in sorted(words & each.sentence.words)) for each in candidates]
    matches = [(score, each) for score, each in zip(scores, candidates, strict=True) if score]
    return [each for _, each in sorted(matches, key=lambda match: -match[0])]


# --- selection -------------------------------------------------------------------------------------------


class _Selection:
    """The summary as it grows, and the tokens that are left."""

    def __init__(self, budget: int, estimate: Estimate) -> None:
        self._budget, self._left, self._estimate = budget, budget, estimate
        self._taken: dict[str, _Candidate] = {}
        self._bare: dict[str, int] = {}
        """Texts that must be kept and whose sentence is not taken, with their cost."""
        self._facts: set[str] = set()
        self._sections: set[str] = set()

    def keep(self, texts: Sequence[str], candidates: Sequence[_Candidate]) -> None:
        """Take what must be kept: each text alone, or within its sentence if that fits."""
        for text in filter(None, map(sentences.fold, texts)):
            cost = self._estimate(f"> {text}\n")
            if cost <= self._left - self._heading_cost(summary_format.FACTS):
                self._bare[text] = cost
                self._left -= cost
        for text in list(self._bare):
            candidate = next((each for each in candidates if text in each.sentence.text), None)
            if text in self._bare and candidate is not None:
                self._replace_bare(candidate)

    def _replace_bare(self, candidate: _Candidate) -> None:
        freed = {text: cost for text, cost in self._bare.items() if text in candidate.sentence.text}
        if self._cost(candidate) <= self._left + sum(freed.values()):
            for text, cost in freed.items():
                del self._bare[text]
                self._left += cost
            self._take(candidate)

    def fill(self, candidates: Iterable[_Candidate], share: float = 1.0, *, new_only: bool = False) -> None:
        """Take candidates in order, up to a share of the tokens that are left; `new_only`: those with new facts."""
        reserve = self._left * (1 - share)
        for each in candidates:
            is_new = not each.facts or not each.facts <= self._facts
            if (is_new or not new_only) and self._left - self._cost(each) >= reserve:
                self._take(each)

    def _take(self, each: _Candidate) -> None:
        if each.sentence.text not in self._taken:
            self._left -= self._cost(each)
            self._taken[each.sentence.text] = each
            self._facts |= each.facts
            self._sections.add(each.sentence.section)

    def _cost(self, each: _Candidate) -> int:
        return each.cost + self._heading_cost(each.sentence.section)

    def _heading_cost(self, section: str) -> int:
        return 0 if section in self._sections else self._estimate(summary_format.render_heading(section)) + 1

    def render(self) -> str:
        """Return the summary. Costs are estimates of parts: if the whole exceeds the budget, the last ones go."""
        kept = [sentences.build_sentence(0, "", text, summary_format.FACTS) for text in self._bare]
        lines = [*kept, *(each.sentence for each in self._taken.values())]
        text = summary_format.render(lines)
        while lines and self._estimate(text) > self._budget:
            lines = lines[: min(len(lines) - 1, int(len(lines) * 0.97))]
            text = summary_format.render(lines)
        return text
