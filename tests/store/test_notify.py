"""Notifications between hosts over PostgreSQL: sent in the background, received after every lost connection."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pytest

from holdfast import SessionDB, errors
from holdfast.store import log, notifications, validation
from holdfast.store.postgres import notify
from tests.support import conversations, mail, polling, postgres

MOVED, CAME, FREED = (notifications.Hint(kind, "talk") for kind in ("moved", "came", "freed"))
END = notifications.Hint("came", "end")
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN%%'"

# --- the listener ------------------------------------------------------------------------------------------------


class Hosts:
    """Two hosts that have one store open, and the hints that the second one receives."""

    def __init__(self, address: str) -> None:
        self.name = f"l{id(self)}"
        self.one, self.other = SessionDB(address), SessionDB(f"{address}&application_name={self.name}")
        self._hints: queue.Queue[notifications.Hint] = queue.Queue()
        self._looks = 0
        conversations.begin(self.one, "talk", "a")
        conversations.begin(self.one, "end")
        assert self.other.driver.listen(self._hints.put)
        assert self.next() == notifications.LOST
        self.received()

    def next(self) -> notifications.Hint:
        return self._hints.get(timeout=60)

    def received(self) -> set[notifications.Hint]:
        """Return the hints since the last call, up to one that is sent now."""
        self._looks += 1
        self.one.mail.add_inbox_entry("end", f"look {self._looks}", "over")
        found = set()
        while (hint := self.next()) != END:
            found.add(hint)
        return found

    def listeners(self) -> list[int]:
        return [pid for (pid,) in postgres.admin().execute(LISTENERS, (self.name,))]


@pytest.fixture
def hosts(address: str) -> Iterator[Hosts]:
    both = Hosts(address)
    yield both
    both.one.close()
    both.other.close()


CALLS: dict[str, tuple[Callable[[SessionDB], object], set[notifications.Hint]]] = {
    "append": (lambda db: conversations.say(db, "talk", "b"), {MOVED}),
    "batch": (lambda db: db.append_messages("talk", [{"role": "user", "content": text} for text in "ab"]), {MOVED}),
    "hide": (lambda db: db.hide("talk", 1), {MOVED}),
    "redact": (lambda db: db.redact("talk", 1), {MOVED}),
    "compact": (lambda db: conversations.compact(db, "talk", 1), {MOVED, FREED}),
    "receive": (lambda db: db.mail.add_inbox_entry("talk", "k", "hello"), {CAME}),
    "release": (lambda db: db.release_lease(db.acquire_lease("talk", "turn", None, 30)), {FREED}),
    "acquire": (lambda db: db.acquire_lease("end", "turn", None, 30), set()),
    "title": (lambda db: db.set_session_title("talk", "A title"), set()),
    "create": (lambda db: db.create_session("new", source="test"), set()),
    "arrive": (lambda db: db.mail.add_inbound(mail.new()), {notifications.Hint("arrived", mail.ROUTE)}),
    "post": (lambda db: db.mail.post(mail.reply(), key="k"), {notifications.Hint("outgoing", "far")}),
    "end": (lambda db: db.end_conversation("talk", "done"), {MOVED}),
    "resume": (lambda db: db.resume("talk"), {MOVED}),
    "delete": (lambda db: db.delete_conversation("talk"), {MOVED}),
}


def test_other_hosts_are_notified_of_changes(hosts: Hosts) -> None:
    for name, (call, hints) in CALLS.items():
        call(hosts.one)
        assert hosts.received() == hints, name


def test_rolled_back_own_and_foreign_writes_are_not_received(hosts: Hosts) -> None:
    conversations.say(hosts.other, "talk", "my own")
    with SessionDB(postgres.fresh()) as foreign:  # another store in the same database
        conversations.begin(foreign, "talk", "a", "b")

    def step(tx: object) -> None:
        log.AppendRequest("talk", [{"role": "user", "content": "b"}], 1.0)(tx)  # type: ignore[arg-type]
        raise KeyError

    with pytest.raises(KeyError):
        hosts.one.driver.write("append", step)
    assert hosts.received() == set()


def test_listener_reconnects_and_reports_that_hints_may_be_lost(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "RECONNECT_INTERVAL", 0.0)
    refused, connect = [], hosts.other.driver._connect_unpooled  # type: ignore[attr-defined]
    (listener,) = hosts.other.driver._listeners  # type: ignore[attr-defined]

    def refuse() -> object:
        if len(refused) < 3:
            refused.append(1)
            raise errors.StoreUnreachable("nowhere", "connection refused")
        return connect()

    listener._connect = refuse
    (pid,) = hosts.listeners()
    postgres.admin().execute("SELECT pg_terminate_backend(%s)", (pid,))
    assert hosts.next() == notifications.LOST
    assert (len(refused), hosts.listeners() != [pid]) == (3, True)
    conversations.say(hosts.one, "talk", "b")
    assert hosts.received() == {MOVED}
    hosts.other.close()
    assert not listener._thread.is_alive()
    polling.until(lambda: hosts.listeners() == [])


def test_sqlite_has_no_notifications() -> None:
    with SessionDB(":memory:") as db:
        assert db.driver.listen(lambda _: None) is False


# --- the notifier ------------------------------------------------------------------------------------------------

ONE, TWO = notifications.Hint("moved", "one"), notifications.Hint("moved", "two")


class Server:
    """A connection that records its statements, can be paused, and fails a given number of times."""

    def __init__(self, failures: int = 0) -> None:
        self.sent: list[set[notifications.Hint | None]] = []
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()
        self.failures, self.connected, self.closed = failures, 0, False

    def connect(self) -> Server:
        self.connected, self.closed = self.connected + 1, False
        return self

    def execute(self, _: str, values: dict[str, list[str]]) -> None:
        self.reached.set()
        assert self.open.wait(60)
        self.sent.append({notifications.decode(payload, "") for payload in values["payloads"]})
        if self.failures:
            self.failures -= 1
            self.closed = True
            raise errors.StoreBusy()

    def close(self) -> None:
        self.closed = True


def notifier_of(server: Server) -> notify.Notifier:
    return notify.Notifier(server.connect, nullcontext)


def test_hints_during_a_send_are_sent_together_and_once() -> None:
    server = Server()
    sender = notifier_of(server)
    server.open.clear()
    sender.notify({ONE})
    assert server.reached.wait(60)
    for _ in range(50):
        sender.notify({ONE, TWO})
    server.open.set()
    sender.close()  # sends pending hints, and nothing after
    sender.notify({ONE})
    assert server.sent == [{ONE}, {ONE, TWO}]
    assert (server.connected, server.closed) == (1, True)


def test_failed_notification_fails_no_write_and_the_next_one_reconnects() -> None:
    server = Server(failures=1)
    sender = notifier_of(server)
    sender.notify(set())
    assert server.connected == 0
    sender.notify({ONE})
    polling.until(lambda: server.sent == [{ONE}])
    sender.notify({TWO})
    sender.close()
    assert (server.sent, server.connected) == ([{ONE}, {TWO}], 2)


# --- hints -------------------------------------------------------------------------------------------------------

ARRIVED = notifications.Hint("arrived", "chat:1")
LONGEST = notifications.Hint("freed", "\U0001f480" * validation.MAX_ROUTE)


@pytest.mark.parametrize("hint", [MOVED, ARRIVED, notifications.LOST, notifications.Hint("moved", " a  b "), LONGEST])
def test_hint_is_decoded_by_all_except_its_sender(hint: notifications.Hint) -> None:
    (text,) = notifications.encode([hint], "0" * 16)
    assert notifications.decode(text, "you") == hint
    assert notifications.decode(text, "0" * 16) is None
    assert len(text.encode()) < 8_000  # the limit of PostgreSQL
    assert hint.is_about(hint.conversation_id)
    assert hint.is_about("another") is (hint is notifications.LOST)


@pytest.mark.parametrize(
    "text",
    ["", "x", "x moved ", "moved talk", "x stolen talk", "x MOVED talk", "x  moved talk", "x moved a\nb",
     "x moved \x1b[31m", f"x moved {'y' * (validation.MAX_ROUTE + 1)}", '{"kind": "moved"}'],
)  # fmt: skip
def test_invalid_hint_is_ignored(text: str) -> None:
    assert notifications.decode(text, "me") is None


def test_too_many_hints_become_one_for_everything() -> None:
    many = [notifications.Hint("moved", str(number)) for number in range(notifications.MAX_HINTS + 1)]
    assert [notifications.decode(text, "you") for text in notifications.encode(many, "me")] == [notifications.LOST]
    assert len(notifications.encode(many[1:], "me")) == notifications.MAX_HINTS
