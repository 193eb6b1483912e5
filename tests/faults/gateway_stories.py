"""Chats that one gateway after another works on, each killed somewhere, and what they must look like afterwards.

Whoever sends updates gives them again, under their keys, until they are acknowledged, and then once more: of that it
never heard. When all is quiet, each of them has one outcome, is one message in the log, in order, with one answer
behind it, which went to its own chat and was never sent again once it was marked.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast import content_parts, types
from holdfast.runtime import inbox_messages
from holdfast.store.db import SessionDB
from tests.faults import gateways, zygote
from tests.faults.gateways import PLATFORM, Sent, Update

NAMES = ("ann", "ben", "eve")
# After so many deaths other people come: conversations begin, and go on.
GENERATION = 4


class Story:
    """Chats in one store, told by one process after another."""

    def __init__(self, running: zygote.Zygote, target: Path | str, sends: Path, chance: random.Random) -> None:
        self.running, self.target, self.sends, self.chance = running, str(target), sends, chance
        self.updates: list[Update] = []
        self.acknowledged: set[str] = set()
        self.deaths = self.strangers = 0
        self._numbers = itertools.count()

    def say(self, *texts: str, names: Sequence[str] = NAMES) -> None:
        """Everybody writes these."""
        for text, name in itertools.product(texts, names):
            number, chat = next(self._numbers), f"{name}{self.strangers + self.deaths // GENERATION}"
            said = text if text.startswith("/") else f"{text} {number} of {chat}"
            self.updates.append(Update(chat, f"{chat}-{number}", said))

    def args(self, point: str = "", hit: int = 0, **more: Any) -> dict[str, Any]:
        return {"updates": self._coming(), "sends": str(self.sends), "point": point, "hit": hit, **more}

    def _coming(self) -> list[Update]:
        """What is not acknowledged, and before it the last of each chat that is."""
        new = [each for each in self.updates if each.key not in self.acknowledged]
        known = {each.chat: each for each in self.updates if each.key in self.acknowledged}
        return [*(known[chat] for chat in dict.fromkeys(each.chat for each in new) if chat in known), *new]

    def heard(self, *outcomes: zygote.Outcome) -> None:
        """What processes told, and that nothing but a signal ended them before their time."""
        for outcome in outcomes:
            self.acknowledged.update(outcome.told)
            assert outcome.state == "killed" or (outcome.state, outcome.error) == ("exited", None), outcome

    def live(self, point: str = "", hit: int = 0) -> zygote.Outcome:
        """A process takes in what comes, and dies at that point, when it is there for the n-th time."""
        outcome = self.running.run(gateways.live, self.target, self.args(point, hit))
        self.heard(outcome)
        self.deaths += outcome.state == "killed"
        return outcome

    def wrongs(self) -> list[str]:
        """What is not as it should be once everything came to its end, which the last process was let do."""
        assert {each.key for each in self.updates} == self.acknowledged
        sends = gateways.sent(self.sends)
        with SessionDB(self.target) as db:
            return [*still_open(db), *wrongs(db, self.updates, sends)]


# --- kills ------------------------------------------------------------------------------------------------------


def reachable(story: Story) -> dict[str, int]:
    """The points between receipt and delivery, and how often a life that nobody ends comes to them."""
    passed = tuple(f"{operation}." for operation in ("gateway", *gateways.OPERATIONS))
    found = dict[str, int]()
    # Only the settlement of a chat's last open message releases its lease.
    for texts in (("First", gateways.COMMAND, "Second"), ("Third",)):
        story.say(*texts)
        found |= {name: count for name, count in story.live().value.items() if name.startswith(passed)}
    return found


def kill_at(story: Story, point: str, kills: int, most: int, names: Sequence[str] = NAMES) -> int:
    """So many processes one after the other, each killed at that point, the n-th time it comes there, under load.

    How many were. Who did not come there so often came to its end, and another is killed in its place.
    """
    done = lived = 0
    while done < kills:
        story.say("First", *(["Second"] if lived % 3 == 1 else []), names=names)
        if lived % 4 == 0 or point == "gateway.commanded":
            story.say(gateways.COMMAND, names=names)
        done += story.live(point, story.chance.randint(1, most)).state == "killed"
        lived += 1
        assert lived < 20 + 2 * kills, f"{point} is reached too seldom"
    return done


def kill_everywhere(story: Story, kills: int) -> Iterator[str]:
    """Every point of the store between receipt and delivery, in any order; the names of those that were died at."""
    found = [each for each in reachable(story).items() if not each[0].startswith("gateway.")]
    for point, count in story.chance.sample(found, len(found)):
        for _ in range(kills):
            story.strangers += 1  # Some are only passed where a conversation begins.
            kill_at(story, point, 1, max(1, count // 6), NAMES[:2])
        yield point


def kill_one_of_two(story: Story, point: str, most: int) -> bool:
    """Two at once, and every update comes in through both, in order; one of them may die, and the other ends its work.

    Whether it died: it may have had nothing to do.
    """
    story.say("First", gateways.COMMAND, "Second", "Third")
    args = story.args(point, story.chance.randint(1, most))
    first, second = story.running.crowd(gateways.live, story.target, args, 2)
    story.heard(first, second)
    assert second.state == "exited", second
    story.deaths += first.state == "killed"
    return first.state == "killed"


# --- what must be found after them ------------------------------------------------------------------------------


def still_open(db: SessionDB) -> list[str]:
    """What somebody would still have to do, or does."""
    found = [f"{count} {name}" for name, count in db.mail.counts().items() if count]
    found += [f"{each.key} is claimed" for each in db.mail.chat_leases() if each.state == "held"]
    return found + [f"{each.conversation_id} is leased" for each in db.leases() if each.state == "held"]


def wrongs(db: SessionDB, updates: Sequence[Update], sends: Sequence[Sent]) -> list[str]:
    """What is lost, twice, out of order, or elsewhere than it should be."""
    found = [f"{bad.promise} {bad.detail}" for bad in db.admin.fsck().violations]
    chats, rows = list(dict.fromkeys(each.chat for each in updates)), dict[int, Update]()
    for chat in chats:
        here, route = [each for each in updates if each.chat == chat], db.route(route_of(chat))
        if route.conversation_id is None or route.version != 1:
            found.append(f"{chat}: {route}")
            continue
        log = db.transcript(route.conversation_id)
        found += _wrongs_of_log(chat, here, log)
        for each in here:
            found += _wrongs_of_update(db, each, log, rows)
    stray = len(db.list_sessions(limit=1_000)) - len(chats)
    found += [f"{stray} conversations too many"] if stray else []
    return found + _wrongs_of_sends(sends, rows)


def route_of(chat: str) -> str:
    return f"agent:main:{PLATFORM}:dm:{chat}"


def _is_command(each: Update) -> bool:
    return each.text.startswith("/")


def _answer(each: Update) -> str:
    return f"re {each.text}"


def _wrongs_of_log(chat: str, updates: Sequence[Update], log: Sequence[types.Message]) -> list[str]:
    """Every message once, in order, and its answer behind it."""
    messages = [each for each in updates if not _is_command(each)]
    wanted = [line for each in messages for line in (("user", each.text), ("assistant", _answer(each)))]
    said = [(each.role, content_parts.text(each.content)) for each in log]
    pairs = itertools.zip_longest(said, wanted)
    return [f"{chat}: {pair[0]} is said, and not {pair[1]}" for pair in pairs if pair[0] != pair[1]][:1]


def _wrongs_of_update(db: SessionDB, each: Update, log: Sequence[types.Message], rows: dict[int, Update]) -> list[str]:
    """One outcome, one message, one reply that is marked as delivered; that goes into `rows`."""
    arrival = db.mail.inbound_by_key(PLATFORM, each.key)
    if arrival is None:
        return [f"{each.key} was acknowledged and is lost"]
    found, outcome = list[str](), "command" if _is_command(each) else "answered"
    if (arrival.outcome, arrival.text) != (outcome, each.text):
        found.append(f"{each.key}: {arrival.outcome} {arrival.text!r}")
    uids = [message.uid for message in log if message.seq == arrival.seq]
    if uids != ([] if _is_command(each) else [inbox_messages.uid_of(f"{PLATFORM}:{each.key}")]):
        found.append(f"{each.key} is not the message {arrival.seq}")
    replies = db.mail.replies(arrival.id)
    rows.update((reply.id, each) for reply in replies)
    if len(replies) != 1:
        return [*found, f"{each.key} has {len(replies)} replies"]
    (reply,) = replies
    if not _is_command(each) and reply.text != _answer(each):
        found.append(f"{each.key} is answered with {reply.text!r}")
    if reply.delivered_at is None or reply.external != f"{PLATFORM}-{reply.id}":
        found.append(f"the reply to {each.key} is not marked: {reply}")
    return found


def _wrongs_of_sends(sends: Sequence[Sent], rows: dict[int, Update]) -> list[str]:
    found = [f"{each} was marked before" for each in sends if each.marked]
    found += [f"{each} is a reply to nothing" for each in sends if each.id not in rows]
    known = [each for each in sends if each.id in rows]
    wanted = {row: (f"dm:{update.chat}", update.chat) for row, update in rows.items()}
    found += [
        f"{each} went elsewhere than {wanted[each.id]}"
        for each in known
        if (each.chat, each.address) != wanted[each.id]
    ]
    counted = Counter((each.id, each.pid) for each in sends)
    found += [f"process {pid} sent {row} {count} times" for (row, pid), count in counted.items() if count > 1]
    found += [f"the reply to {rows[row].key} was never sent" for row in set(rows) - {each.id for each in sends}]
    first = dict[str, list[int]]()
    for row in dict.fromkeys(each.id for each in known):
        first.setdefault(rows[row].chat, []).append(row)
    return found + [
        f"what went to {chat} went in another order: {ids}" for chat, ids in first.items() if ids != sorted(ids)
    ]
