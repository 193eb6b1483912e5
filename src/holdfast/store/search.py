"""Full-text search, in an index file of its own.

The index catches up with the log when somebody searches, so an append pays nothing for it. Nothing in it
is precious: damaged, missing or belonging to another store, it is thrown away and made again.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast import errors, types
from holdfast.store import log, port, state, words

logger = logging.getLogger("holdfast.store")

NAME = "search"
CHUNK = 1_000
CANDIDATES = 60
MAX_QUERY = 10_000
MAX_HITS = 1_000
MAX_NEIGHBOURS = 20
# How many turns on each side lend a message their words, and how much those weigh against its own.
NEAR = 2
AROUND = 0.35
# How much it counts that the same conversation has other candidates.
TALK = 0.2
# Who says it: people state facts, assistants repeat them, tools print a lot.
WEIGHTS = {"user": 1.15, "assistant": 1.0, "tool": 0.7, "system": 0.5}

# Marks a message that is indexed without its text.
REDACTED = words.tag("x", "redacted")

# What a healthy index never raises; what it may raise besides (busy, full) is no reason to remake it.
DAMAGE = (
    errors.StoreCorrupt,
    errors.StoreBroken,
    errors.StoreRefused,
    errors.StoreUnusable,
    errors.StoreMoved,
    errors.SchemaTooNew,
)

T = TypeVar("T")
_decode = msgspec.json.Decoder(types.Body).decode
Progress = Callable[[int, int], None]


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

    driver: port.Driver
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

    def index_search(self, progress: Progress | None = None) -> int:
        """Let the search index catch up with the log now rather than at the next search; by how many."""
        return self.searcher.catch_up(progress)

    def rebuild_search(self, progress: Progress | None = None) -> int:
        """Throw the search index away and make it again; how many messages it has."""
        return self.searcher.rebuild(progress)

    def search_facts(self) -> dict[str, Any]:
        """Whether there is an index, how far behind the log it is, and what is wrong with it."""
        return self.searcher.facts()


class Searcher:
    """The index of one store, in a file beside it."""

    def __init__(self, store: port.Driver) -> None:
        self._log = store
        self._guard = threading.Lock()
        self._index: port.Driver | None = None

    def close(self) -> None:
        with self._guard:
            if self._index is not None:
                self._index.close()
                self._index = None

    def find(self, text: str, limit: int, wanted: Filter) -> list[types.Hit]:
        question = words.question(text, *_tags(wanted), alone=wanted.own)
        if question is None:
            return []
        with _readable():
            return self._healing(lambda index: self._find(index, question, limit, wanted))

    def catch_up(self, progress: Progress | None = None) -> int:
        with _readable():
            return self._healing(lambda index: self._catch_up(index, progress))

    def rebuild(self, progress: Progress | None = None) -> int:
        self._throw_away()
        return self.catch_up(progress)

    def forget(self, conversation: int, seq: int | None = None) -> None:
        """A message, or a whole conversation, is not found by its words any more; `purge` takes their bytes too."""
        if self._index is None and not self._log.has_side(NAME):
            return
        step = partial(_forget, key=conversation) if seq is None else partial(self._forget_one, conversation, seq)
        try:
            self._opened().write("forget", step)
        except errors.StoreError as error:
            logger.warning("The search index is thrown away: %s", error)
            self._throw_away()

    def purge(self) -> None:
        """No byte of what was deleted or redacted is in the files of the index when this returns."""
        if self._index is None and not self._log.has_side(NAME):
            return
        try:
            index = self._opened()
            if not self._forget_owed(index):
                self._throw_away()
                return
            index.write("forget", lambda tx: tx.run("index_merge"))
            index.scrub()
        except errors.StoreError as error:
            logger.warning("The search index is thrown away: %s", error)
            self._throw_away()

    def _forget_owed(self, index: port.Driver) -> bool:
        """Forget what nobody told the index of, as when a process died; False if it is of another store."""
        known = index.read(lambda tx: tx.one("index_meta", key="generation"))
        if known != (_state(self._log).partition(" ")[0],):
            return False
        upto: dict[int, int] = dict(index.read(lambda tx: tx.all("index_progress")))
        there = {row[0] for row in self._log.read(lambda tx: tx.all("search_conversations"))}
        for gone in upto.keys() - there:
            index.write("forget", partial(_forget, key=gone))
        told = set(index.read(lambda tx: tx.all("index_redacted", match=f"tags : {REDACTED}")))
        redacted = self._log.read(lambda tx: tx.all("search_redacted"))
        for key, seq in redacted:
            if seq <= upto.get(key, 0) and (key, seq) not in told:
                index.write("forget", partial(self._forget_one, key, seq))
        return True

    def facts(self) -> dict[str, Any]:
        if self._index is None and not self._log.has_side(NAME):
            return {"exists": False, "behind": None, "complaints": []}
        try:
            index = self._opened()
            upto: dict[int, int] = dict(index.read(lambda tx: tx.all("index_progress")))
            there = self._log.read(lambda tx: tx.all("search_conversations"))
            behind = sum(max(0, row[1] - upto.get(row[0], row[2])) for row in there)
            return {"exists": True, "behind": behind, "complaints": index.complaints()}
        except errors.StoreError as error:
            return {"exists": True, "behind": None, "complaints": [str(error)]}

    # --- the index file ------------------------------------------------------------------------------

    def _healing(self, work: Callable[[port.Driver], T]) -> T:
        """Work on the index; one that is damaged is thrown away and made again, once."""
        try:
            return work(self._opened())
        except DAMAGE as error:
            logger.warning("The search index is made again: %s", error)
            self._throw_away()
            return work(self._opened())

    def _opened(self) -> port.Driver:
        with self._guard:
            if self._index is None:
                self._index = self._log.side(NAME)
            return self._index

    def _throw_away(self) -> None:
        self.close()
        self._log.discard_side(NAME)

    # --- catching up ---------------------------------------------------------------------------------

    def _catch_up(self, index: port.Driver, progress: Progress | None) -> int:
        now = _state(self._log)
        if index.read(lambda tx: tx.one("index_meta", key="state")) == (now,):
            return 0
        generation = now.partition(" ")[0]
        known = index.read(lambda tx: tx.one("index_meta", key="generation"))
        if known not in (None, (generation,)):
            # Another store was restored here: keys may name other conversations now.
            self._throw_away()
            index = self._opened()
        done = self._index_all(index, progress)
        index.write("state", lambda tx: _note(tx, generation, now))
        return done

    def _index_all(self, index: port.Driver, progress: Progress | None) -> int:
        there = {row[0]: row[1:] for row in self._log.read(lambda tx: tx.all("search_conversations"))}
        upto: dict[int, int] = dict(index.read(lambda tx: tx.all("index_progress")))
        for gone in upto.keys() - there.keys():
            index.write("forget", partial(_forget, key=gone))
        behind = {key: row for key, row in there.items() if row[0] > upto.get(key, row[1])}
        total = sum(row[0] - upto.get(key, row[1]) for key, row in behind.items())
        done = 0
        for key, (last_seq, forked_at, owner) in behind.items():
            for count in self._index_one(index, key, last_seq, forked_at, words.tag("o", owner)):
                done += count
                if progress:
                    progress(done, total)
        return done

    def _index_one(self, index: port.Driver, key: int, last_seq: int, forked_at: int, owner: str) -> Iterator[int]:
        while True:
            added = index.write("index", lambda tx: self._index_chunk(tx, key, last_seq, forked_at, owner))
            if not added:
                return
            yield added

    def _index_chunk(self, tx: port.Tx, key: int, last_seq: int, forked_at: int, owner: str) -> int:
        """From the last ones indexed on: those again, since their next neighbours are known only now."""
        row = tx.one("index_progress_of", conversation=key)
        begun = max(row[0] if row else forked_at, forked_at)
        if begun >= last_seq:
            return 0
        after = max(forked_at, begun - 2 * NEAR)
        stretch = self._log.read(
            lambda store: store.all("messages_between", conversation=key, after=after, upto=begun + CHUNK)
        )
        for document in _documents(stretch, owner):
            if document["seq"] > begun - NEAR:
                tx.run("index_put", conversation=key, **document)
        upto = stretch[-1][0] if stretch else last_seq
        tx.run("index_progress_set", conversation=key, upto=upto)
        return max(upto - begun, 1)

    def _forget_one(self, key: int, seq: int, tx: port.Tx) -> None:
        """Its neighbours are indexed with its words: they are indexed anew from what the log has now."""
        row = tx.one("index_progress_of", conversation=key)
        owners = {each[0]: each[3] for each in self._log.read(lambda store: store.all("search_conversations"))}
        if row is None or key not in owners:
            return
        stretch = self._log.read(
            lambda store: store.all(
                "messages_between", conversation=key, after=max(0, seq - 2 * NEAR - 1), upto=seq + 2 * NEAR
            )
        )
        for document in _documents(stretch, words.tag("o", owners[key])):
            if abs(document["seq"] - seq) <= NEAR and document["seq"] <= row[0]:
                tx.run("index_put", conversation=key, **document)

    # --- finding -------------------------------------------------------------------------------------

    def _find(self, index: port.Driver, question: words.Question, limit: int, wanted: Filter) -> list[types.Hit]:
        try:
            self._catch_up(index, None)
            index = self._opened()
        except (errors.StoreBusy, errors.StoreFull) as error:
            # What is indexed can be found; the newest messages will be, when there is room or time again.
            logger.warning("The search index could not catch up: %s", error)
        stretches = self._log.read(partial(_stretches, session_id=wanted.session_id))
        most, look = max(CANDIDATES, 4 * limit), _near
        while True:
            found, more = index.read(partial(look, question=question, stretches=stretches, most=most))
            hits = self._log.read(partial(_best, found=found, limit=limit, question=question, wanted=wanted))
            # Filters that the index does not know may leave too few: look everywhere, further and further down.
            if len(hits) >= limit or not more:
                return hits
            most, look = most * 8, _anywhere


@contextmanager
def _readable() -> Iterator[None]:
    """What cannot be decoded stands in the log: to make the index again would not help."""
    try:
        yield
    except msgspec.DecodeError:
        raise errors.StoreCorrupt("A message is damaged and cannot be searched. Run `holdfast doctor`.") from None


def _best(tx: port.Tx, found: list[Candidate], limit: int, question: words.Question, wanted: Filter) -> list[types.Hit]:
    return [_hit(tx, each, question) for each in _ranked(tx, found, limit, wanted)[:limit]]


def _state(store: port.Driver) -> str:
    """Changes whenever the index has something to do; its first word, when all of it has to be made again."""
    row = store.read(lambda tx: tx.one("search_state"))
    return f"{words.CUT}." + " ".join(map(str, row or ()))


def _note(tx: port.Tx, generation: str, now: str) -> None:
    tx.run("index_meta_set", key="generation", value=generation)
    tx.run("index_meta_set", key="state", value=now)


def _forget(tx: port.Tx, *, key: int) -> None:
    tx.run("index_forget_between", conversation=key, after=0, upto=2**32 - 1)
    tx.run("index_forget_progress", conversation=key)


def _tags(wanted: Filter) -> tuple[list[str], list[str]]:
    """What a message itself must be tagged with, and what its whole conversation is tagged with."""
    own, shared = (("r", wanted.role), ("t", wanted.tool)), (("o", wanted.owner),)
    tagged = [[words.tag(kind, value) for kind, value in named if value is not None] for named in (own, shared)]
    return tagged[0], tagged[1]


def _documents(rows: list[port.Row], owner: str) -> Iterator[dict[str, Any]]:
    """What the index is told of each message: its words, its neighbours' words, and its tags."""
    decoded = [_decode(row[5]) if row[5] else types.Body() for row in rows]
    texts = [words.indexed(words.text_of(body)) for body in decoded]
    called: dict[str, str] = {}
    for at, (row, body) in enumerate(zip(rows, decoded, strict=True)):
        called.update({call.id: call.name for call in body.tool_calls})
        tools = {call.name for call in body.tool_calls} | {called.get(body.tool_call_id or "", "")} - {""}
        tags = [words.tag("r", row[3]), owner, *(words.tag("t", tool) for tool in sorted(tools))]
        tags += [] if row[5] else [REDACTED]
        around = " ".join(texts[max(0, at - NEAR) : at] + texts[at + 1 : at + 1 + NEAR])
        yield {"seq": row[0], "text": texts[at], "around": around, "tags": " ".join(tags)}


