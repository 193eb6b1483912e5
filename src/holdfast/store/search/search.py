"""Full-text search over all messages.

The index is a separate SQLite file or, on PostgreSQL, separate tables. It catches up with the log when a search runs,
so appends do not pay for it. An index that is damaged, missing or built from another store is discarded and rebuilt.
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
from holdfast.store.driver import Driver, Row, SearchIndex, Tx
from holdfast.store.search import indexer, query_parser

logger = logging.getLogger("holdfast.store")

CANDIDATES = 60
MAX_QUERY = 10_000
MAX_HITS = 1_000
MAX_NEIGHBOURS = 20
# Weight of the words of neighbouring messages relative to a message's own.
NEIGHBOUR_WEIGHT = 0.35
# Weight of the other candidates of the same conversation.
CONVERSATION_WEIGHT = 0.2
# Users state facts in few words; assistants repeat them at length, and tools print a lot.
ROLE_WEIGHTS = {"user": 1.15, "assistant": 1.0, "tool": 0.7, "system": 0.5}

_decode = msgspec.json.Decoder(types.Body).decode

# First and last message id, both included. An id is the conversation's key << 32 plus the seq.
Range = tuple[int, int]
# Score of the message, score of its conversation, message id.
Candidate = tuple[float, float, int]
Ranked = tuple[float, int]
EVERYTHING = [(0, 2**63 - 1)]


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Restrictions of a search."""

    session_id: str | None = None
    role: types.Role | None = None
    tool: str | None = None
    owner: str | None = None
    after: float | None = None
    before: float | None = None
    own: bool = False


class Finding:
    """The search methods of SessionDB."""

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
        """Return the messages that best match a question in plain language, best first.

        A phrase in quotes must occur in the message. The other arguments restrict the search to one conversation (any
        of its session ids), a role, a tool, an owner or a time range (Unix seconds). `neighbours` adds that many
        messages before and after each hit. A message may match by the words of its neighbours alone, unless `own` is
        set.
        """
        wanted = _check_filter(query, limit, neighbours, session_id, role, tool, owner, after, before, own)
        hits = self.searcher.find(query, limit, wanted)
        if not neighbours:
            return hits
        return self.driver.read(lambda tx: [_add_neighbours(tx, hit, neighbours) for hit in hits])


class Searcher(indexer.Indexer):
    """Searches the index of one store."""

    def find(self, text: str, limit: int, wanted: Filter) -> list[types.Hit]:
        query = query_parser.parse(text, *_tags(wanted))
        if query is None:
            return []
        with _report_damage():
            return self._with_repair(lambda index: self._find(index, query, limit, wanted))

    def catch_up(self, progress: indexer.Progress | None = None) -> int:
        with _report_damage():
            return self._with_repair(lambda index: self._catch_up(index, progress))

    def rebuild(self, progress: indexer.Progress | None = None) -> int:
        self._discard()
        return self.catch_up(progress)

    def _find(self, index: SearchIndex, query: query_parser.Query, limit: int, wanted: Filter) -> list[types.Hit]:
        look = partial(self._look, query=query, limit=limit, wanted=wanted)
        hits = self._read_both(index, partial(look, only_current=True))
        if hits is None:
            hits = self._read_both(self._bring_up_to_date(index, wanted.session_id), look)
        return hits or []

    def _look(
        self,
        tx: Tx,
        log_tx: Tx,
        query: query_parser.Query,
        limit: int,
        wanted: Filter,
        only_current: bool = False,
    ) -> list[types.Hit] | None:
        """Search the index as it is. With `only_current`, return None if it lacks messages of the log."""
        ranges = _ranges(log_tx, wanted.session_id)
        if only_current and not indexer.is_current(tx, log_tx, _keys(ranges)):
            return None
        parameters: query_parser.Parameters | None = self._dialect.search_parameters(tx, query)
        if parameters is None:
            return []
        most, find, near = max(CANDIDATES, 4 * limit), _find_near, 0 if wanted.own else indexer.NEAR
        while True:
            found, more = find(tx, parameters, ranges, most, near)
            hits = _best_hits(log_tx, found, limit, query, wanted)
            # Filters that the index does not apply may leave too few hits: search everywhere, for more candidates.
            if len(hits) >= limit or not more:
                return hits
            most, find = most * 8, _find_everywhere

    def _bring_up_to_date(self, index: SearchIndex, session_id: str | None) -> SearchIndex:
        """Index the messages to be searched, if possible, and return the index."""
        keys = _keys(self._log.read(partial(_ranges, session_id=session_id)))
        try:
            if keys is None:
                self._catch_up(index, None)
            else:
                self._catch_up_some(index, keys)
        except self._transient as error:
            # Search without the newest messages: a later search indexes them.
            if not self._belongs_to_store(index):
                raise
            logger.warning("Searching without the newest messages, the index could not be updated: %s", error)
        return self._open()


