"""Full-text search over all messages.

The index is a separate SQLite file or, on PostgreSQL, separate tables. It catches up with the log when a search runs,
so appends do not pay for it. An index that is damaged, missing or built from another store is discarded and rebuilt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from holdfast import errors, types
from holdfast.store import conversation_row, log, validation
from holdfast.store.driver import Driver, Progress, Row, SearchIndex, Tx
from holdfast.store.search import indexer, query_parser

logger = logging.getLogger("holdfast.store")

MIN_CANDIDATES = 60
MAX_QUERY_CHARACTERS = 10_000
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
IdRange = tuple[int, int]
EVERYTHING = [(0, 2**63 - 1)]
# Score of the message, score of its conversation, message id.
Candidate = tuple[float, float, int]


class SearchFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Restrictions of a search."""

    session_id: str | None
    role: types.Role | None
    tool: str | None
    owner: str | None
    after: float | None
    before: float | None
    own: bool

    def tags(self) -> tuple[list[str], list[str]]:
        """Return the tags a message must have, and the tags that all messages of its conversation have."""
        own = [
            query_parser.tag(kind, value) for kind, value in (("r", self.role), ("t", self.tool)) if value is not None
        ]
        return own, [] if self.owner is None else [query_parser.tag("o", self.owner)]

    def matches(self, at: float, owner: str) -> bool:
        """Return whether a message passes the restrictions that the index does not apply exactly."""
        return (
            (self.owner is None or owner == self.owner)
            and (self.after is None or at >= self.after)
            and (self.before is None or at < self.before)
        )


class SearchMixin:
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
        named = {"session_id": session_id, "role": role, "tool": tool, "owner": owner, "after": after, "before": before}
        wanted = _check_filter(query, limit, neighbours, {**named, "own": own})
        hits = self.searcher.find(query, limit, wanted)
        if not neighbours:
            return hits
        return self.driver.read(lambda tx: [_add_neighbours(tx, hit, neighbours) for hit in hits])


class Searcher(indexer.Indexer):
    """Searches the index of one store."""

    def find(self, text: str, limit: int, wanted: SearchFilter) -> list[types.Hit]:
        query = query_parser.parse(text, *wanted.tags())
        if query is None:
            return []
        search = partial(self._search, query=query, limit=limit, wanted=wanted)
        with _report_damage():
            return self._with_repair(lambda index: self._read_both(self._bring_up_to_date(index), search))

    def catch_up(self, progress: Progress | None = None) -> int:
        with _report_damage():
            return self._with_repair(lambda index: self._catch_up(index, progress))

    def rebuild(self, progress: Progress | None = None) -> int:
        self.discard()
        return self.catch_up(progress)

    def _search(
        self, tx: Tx, log_tx: Tx, query: query_parser.ParsedQuery, limit: int, wanted: SearchFilter
    ) -> list[types.Hit]:
        """Search the index as it is."""
        ranges = _ranges(log_tx, wanted.session_id)
        parameters: query_parser.Parameters | None = self._dialect.search_parameters(tx, query)
        if parameters is None:
            return []
        count, near = max(MIN_CANDIDATES, 4 * limit), 0 if wanted.own else indexer.NEIGHBOURS
        everywhere = False
        while True:
            candidates, has_more = _find(tx, parameters, ranges, count, near, everywhere)
            best = _rank(log_tx, candidates, limit, wanted)[:limit]
            # The filter may leave too few hits: search everywhere, for more candidates.
            if len(best) == limit or not has_more:
                return _hits(log_tx, best, query)
            count, everywhere = count * 8, True

    def _bring_up_to_date(self, index: SearchIndex) -> SearchIndex:
        """Index the newest messages, if possible, and return the index."""
        try:
            self._catch_up(index, None)
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


def _ranges(tx: Tx, session_id: str | None) -> list[IdRange]:
    """Return the id ranges of a conversation: its own log, and the parts of the logs it was branched from."""
    if session_id is None:
        return EVERYTHING
    here = conversation_row.read(tx, session_id)
    logs = conversation_row.lineage(tx, here)
    return [((each.key << 32) + each.after + 1, (each.key << 32) + each.upto) for each in logs]


