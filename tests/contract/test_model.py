"""Any sequence of steps: the store does what the plain model says, and fsck finds nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st

from holdfast import NewMessage
from tests.support import backends, consistency, conversations, postgres, store_model

MAX_CONVERSATIONS = 4  # the fewer there are, the more happens to each

picks = st.integers(0, 10_000)
texts = st.sampled_from(["a", "b", "c"])
holders = st.sampled_from(["one", "two"])
titles = st.sampled_from([None, "plan", "idea"])


class Store(stateful.RuleBasedStateMachine):
    """A store and its model. Every rule chooses its conversation by a number."""

    backend: backends.Backend = backends.FILE

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        self.clock = conversations.Clock()
        self.open()
        self.talks: list[store_model.Talk] = []
        self.touched: store_model.Talk | None = None
        self.held: list[store_model.Held] = []
        self.routes: dict[str, tuple[store_model.Talk | None, int]] = {}
        self.deleted: list[str] = []
        self.minted = 0
        self.steps = 0

    def open(self) -> None:
        self.db = backends.open_db(self.backend, self.folder, "store", self.clock)

    def teardown(self) -> None:
        try:
            for talk in self.talks:
                store_model.compare(self.db, talk)
            assert consistency.report(self.db) is None, self.db.admin.fsck()
        finally:
            self.db.close()
            postgres.give_back()
            shutil.rmtree(self.folder)

    def name(self) -> str:
        self.minted += 1
        return f"s{self.minted}"

    def talk(self, pick: int, wanted: Callable[[store_model.Talk], object] = bool) -> store_model.Talk:
        """Return a conversation, most often one to which the step applies."""
        fitting = [talk for talk in self.talks if wanted(talk)]
        choice = fitting if fitting and pick % 5 else self.talks
        self.touched = choice[pick // 5 % len(choice)]
        return self.touched

    def session(self, talk: store_model.Talk, pick: int) -> str:
        return talk.sessions[pick // 7 % len(talk.sessions)].id

    def refuse_taken(self, title: str | None, own: store_model.Talk | None = None) -> None:
        store_model.refuse(title and any(each.title == title for each in self.talks if each is not own), "TitleTaken")

    def leases(self) -> list[store_model.Held]:
        return [lease for lease in self.held if lease.token]

    @stateful.initialize(compacted=st.booleans(), branched=st.booleans())
    def begin(self, compacted: bool, branched: bool) -> None:
        self.create(None)
        self.append(0, ["a", "b", "c"], strict=False)
        if compacted:
            self.compact(1, 2, leased=True)
        if branched:
            self.branch(1, 0)

    @stateful.precondition(lambda self: len(self.talks) < MAX_CONVERSATIONS)
    @stateful.rule(title=titles)
    def create(self, title: str | None) -> None:
        name = self.name()

        def step() -> None:
            self.refuse_taken(title)
            self.talks.append(store_model.Talk(name, title=title))

        store_model.do_both(step, lambda: self.db.create_session(name, source="test", title=title))

    @stateful.rule(pick=picks)
    def create_with_parent(self, pick: int) -> None:
        talk, name = self.talk(pick, lambda talk: talk.head.reason == "compression"), self.name()
        parent = talk.sessions[-1] if pick % 3 else talk.sessions[pick // 7 % len(talk.sessions)]

        def step() -> None:
            if parent.reason == "compression":
                store_model.refuse(parent is not talk.head, "ForkRefused")
                talk.rotate(talk.last_seq, talk.last_seq, "", [], name)
            else:
                self.talks.append(store_model.Talk(name))

        if parent.reason == "compression" or len(self.talks) < MAX_CONVERSATIONS:
            store_model.do_both(step, lambda: self.db.create_session(name, source="test", parent_session_id=parent.id))

    @stateful.precondition(lambda self: len(self.talks) < MAX_CONVERSATIONS)
    @stateful.rule(pick=picks, at=picks)
    def branch(self, pick: int, at: int) -> None:
        talk, name = self.talk(pick, lambda talk: talk.cuts or talk.hidden), self.name()
        seq = talk.last_seq - at % (talk.last_seq + 1)
        self.talks.append(talk.branch(seq, name))
        self.db.branch(self.session(talk, pick), seq, branch_id=name, title=f"title of {name}")
        self.talks[-1].title = f"title of {name}"

    @stateful.rule(pick=picks, said=st.lists(texts, min_size=1, max_size=3), strict=st.booleans())
    def append(self, pick: int, said: list[str], strict: bool) -> None:
        self.say(pick, [(f"u{self.name()}", text) for text in said], strict=strict)

    @stateful.rule(pick=picks, which=picks, text=texts, strict=st.booleans())
    def append_again(self, pick: int, which: int, text: str, strict: bool) -> None:
        talk = self.talk(pick)
        if talk.log:
            uid = talk.log[which % talk.last_seq].uid
            self.say(pick, [(uid, text), (f"u{self.name()}", text)][: 1 + which % 2], strict=strict)

    @stateful.precondition(lambda self: self.leases())
    @stateful.rule(pick=picks, which=picks, text=texts)
    def append_in_a_turn(self, pick: int, which: int, text: str) -> None:
        self.say(pick, [(f"u{self.name()}", text)], lease=self.leases()[which % len(self.leases())])

    def say(
        self, pick: int, said: list[tuple[str, str]], *, strict: bool = False, lease: store_model.Held | None = None
    ) -> None:
        talk = self.talk(pick)
        name, was = self.session(talk, pick), talk.live
        messages = [NewMessage(role="user", content=text, uid=uid) for uid, text in said]
        before = {message.uid for message in talk.log[talk.own_from - 1 :]}
        done = store_model.do_both(
            lambda: talk.append(name, said, strict=strict, lease=lease, now=self.clock.now),
            lambda: self.db.append_messages(name, messages, expect_head=strict, lease=lease and lease.real),
        )
        store_model.learn_head(self.db, talk)
        if done:
            seqs = {message.uid: message.seq for message in talk.log[talk.own_from - 1 :]}
            for receipt in done[1]:
                assert (receipt.seq, receipt.epoch) == (seqs[receipt.uid], talk.epoch)
                assert receipt.duplicate or receipt.session_id == talk.head.id
                assert receipt.duplicate or receipt.uid not in before
                assert receipt.resumed == (talk.live and not was)

    @stateful.rule(pick=picks, purpose=st.sampled_from(["compact", "compact", "turn"]), holder=holders)
    def acquire(self, pick: int, purpose: str, holder: str) -> None:
        talk = self.talk(pick)
        done = store_model.do_both(
            lambda: talk.acquire(purpose, holder, 30, self.clock.now),
            lambda: self.db.acquire_lease(self.session(talk, pick), purpose, holder, 30),
        )
        if done:
            lease, lease.real = done[0], done[1]
            assert (lease.real.token, lease.real.snapshot.last_seq) == (lease.token, talk.last_seq)
            self.held.append(lease)

    @stateful.rule(pick=picks)
    def look(self, pick: int) -> None:
        """A snapshot, to commit by without a lease."""
        talk = self.talk(pick)
        work = store_model.Held(talk, "compact", 0, "", 0, talk.head.id, talk.epoch, talk.last_seq)
        work.real = self.db.snapshot(self.session(talk, pick))
        self.held.append(work)

    @stateful.precondition(lambda self: self.leases())
    @stateful.rule(pick=picks, give_up=st.booleans())
    def renew_or_release(self, pick: int, give_up: bool) -> None:
        lease = self.leases()[pick % len(self.leases())]
        talk = lease.conversation
        if give_up:
            mine = talk.leases.get(lease.purpose) is lease
            assert self.db.release_lease(lease.real) == mine
            if mine:
                del talk.leases[lease.purpose]
        else:
            store_model.do_both(
                lambda: store_model.refuse(not talk.holds(lease, self.clock.now), "LeaseLost"),
                lambda: self.db.renew_lease(lease.real),
            )
            if talk.holds(lease, self.clock.now):
                lease.expires = self.clock.now + 30

    @stateful.precondition(lambda self: any(work.purpose == "compact" for work in self.held))
    @stateful.rule(pick=picks, cut=picks, summary=st.sampled_from(["", "gist"]))
    def commit(self, pick: int, cut: int, summary: str) -> None:
        works = [work for work in self.held if work.purpose == "compact"]
        self.commit_by(works[pick % len(works)], pick, cut, summary)

    @stateful.rule(pick=picks, cut=picks, leased=st.booleans())
    def compact(self, pick: int, cut: int, leased: bool) -> None:
        """Begin and commit with nothing between: what a compaction mostly is."""
        before = len(self.held)
        if leased:
            self.acquire(pick, "compact", "one")
        else:
            self.look(pick)
        if len(self.held) > before:
            self.commit_by(self.held[-1], pick, cut, f"gist {self.name()}")

    def commit_by(self, work: store_model.Held, pick: int, cut: int, summary: str) -> None:
        talk, name = work.conversation, self.name()
        low = min(talk.current.cut if talk.current and cut % 6 else 0, work.last_seq)
        seq = low + cut % (work.last_seq - low + 1)
        pinned = [1 + pick % seq] if seq and pick % 2 else []
        store_model.do_both(
            lambda: talk.commit(work, seq, summary, pinned, name, self.clock.now),
            lambda: self.db.commit_compaction(work.real, summary=summary, cut_seq=seq, pinned=pinned, child_id=name),
        )

    @stateful.rule(seconds=st.sampled_from([1, 20, 31]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @stateful.precondition(lambda self: any(talk.cuts for talk in self.talks))
    @stateful.rule(pick=picks)
    def undo(self, pick: int) -> None:
        talk = self.talk(pick, lambda talk: talk.current in talk.cuts)
        store_model.do_both(talk.undo, lambda: self.db.undo_compaction(self.session(talk, pick)))

    @stateful.precondition(lambda self: any(talk.redo for talk in self.talks))
    @stateful.rule(pick=picks)
    def redo(self, pick: int) -> None:
        talk = self.talk(pick, lambda talk: talk.redo)
        store_model.do_both(talk.redone, lambda: self.db.redo_compaction(self.session(talk, pick)))

    @stateful.rule(pick=picks, first=picks, length=st.integers(0, 3))
    def hide(self, pick: int, first: int, length: int) -> None:
        # A compaction that could be redone, hidden turns that could be shown: that is where it matters.
        talk = self.talk(pick, lambda talk: talk.log and (talk.redo or talk.cuts or pick % 3 == 0))
        low = 1 + first % (talk.last_seq + 1)
        high = min(low + length, talk.last_seq) if first % 7 else low + length
        store_model.do_both(lambda: talk.hide(low, high), lambda: self.db.hide(self.session(talk, pick), low, high))

    @stateful.precondition(lambda self: any(talk.hidden for talk in self.talks))
    @stateful.rule(pick=picks)
    def show(self, pick: int) -> None:
        talk = self.talk(pick, lambda talk: talk.hidden)
        store_model.do_both(talk.show, lambda: self.db.show(self.session(talk, pick)))

    @stateful.rule(pick=picks, whole=st.booleans(), reason=st.sampled_from(["done", "compression"]))
    def end(self, pick: int, whole: bool, reason: str) -> None:
        talk = self.talk(pick)
        name = self.session(talk, pick)
        ends = talk.live and (whole or name == talk.head.id)
        if ends:
            talk.end(reason)
        call = self.db.end_conversation if whole else self.db.end_session
        assert call(name, reason) == ends

    @stateful.rule(pick=picks)
    def resume(self, pick: int) -> None:
        talk = self.talk(pick)
        name = self.session(talk, pick)
        if not talk.live:
            talk.go_on("?")
        head = self.db.resume(name).id
        store_model.learn_head(self.db, talk)
        assert head == talk.head.id

    @stateful.rule(pick=picks, title=titles)
    def rename(self, pick: int, title: str | None) -> None:
        talk = self.talk(pick)

        def step() -> None:
            self.refuse_taken(title, talk)
            talk.title = title

        store_model.do_both(step, lambda: self.db.set_session_title(self.session(talk, pick), title))

    @stateful.rule(pick=picks, key=st.sampled_from(["r1", "r2"]), stale=st.integers(0, 3), unbind=st.booleans())
    def bind(self, pick: int, key: str, stale: int, unbind: bool) -> None:
        talk = None if unbind else self.talk(pick)
        _, version = self.routes.get(key, (None, 0))
        seen = max(0, version - (stale == 0))

        def step() -> None:
            store_model.refuse(seen != version, "RouteMoved")
            self.routes[key] = (talk, version + 1)

        store_model.do_both(step, lambda: self.db.bind_route(key, talk and self.session(talk, pick), version=seen))

    @stateful.rule(pick=picks, which=picks)
    def redact(self, pick: int, which: int) -> None:
        talk = self.talk(pick, lambda talk: talk.cuts and talk.log)
        if talk.log:
            seq = 1 + which % talk.last_seq
            talk.redact(seq, self.talks)
            self.db.redact(self.session(talk, pick), seq)

    @stateful.precondition(lambda self: len(self.talks) == MAX_CONVERSATIONS)
    @stateful.rule(pick=picks)
    def delete(self, pick: int) -> None:
        talk = self.talk(pick)
        name = self.session(talk, pick)

        def step() -> None:
            store_model.refuse(any(other.origin is talk for other in self.talks), "HasBranches")
            self.talks.remove(talk)
            self.deleted += [segment.id for segment in talk.sessions]
            self.held = [lease for lease in self.held if lease.conversation is not talk]
            for key, (named, version) in self.routes.items():
                if named is talk:
                    self.routes[key] = (None, version + 1)

        store_model.do_both(step, lambda: self.db.delete_conversation(name))

    @stateful.precondition(lambda self: self.steps % 12 == 11)
    @stateful.rule()
    def reopen(self) -> None:
        self.db.close()
        self.open()

    @stateful.invariant()
    def store_equals_the_model(self) -> None:
        self.steps += 1
        now_and_then = self.steps % 8 == 0
        for talk in self.talks:
            if now_and_then or talk in (self.touched, self.talks[-1]):
                store_model.compare(self.db, talk)
        for key, (named, version) in self.routes.items():
            route = self.db.route(key)
            assert (route.conversation_id, route.version) == (named.id if named else None, version)
        assert {(lease.conversation_id, lease.purpose, lease.token, lease.holder) for lease in self.db.leases()} == {
            (talk.id, *lease) for talk in self.talks for lease in talk.held()
        }
        assert not any(self.db.get_session(name) for name in self.deleted[-3:])
        if self.steps % 20 == 0:
            assert consistency.report(self.db) is None, self.db.admin.fsck()


class InPostgres(Store):
    """The same, in PostgreSQL."""

    backend = backends.POSTGRES


TestStore, TestInPostgres = Store.TestCase, InPostgres.TestCase
_profile = hypothesis.settings()
TestStore.settings = hypothesis.settings(_profile, stateful_step_count=40)
# A step on a server takes some ten times as long.
TestInPostgres.settings = hypothesis.settings(_profile, max_examples=_profile.max_examples // 6, stateful_step_count=40)