# From which id in the log to which, both included.
Stretch = tuple[int, int]
Candidate = tuple[float, float, int, int]
Ranked = tuple[float, int, int]
EVERYTHING = [(0, 2**63 - 1)]


def _stretches(tx: port.Tx, session_id: str | None) -> list[Stretch]:
    """Where the messages of a conversation lie: its own log, and what it reads of its origins."""
    if session_id is None:
        return EVERYTHING
    here = state.look(tx, session_id)
    key, upto, forked_at, origin = here.key, here.last_seq, here.forked_at, here.origin
    found = [_stretch(key, forked_at, upto)]
    while origin is not None:
        upto, key = min(upto, forked_at), origin
        origin, forked_at, _, _ = tx.one("origin_of", key=key) or (None, 0, None, None)
        found.append(_stretch(key, min(forked_at, upto), upto))
    return found


def _stretch(key: int, after: int, upto: int) -> Stretch:
    return (key << 32) + after + 1, (key << 32) + upto


def _near(tx: port.Tx, question: words.Question, stretches: list[Stretch], most: int) -> tuple[list[Candidate], bool]:
    """Candidates from where messages' own words fit best, and whether there may be others.

    To score every message with its neighbours would cost five times what its own words cost; so its own
    words say first where it is worth it.
    """
    own = [_rows(tx, question.own, 0.0, stretch, most) for stretch in stretches]
    places = {
        place
        for (first, last), rows in zip(stretches, own, strict=True)
        for found, _ in rows
        for place in range(max(first, found - NEAR), min(last, found + NEAR) + 1)
    }
    if not places:
        return [], False
    closer = {"first": min(places), "last": max(places), "places": str(sorted(places))}
    rows = tx.all("index_find_at", match=question.match, around=AROUND, **closer)
    return _candidates(rows, own, stretches), any(len(each) >= most for each in own)