def _find(
    tx: Tx, parameters: query_parser.Parameters, ranges: list[IdRange], count: int, near: int, everywhere: bool
) -> tuple[list[Candidate], bool]:
    """Return the candidates with the best scores, and whether there may be more.

    Unless `everywhere`, only messages near the best matches by own words are scored together with their neighbours:
    scoring every message like this would cost five times as much.
    """
    own = [_rows(tx, "index_find", parameters[0], range_, count) for range_ in ranges]
    if everywhere:
        around = [_rows(tx, "index_find_around", parameters[1], range_, count) for range_ in ranges]
        ids = {id_ for rows in own for id_, _ in rows}
        found = [row for rows in around for row in rows if near or row[0] in ids]
        return _candidates(found, own, ranges), any(len(rows) >= count for rows in around)
    ids = {
        each
        for (first, last), rows in zip(ranges, own, strict=True)
        for id_, _ in rows
        for each in range(max(first, id_ - near), min(last, id_ + near) + 1)
    }
    if not ids:
        return [], False
    found = _rows(tx, "index_find_at", parameters[1], (min(ids), max(ids)), None, str(sorted(ids)))
    return _candidates(found, own, ranges), any(len(each) >= count for each in own)


def _rows(
    tx: Tx, query: str, values: dict[str, Any], range_: IdRange, limit: int | None, ids: str | None = None
) -> list[Row]:
    weights = {"around": NEIGHBOUR_WEIGHT if query != "index_find" else 0.0, "near": indexer.NEIGHBOURS}
    return tx.all(query, first=range_[0], last=range_[1], limit=limit, places=ids, **weights, **values)


def _candidates(rows: list[Row], own: list[list[Row]], ranges: list[IdRange]) -> list[Candidate]:
    """Add the scores of conversations: the sum of the five best messages of each."""
    best: dict[int, list[float]] = {}
    for id_, score in own[0] if ranges is EVERYTHING else ():
        best.setdefault(id_ >> 32, []).append(score)
    return [(score, sum(best.get(id_ >> 32, ())[:5]), id_) for id_, score in rows]


def _rank(tx: Tx, candidates: list[Candidate], limit: int, wanted: SearchFilter) -> list[tuple[float, int]]:
    """Return score and id of the candidates that pass the filter, best first, weighted by conversation and role."""
    ranked: list[tuple[float, int]] = []
    # Role weights move a candidate by a few ranks only, so candidates further down cannot reach the first ranks.
    enough = 4 * limit + 20
    promising = sorted(candidates, key=lambda each: -each[0] - CONVERSATION_WEIGHT * each[1])
    for start in range(0, len(promising), enough):
        chunk = promising[start : start + enough]
        rows = {row[0]: row[1:] for row in tx.all("search_candidates", places=str([each[2] for each in chunk]))}
        for score, conversation, id_ in chunk:
            if id_ in rows and wanted.matches(*rows[id_][1:]):
                ranked.append(((score + CONVERSATION_WEIGHT * conversation) * ROLE_WEIGHTS[rows[id_][0]], id_))
        if len(ranked) >= enough:
            break
    return sorted(ranked[:enough], key=lambda each: (-each[0], each[1]))


def _hits(tx: Tx, best: list[tuple[float, int]], query: query_parser.ParsedQuery) -> list[types.Hit]:
    rows = {row[0]: row[1:] for row in tx.all("search_messages", places=str([id_ for _, id_ in best]))}
    hits = []
    for score, id_ in best:
        session_id, role, at, body, conversation_id = rows[id_]
        text = query_parser.message_text(_decode(body)) if body else ""
        snippet = query_parser.snippet(text, query.terms)
        hits.append(types.Hit(session_id, id_ & 0xFFFFFFFF, role, text, snippet, score, conversation_id, at))
    return hits


def _add_neighbours(tx: Tx, hit: types.Hit, count: int) -> types.Hit:
    around = log.transcript(tx, hit.session_id, max(0, hit.seq - 1 - count), hit.seq + count)
    return msgspec.structs.replace(
        hit,
        before=tuple(message for message in around if message.seq < hit.seq),
        after=tuple(message for message in around if message.seq > hit.seq),
    )


def _check_filter(query: object, limit: object, neighbours: object, restrictions: dict[str, Any]) -> SearchFilter:
    if not isinstance(query, str) or len(query) > MAX_QUERY_CHARACTERS:
        raise errors.InvalidArgument(f"`query` must be text of at most {MAX_QUERY_CHARACTERS:,} characters.")
    validation.check(validation.whole_number(0, MAX_HITS), limit=limit)
    validation.check(validation.whole_number(0, MAX_NEIGHBOURS), neighbours=neighbours)
    try:
        return msgspec.convert(restrictions, SearchFilter)
    except (msgspec.ValidationError, UnicodeError):
        raise errors.InvalidArgument(
            "Invalid search filter: `session_id`, `tool` and `owner` must be text, `role` one of "
            f"{', '.join(types.ROLES)}, `after` and `before` Unix times, and `own` a boolean."
        ) from None
