"""Full-text search, in an index beside the log: a file of its own, or tables of its own.

The index catches up with the log when somebody searches, so an append pays nothing for it. Nothing in it
is precious: damaged, missing or belonging to another store, it is thrown away and made again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, log, validation
from holdfast.store.driver import Driver, Row, Side, Tx
from holdfast.store.search import indexer, query_parser

logger = logging.getLogger("holdfast.store")

CANDIDATES = 60
MAX_QUERY = 10_000
MAX_HITS = 1_000
MAX_NEIGHBOURS = 20
# How much the words that neighbours lend a message weigh against its own.
AROUND = 0.35
# How much it counts that the same conversation has other candidates.
TALK = 0.2
# Who says it: people state facts, assistants repeat them, tools print a lot.
WEIGHTS = {"user": 1.3, "assistant": 1.0, "tool": 0.7, "system": 0.5}

_decode = msgspec.json.Decoder(types.Body).decode

# From which id in the log to which, both included.
Stretch = tuple[int, int]
# How well its words fit, how much its conversation has to say, and its id in the log.
Candidate = tuple[float, float, int]
Ranked = tuple[float, int]
EVERYTHING = [(0, 2**63 - 1)]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What a search is limited to."""

    session_id: str | None = None
    role: types.Role | None = None
    tool: str | None = None
    owner: str | None = None
    after: float | None = None
    before: float | None = None
    own: bool = False


class Finding:
    """The part of SessionDB that finds messages."""

    driver: Driver
    searcher: Searcher

    def search(
        self,
        query: str,
        *,
        session_id: str | None = None,
        limit: int = 10,
        role: types.Role | None = None,
        tool: str | None = None,
        owner: str | None = None,
        after: float | None = None,
        before: float | None = None,
        neighbours: int = 0,
        own: bool = False,
    ) -> list[types.Hit]:
        """The messages that fit a question in plain language best; a phrase in quotes must be there.

        Within one conversation (any of its session ids) or all, by role, tool, owner or time (Unix
        seconds), with as many neighbouring messages on both sides of each hit as are asked for. A message may
        answer though only its neighbours have the words of the question; with `own` it must have some itself.
        """
        wanted = _checked(query, limit, neighbours, session_id, role, tool, owner, after, before, own)
        hits = self.searcher.find(query, limit, wanted)
        if not neighbours:
            return hits
        return self.driver.read(lambda tx: [_with_neighbours(tx, hit, neighbours) for hit in hits])

    def index_search(self, progress: indexer.Progress | None = None) -> int:
        """Let the search index catch up with the log now rather than at the next search; by how many."""
        return self.searcher.catch_up(progress)

    def rebuild_search(self, progress: indexer.Progress | None = None) -> int:
        """Throw the search index away and make it again; how many messages it has."""
        return self.searcher.rebuild(progress)

    def search_facts(self) -> dict[str, Any]:
        """Whether there is an index, how far behind the log it is, and what is wrong with it."""
        return self.searcher.facts()


class Searcher(indexer.Indexer):
    """The index of one store, to be asked."""

    def find(self, text: str, limit: int, wanted: Filter) -> list[types.Hit]:
        question = query_parser.question(text, *_tags(wanted))
        if question is None:
            return []
        with _readable():
            return self._healing(lambda index: self._find(index, question, limit, wanted))

    def catch_up(self, progress: indexer.Progress | None = None) -> int:
        with _readable():
            return self._healing(lambda index: self._catch_up(index, progress))

    def rebuild(self, progress: indexer.Progress | None = None) -> int:
        self._throw_away()
        return self.catch_up(progress)

    def _find(self, index: Side, question: query_parser.Question, limit: int, wanted: Filter) -> list[types.Hit]:
        look = partial(self._look, question=question, limit=limit, wanted=wanted)
        hits = self._read_both(index, partial(look, only_current=True))
        if hits is None:
            hits = self._read_both(self._brought_on(index, wanted.session_id), look)
        return hits or []

    def _look(
        self,
        tx: Tx,
        log_tx: Tx,
        question: query_parser.Question,
        limit: int,
        wanted: Filter,
        only_current: bool = False,
    ) -> list[types.Hit] | None:
        """Search the index as it is; None if it is behind the log and must be `only_current`."""
        stretches = _stretches(log_tx, wanted.session_id)
        if only_current and not indexer.is_current(tx, log_tx, _keys(stretches)):
            return None
        asks: query_parser.Asks | None = self._speech.asks(tx, question)
        if asks is None:
            return []
        most, find, near = max(CANDIDATES, 4 * limit), _near, 0 if wanted.own else indexer.NEAR
        while True:
            found, more = find(tx, asks, stretches, most, near)
            hits = _best(log_tx, found, limit, question, wanted)
            # Filters that the index does not know may leave too few: look everywhere, further and further down.
            if len(hits) >= limit or not more:
                return hits
            most, find = most * 8, _anywhere

    def _brought_on(self, index: Side, session_id: str | None) -> Side:
        """The index, as far as it could be brought on: all of it, or what is to be searched."""
        keys = _keys(self._log.read(partial(_stretches, session_id=session_id)))
        try:
            if keys is None:
                self._catch_up(index, None)
            else:
                self._catch_up_some(index, keys)
        except self._hindrance as error:
            # What is indexed can be found; the newest messages will be, when there is room or time again.
            if not self._is_ours(index):
                raise
            logger.warning("The search index could not catch up: %s", error)
        return self._opened()