@contextmanager
def _report_damage() -> Iterator[None]:
    """Report a message that cannot be decoded. The log is damaged, so rebuilding the index would not help."""
    try:
        yield
    except msgspec.DecodeError:
        raise errors.StoreCorrupt("A message is damaged and cannot be searched. Run `holdfast doctor`.") from None


def _best_hits(
    tx: Tx, found: list[Candidate], limit: int, query: query_parser.Query, wanted: Filter
) -> list[types.Hit]:
    best = _rank(tx, found, limit, wanted)[:limit]
    rows = {row[0]: row[1:] for row in tx.all("search_messages", places=str([place for _, place in best]))}
    return [_hit(score, place, rows[place], query) for score, place in best]


def _tags(wanted: Filter) -> tuple[list[str], list[str]]:
    """Return the tags a message must have, and those that all messages of its conversation have."""
    own, shared = (("r", wanted.role), ("t", wanted.tool)), (("o", wanted.owner),)
    tagged = [[query_parser.tag(kind, value) for kind, value in named if value is not None] for named in (own, shared)]
    return tagged[0], tagged[1]


def _ranges(tx: Tx, session_id: str | None) -> list[Range]:
    """Return the id ranges of a conversation: its own log, and the parts of the logs it was branched from."""
    if session_id is None:
        return EVERYTHING
    here = conversation_row.look(tx, session_id)
    key, upto, forked_at, origin = here.key, here.last_seq, here.forked_at, here.origin
    found = [_range(key, forked_at, upto)]
    while origin is not None:
        upto, key = min(upto, forked_at), origin
        origin, forked_at, _, _ = tx.one("origin_of", key=key) or (None, 0, None, None)
        found.append(_range(key, min(forked_at, upto), upto))
    return found


def _keys(ranges: list[Range]) -> list[int] | None:
    """Return the keys of the conversations; None means all."""
    return None if ranges is EVERYTHING else [first >> 32 for first, _ in ranges]


def _range(key: int, after: int, upto: int) -> Range:
    return (key << 32) + after + 1, (key << 32) + upto


def _find_near(
    tx: Tx, parameters: query_parser.Parameters, ranges: list[Range], most: int, near: int
) -> tuple[list[Candidate], bool]:
    """Return candidates near the best matches by own words, and whether there may be more.

    Scoring every message together with its neighbours would cost five times as much.
    """
    own = [_rows(tx, "index_find", parameters[0], range_, most) for range_ in ranges]
    places = {
        place
        for (first, last), rows in zip(ranges, own, strict=True)
        for found, _ in rows
        for place in range(max(first, found - near), min(last, found + near) + 1)
    }
    if not places:
        return [], False
    closer = _rows(tx, "index_find_at", parameters[1], (min(places), max(places)), None, str(sorted(places)))
    return _candidates(closer, own, ranges), any(len(each) >= most for each in own)


def _find_everywhere(
    tx: Tx, parameters: query_parser.Parameters, ranges: list[Range], most: int, near: int
) -> tuple[list[Candidate], bool]:
    """Return the best candidates of all messages, and whether there may be more."""
    own = [_rows(tx, "index_find", parameters[0], range_, most) for range_ in ranges]
    rows = [_rows(tx, "index_find_around", parameters[1], range_, most) for range_ in ranges]
    places = {place for each in own for place, _ in each}
    found = [row for row in itertools.chain.from_iterable(rows) if near or row[0] in places]
    return _candidates(found, own, ranges), any(len(each) >= most for each in rows)