def _anywhere(
    tx: port.Tx, question: words.Question, stretches: list[Stretch], most: int
) -> tuple[list[Candidate], bool]:
    """The best candidates of all, and whether there may be others."""
    own = [_rows(tx, question.own, 0.0, stretch, most) for stretch in stretches]
    rows = [_rows(tx, question.match, AROUND, stretch, most) for stretch in stretches]
    found = list(itertools.chain.from_iterable(rows))
    return _candidates(found, own, stretches), any(len(each) >= most for each in rows)


def _rows(tx: port.Tx, match: str, around: float, stretch: Stretch, most: int) -> list[port.Row]:
    return tx.all("index_find", match=match, around=around, first=stretch[0], last=stretch[1], limit=most)


def _candidates(rows: list[port.Row], own: list[list[port.Row]], stretches: list[Stretch]) -> list[Candidate]:
    talks = _talks(own[0]) if stretches is EVERYTHING else {}
    return [(score, talks.get(place >> 32, 0.0), place >> 32, place & 0xFFFFFFFF) for place, score in rows]


def _talks(rows: list[port.Row]) -> dict[int, float]:
    """How much each conversation has to say: its five best messages together."""
    best: dict[int, list[float]] = {}
    for place, score in rows:
        best.setdefault(place >> 32, []).append(score)
    return {key: sum(scores[:5]) for key, scores in best.items()}