@contextmanager
def _readable() -> Iterator[None]:
    """What cannot be decoded stands in the log: to make the index again would not help."""
    try:
        yield
    except msgspec.DecodeError:
        raise errors.StoreCorrupt("A message is damaged and cannot be searched. Run `holdfast doctor`.") from None


def _best(
    tx: Tx, found: list[Candidate], limit: int, question: query_parser.Question, wanted: Filter
) -> list[types.Hit]:
    best = _ranked(tx, found, limit, wanted)[:limit]
    rows = {row[0]: row[1:] for row in tx.all("search_messages", places=str([place for _, place in best]))}
    return [_hit(score, place, rows[place], question) for score, place in best]


def _tags(wanted: Filter) -> tuple[list[str], list[str]]:
    """What a message itself must be tagged with, and what its whole conversation is tagged with."""
    own, shared = (("r", wanted.role), ("t", wanted.tool)), (("o", wanted.owner),)
    tagged = [[query_parser.tag(kind, value) for kind, value in named if value is not None] for named in (own, shared)]
    return tagged[0], tagged[1]


def _stretches(tx: Tx, session_id: str | None) -> list[Stretch]:
    """Where the messages of a conversation lie: its own log, and what it reads of its origins."""
    if session_id is None:
        return EVERYTHING
    here = conversation_row.look(tx, session_id)
    key, upto, forked_at, origin = here.key, here.last_seq, here.forked_at, here.origin
    found = [_stretch(key, forked_at, upto)]
    while origin is not None:
        upto, key = min(upto, forked_at), origin
        origin, forked_at, _, _ = tx.one("origin_of", key=key) or (None, 0, None, None)
        found.append(_stretch(key, min(forked_at, upto), upto))
    return found


def _keys(stretches: list[Stretch]) -> list[int] | None:
    """The conversations they are of; None means all."""
    return None if stretches is EVERYTHING else [first >> 32 for first, _ in stretches]


def _stretch(key: int, after: int, upto: int) -> Stretch:
    return (key << 32) + after + 1, (key << 32) + upto


def _near(
    tx: Tx, asks: query_parser.Asks, stretches: list[Stretch], most: int, near: int
) -> tuple[list[Candidate], bool]:
    """Candidates from where messages' own words fit best, and whether there may be others.

    To score every message with its neighbours would cost five times what its own words cost; so its own
    words say first where it is worth it.
    """
    own = [_rows(tx, "index_find", asks[0], stretch, most) for stretch in stretches]
    places = {
        place
        for (first, last), rows in zip(stretches, own, strict=True)
        for found, _ in rows
        for place in range(max(first, found - near), min(last, found + near) + 1)
    }
    if not places:
        return [], False
    closer = _rows(tx, "index_find_at", asks[1], (min(places), max(places)), None, str(sorted(places)))
    return _candidates(closer, own, stretches), any(len(each) >= most for each in own)