def _rows(
    tx: Tx, query: str, values: dict[str, Any], range_: Range, most: int | None, places: str | None = None
) -> list[Row]:
    weights = {"around": NEIGHBOUR_WEIGHT if query != "index_find" else 0.0, "near": indexer.NEAR}
    return tx.all(query, first=range_[0], last=range_[1], limit=most, places=places, **weights, **values)


def _candidates(rows: list[Row], own: list[list[Row]], ranges: list[Range]) -> list[Candidate]:
    conversations = _conversation_scores(own[0]) if ranges is EVERYTHING else {}
    return [(score, conversations.get(place >> 32, 0.0), place) for place, score in rows]


def _conversation_scores(rows: list[Row]) -> dict[int, float]:
    """Return the score of each conversation: the sum of its five best messages."""
    best: dict[int, list[float]] = {}
    for place, score in rows:
        best.setdefault(place >> 32, []).append(score)
    return {key: sum(scores[:5]) for key, scores in best.items()}


def _rank(tx: Tx, found: list[Candidate], limit: int, wanted: Filter) -> list[Ranked]:
    """Return the candidates that pass the filter, best first, weighted by conversation and role."""
    ranked: list[Ranked] = []
    # Role weights move a candidate a few places only, so candidates further down cannot reach the first ones.
    enough = 4 * limit + 20
    promising = sorted(found, key=lambda each: -each[0] - CONVERSATION_WEIGHT * each[1])
    for start in range(0, len(promising), enough):
        some = promising[start : start + enough]
        rows = {row[0]: row[1:] for row in tx.all("search_candidates", places=str([each[2] for each in some]))}
        for score, conversation, place in some:
            if place in rows and _matches(rows[place][1], rows[place][2], wanted):
                ranked.append(((score + CONVERSATION_WEIGHT * conversation) * ROLE_WEIGHTS[rows[place][0]], place))
        if len(ranked) >= enough:
            break
    return sorted(ranked[:enough], key=lambda each: (-each[0], each[1]))


def _matches(at: float, owner: str, wanted: Filter) -> bool:
    return (
        (wanted.owner is None or owner == wanted.owner)
        and (wanted.after is None or at >= wanted.after)
        and (wanted.before is None or at < wanted.before)
    )


def _hit(score: float, place: int, row: Row, query: query_parser.Query) -> types.Hit:
    session_id, role, at, body, conversation_id = row
    text = query_parser.text_of(_decode(body)) if body else ""
    snippet = query_parser.snippet(text, query.terms)
    return types.Hit(session_id, place & 0xFFFFFFFF, role, text, snippet, score, conversation_id, at)


def _add_neighbours(tx: Tx, hit: types.Hit, count: int) -> types.Hit:
    around = log.transcript(tx, hit.session_id, max(0, hit.seq - 1 - count), hit.seq + count)
    return msgspec.structs.replace(
        hit,
        before=tuple(message for message in around if message.seq < hit.seq),
        after=tuple(message for message in around if message.seq > hit.seq),
    )


def _check_filter(query: object, limit: object, neighbours: object, *rest: Any) -> Filter:
    if not isinstance(query, str) or len(query) > MAX_QUERY:
        raise errors.InvalidArgument(f"`query` must be text of at most {MAX_QUERY:,} characters.")
    validation.check(validation.whole_number(0, MAX_HITS), limit=limit)
    validation.check(validation.whole_number(0, MAX_NEIGHBOURS), neighbours=neighbours)
    try:
        names = ("session_id", "role", "tool", "owner", "after", "before", "own")
        return msgspec.convert(dict(zip(names, rest, strict=True)), Filter)
    except (msgspec.ValidationError, UnicodeError):
        raise errors.InvalidArgument(
            "Invalid search filter: `session_id`, `tool` and `owner` must be text, `role` one of "
            f"{', '.join(types.ROLES)}, `after` and `before` Unix times, and `own` a boolean."
        ) from None
