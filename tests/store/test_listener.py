"""Hearing what other drivers write, over PostgreSQL: what is told, what is not, and what a lost connection does."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator

import pytest

from holdfast import SessionDB, errors
from holdfast.store import log, notifications
from holdfast.store.postgres import notify
from tests.support import conversations, polling, postgres

MOVED, CAME, FREED = (notifications.Hint(kind, "talk") for kind in ("moved", "came", "freed"))
END = notifications.Hint("came", "end")
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN%%'"


class Hosts:
    """Two that have one store open, and what the second hears of the first."""

    def __init__(self, address: str) -> None:
        self.name = f"l{id(self)}"
        self.one, self.other = SessionDB(address), SessionDB(f"{address}&application_name={self.name}")
        self._heard: queue.Queue[notifications.Hint] = queue.Queue()
        self._looks = 0
        conversations.begin(self.one, "talk", "a")
        conversations.begin(self.one, "end")
        assert self.other.driver.listen(self._heard.put)
        assert self.next() == notifications.LOST
        self.heard()  # what was written above

    def next(self) -> notifications.Hint:
        return self._heard.get(timeout=60)

    def heard(self) -> set[notifications.Hint]:
        """What came since the last look: hints come in their order, and one that stands for the end is behind them."""
        self._looks += 1
        self.one.mail.add_inbox_entry("end", f"look {self._looks}", "over")
        found = set()
        while (hint := self.next()) != END:
            found.add(hint)
        return found

    def listeners(self) -> list[int]:
        return [pid for (pid,) in postgres.admin().execute(LISTENERS, (self.name,))]

    def close(self) -> None:
        self.one.close()
        self.other.close()


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    both = Hosts(postgres.fresh())
    yield both
    both.close()


def _released(db: SessionDB) -> None:
    db.release_lease(db.acquire_lease("talk", "turn", None, 30))


def _batch(db: SessionDB) -> None:
    db.append_messages("talk", [{"role": "user", "content": text} for text in "ab"])


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda db: conversations.say(db, "talk", "b"), {MOVED}),
        (_batch, {MOVED}),
        (lambda db: db.hide("talk", 1), {MOVED}),
        (lambda db: db.redact("talk", 1), {MOVED}),
        (lambda db: db.end_conversation("talk", "done"), {MOVED}),
        (lambda db: conversations.compact(db, "talk", 1), {MOVED, FREED}),
        (lambda db: db.delete_conversation("talk"), {MOVED}),
        (lambda db: db.mail.add_inbox_entry("talk", "k", "hello"), {CAME}),
        (_released, {FREED}),
        (lambda db: db.acquire_lease("talk", "turn", None, 30), set()),
        (lambda db: db.set_session_title("talk", "A title"), set()),
        (lambda db: db.set_session_folder("talk", "/work"), set()),
        (lambda db: db.set_session_metadata("talk", {"a": 1}), set()),
        (lambda db: db.context("talk"), set()),
        (lambda db: db.create_session("new", source="test"), set()),
    ],
    ids=[
        "append", "batch", "hide", "redact", "end", "compact", "delete", "receive", "release", "acquire", "title",
        "folder", "metadata", "read", "birth",
    ],
)  # fmt: skip
def test_others_are_told_of_what_they_may_wait_for(
    hosts: Hosts, act: Callable[[SessionDB], object], told: set[notifications.Hint]
) -> None:
    act(hosts.one)
    assert hosts.heard() == told


def test_nobody_is_told_of_what_was_rolled_back_or_of_his_own_writes(hosts: Hosts) -> None:
    conversations.say(hosts.other, "talk", "my own")

    def step(tx: object) -> None:
        log.AppendRequest("talk", [{"role": "user", "content": "b"}], 1.0)(tx)  # type: ignore[arg-type]
        raise KeyError

    with pytest.raises(KeyError):
        hosts.one.driver.write("append", step)
    assert hosts.heard() == set()


def test_stores_in_one_database_are_strangers(hosts: Hosts) -> None:
    with SessionDB(postgres.fresh()) as stranger:
        conversations.begin(stranger, "talk", "a", "b")
    assert hosts.heard() == set()


def test_a_lost_connection_is_made_again_and_those_who_listen_are_told_to_look(hosts: Hosts) -> None:
    (pid,) = hosts.listeners()
    postgres.admin().execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert hosts.next() == notifications.LOST
    (again,) = hosts.listeners()
    assert again != pid
    conversations.say(hosts.one, "talk", "b")
    assert hosts.heard() == {MOVED}


def test_a_server_that_cannot_be_reached_for_a_while_is_tried_until_it_can(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "RECONNECT_INTERVAL", 0.0)
    refused, connect = [], hosts.other.driver._connect_unpooled  # type: ignore[attr-defined]
    (listener,) = hosts.other.driver._listeners  # type: ignore[attr-defined]

    def refuses() -> object:
        if len(refused) < 5:
            refused.append(1)
            raise errors.StoreUnreachable("nowhere", "nobody is there")
        return connect()

    listener._connect = refuses
    postgres.admin().execute("SELECT pg_terminate_backend(%s)", tuple(hosts.listeners()))
    assert hosts.next() == notifications.LOST
    assert len(refused) == 5


def test_what_a_stranger_sends_makes_one_look_at_most(hosts: Hosts) -> None:
    texts = ["", "x", "x moved", "x stolen talk", "x moved " + "y" * 7_000, "x moved a\nb", "\u202e", "x moved nowhere"]
    (channel,) = hosts.one.driver.read(lambda tx: tx.execute(notify.SELECT_CHANNEL).fetchone())  # type: ignore[attr-defined]
    postgres.admin().execute("SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload", (channel, texts))
    assert hosts.heard() == {notifications.Hint("moved", "nowhere")}


def test_closing_ends_the_thread_and_its_connection(hosts: Hosts) -> None:
    (listener,) = hosts.other.driver._listeners  # type: ignore[attr-defined]
    hosts.other.close()
    assert not listener._thread.is_alive()
    polling.until(lambda: hosts.listeners() == [])


def test_a_file_sends_nothing() -> None:
    with SessionDB(":memory:") as db:
        assert db.driver.listen(lambda _: None) is False