def _anywhere(
    tx: Tx, asks: query_parser.Asks, stretches: list[Stretch], most: int, near: int
) -> tuple[list[Candidate], bool]:
    """The best candidates of all, and whether there may be others."""
    own = [_rows(tx, "index_find", asks[0], stretch, most) for stretch in stretches]
    rows = [_rows(tx, "index_find_around", asks[1], stretch, most) for stretch in stretches]
    places = {place for each in own for place, _ in each}
    found = [row for row in itertools.chain.from_iterable(rows) if near or row[0] in places]
    return _candidates(found, own, stretches), any(len(each) >= most for each in rows)


def _rows(
    tx: Tx, query: str, ask: dict[str, Any], stretch: Stretch, most: int | None, places: str | None = None
) -> list[Row]:
    weights = {"around": AROUND if query != "index_find" else 0.0, "near": indexer.NEAR}
    return tx.all(query, first=stretch[0], last=stretch[1], limit=most, places=places, **weights, **ask)


def _candidates(rows: list[Row], own: list[list[Row]], stretches: list[Stretch]) -> list[Candidate]:
    talks = _talks(own[0]) if stretches is EVERYTHING else {}
    return [(score, talks.get(place >> 32, 0.0), place) for place, score in rows]


def _talks(rows: list[Row]) -> dict[int, float]:
    """How much each conversation has to say: its five best messages together."""
    best: dict[int, list[float]] = {}
    for place, score in rows:
        best.setdefault(place >> 32, []).append(score)
    return {key: sum(scores[:5]) for key, scores in best.items()}


def _ranked(tx: Tx, found: list[Candidate], limit: int, wanted: Filter) -> list[Ranked]:
    """Candidates that fit, best first: by their words, by what else was said there, and by who said it."""
    ranked: list[Ranked] = []
    # Weights reorder neighbours only: far enough down nobody overtakes the first ones any more.
    enough = 4 * limit + 20
    promising = sorted(found, key=lambda each: -each[0] - TALK * each[1])
    for begun in range(0, len(promising), enough):
        some = promising[begun : begun + enough]
        rows = {row[0]: row[1:] for row in tx.all("search_candidates", places=str([each[2] for each in some]))}
        for score, talk, place in some:
            if place in rows and _fits(rows[place][1], rows[place][2], wanted):
                ranked.append(((score + TALK * talk) * WEIGHTS[rows[place][0]], place))
        if len(ranked) >= enough:
            break
    return sorted(ranked[:enough], key=lambda each: (-each[0], each[1]))


def _fits(at: float, owner: str, wanted: Filter) -> bool:
    return (
        (wanted.owner is None or owner == wanted.owner)
        and (wanted.after is None or at >= wanted.after)
        and (wanted.before is None or at < wanted.before)
    )


def _hit(score: float, place: int, row: Row, question: query_parser.Question) -> types.Hit:
    session_id, role, at, body, conversation_id = row
    text = query_parser.text_of(_decode(body)) if body else ""
    snippet = query_parser.snippet(text, question.terms)
    return types.Hit(session_id, place & 0xFFFFFFFF, role, text, snippet, score, conversation_id, at)


def _with_neighbours(tx: Tx, hit: types.Hit, count: int) -> types.Hit:
    around = log.transcript(tx, hit.session_id, max(0, hit.seq - 1 - count), hit.seq + count)
    return msgspec.structs.replace(
        hit,
        before=tuple(message for message in around if message.seq < hit.seq),
        after=tuple(message for message in around if message.seq > hit.seq),
    )


def _checked(query: object, limit: object, neighbours: object, *rest: Any) -> Filter:
    if not isinstance(query, str) or len(query) > MAX_QUERY:
        raise errors.InvalidArgument(f"A question is text of at most {MAX_QUERY:,} characters.")
    validation.check(validation.whole_number(0, MAX_HITS), limit=limit)
    validation.check(validation.whole_number(0, MAX_NEIGHBOURS), neighbours=neighbours)
    try:
        names = ("session_id", "role", "tool", "owner", "after", "before", "own")
        return msgspec.convert(dict(zip(names, rest, strict=True)), Filter)
    except (msgspec.ValidationError, UnicodeError):
        raise errors.InvalidArgument(
            f"A search is limited by text (session_id, tool, owner), a role ({', '.join(types.ROLES)}), Unix times, "
            "and to messages' own words by a flag."
        ) from None