def _ranked(tx: port.Tx, found: list[Candidate], limit: int, wanted: Filter) -> list[Ranked]:
    """Candidates that fit, best first: by their words, by what else was said there, and by who said it."""
    ranked: list[Ranked] = []
    promising = sorted(found, key=lambda each: -each[0] - TALK * each[1])
    for score, talk, key, seq in promising:
        row = tx.one("search_candidate", conversation=key, seq=seq)
        if row is not None and _fits(row[1], row[2], wanted):
            ranked.append(((score + TALK * talk) * WEIGHTS[row[0]], key, seq))
        # Weights reorder neighbours only: far enough down nobody overtakes the first ones any more.
        if len(ranked) >= 4 * limit + 20:
            break
    return sorted(ranked, key=lambda each: (-each[0], each[1], each[2]))


def _fits(at: float, owner: str, wanted: Filter) -> bool:
    return (
        (wanted.owner is None or owner == wanted.owner)
        and (wanted.after is None or at >= wanted.after)
        and (wanted.before is None or at < wanted.before)
    )


def _hit(tx: port.Tx, ranked: Ranked, question: words.Question) -> types.Hit:
    score, conversation, seq = ranked
    session_id, role, at, body, conversation_id = tx.one("search_message", conversation=conversation, seq=seq) or ()
    text = words.text_of(_decode(body)) if body else ""
    snippet = words.snippet(text, question.terms)
    return types.Hit(session_id, seq, role, text, snippet, score, conversation_id, at)


def _with_neighbours(tx: port.Tx, hit: types.Hit, count: int) -> types.Hit:
    around = log.transcript(tx, hit.session_id, max(0, hit.seq - 1 - count), hit.seq + count)
    return msgspec.structs.replace(
        hit,
        before=tuple(message for message in around if message.seq < hit.seq),
        after=tuple(message for message in around if message.seq > hit.seq),
    )


def _checked(query: object, limit: object, neighbours: object, *rest: Any) -> Filter:
    if not isinstance(query, str) or len(query) > MAX_QUERY:
        raise errors.OutOfRange(f"A question is text of at most {MAX_QUERY:,} characters.")
    for number, most in ((limit, MAX_HITS), (neighbours, MAX_NEIGHBOURS)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
            raise errors.OutOfRange(f"limit is a whole number up to {MAX_HITS}, neighbours up to {MAX_NEIGHBOURS}.")
    try:
        names = ("session_id", "role", "tool", "owner", "after", "before", "own")
        return msgspec.convert(dict(zip(names, rest, strict=True)), Filter)
    except (msgspec.ValidationError, UnicodeError):
        raise errors.OutOfRange(
            f"A search is limited by text (session_id, tool, owner), a role ({', '.join(types.ROLES)}), Unix times, "
            "and to messages' own words by a flag."
        ) from None
