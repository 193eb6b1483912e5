"""The promises of the store, and the database configurations that break them.

A server that does not wait for its disk, or a failover to a standby that lacks the last commits, breaks a promise
whatever the store does. The functions are pure; they read the status that a driver returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

TEXTS = {
    "P1": "An acknowledged message is in the log, once, at its number, until its owner deletes the conversation.",
    "P2": "Numbers have no gaps.",
    "P3": "An open conversation has exactly one head.",
    "P4": "A session has at most one continuation.",
    "P5": "A compaction removes no message from the context that it did not read.",
    "P6": "A lease that expired or was taken over cannot commit.",
    "P7": "A write to a superseded session is stored at the head, or refused with the id of the head.",
    "P8": "After a crash at any instant all of this holds without a repair, and the next message is accepted.",
}

# How a connection pooler, if there is one, assigns server connections: per client, or per transaction.
NO_POOLER, SESSION_POOLING, TRANSACTION_POOLING = "none", "keeps", "shares"


class Breach(NamedTuple):
    """A configuration that breaks promises, when it does, and the remedy."""

    promises: tuple[str, ...]
    when: str
    why: str
    remedy: str


class Promise(NamedTuple):
    name: str
    text: str
    breaches: tuple[Breach, ...]

    @property
    def holds(self) -> bool:
        return not self.breaches


class Note(NamedTuple):
    """A finding that breaks no promise, and the remedy."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


def evaluate(status: Mapping[str, Any]) -> list[Promise]:
    """Return all promises with their breaches in this configuration."""
    found = find_breaches(status)
    return [Promise(name, text, tuple(each for each in found if name in each.promises)) for name, text in TEXTS.items()]


def find_breaches(status: Mapping[str, Any]) -> list[Breach]:
    return list(_postgres_breaches(status) if status["engine"] == "PostgreSQL" else _sqlite_breaches(status))


def _sqlite_breaches(status: Mapping[str, Any]) -> Iterator[Breach]:
    if status.get("path") == ":memory:":
        yield Breach(("P1", "P8"), "when the process ends", "the store is in memory", "Use a file.")
    elif status.get("durability") != "power-loss":
        yield Breach(
            ("P1",),
            "when the power fails",
            "messages are acknowledged before they are on disk (durability process-crash)",
            "Open the store with durability power-loss, which is the default.",
        )


# By the server setting that is off.
_OFF = {
    "fsync": Breach(
        ("P1", "P8"),
        "when the power fails or the system crashes",
        "the server never waits for its disk (fsync = off)",
        "Set fsync = on and restart the server.",
    ),
    "full_page_writes": Breach(
        ("P1", "P8"),
        "when the power fails",
        "the server cannot recover a partially written page (full_page_writes = off)",
        "Set full_page_writes = on.",
    ),
    "synchronous_commit": Breach(
        ("P1",),
        "when the server crashes",
        "messages are acknowledged before they are on disk (synchronous_commit = off)",
        "Set synchronous_commit = on.",
    ),
}


def _postgres_breaches(status: Mapping[str, Any]) -> Iterator[Breach]:
    yield from (breach for name, breach in _OFF.items() if status["settings"][name] == "off")
    for standby in status["standbys"]:
        if found := _standby_breach(standby, status["settings"]["synchronous_commit"]):
            yield Breach(("P1",), *found)


def _standby_breach(standby: Mapping[str, Any], mode: str) -> tuple[str, str, str] | None:
    """Return when, why and remedy."""
    name, state = standby["name"] or "a standby", standby["sync_state"]
    if state is None:
        why = "there is a standby, and this role may not see whether it is synchronous"
        return "possibly, when a standby takes over", why, "GRANT pg_monitor TO this role, and check again."
    if state == "away":
        why = "it is not connected and lacks messages acknowledged meanwhile"
        remedy = "Reconnect it, or drop the slot if the standby no longer exists."
        return f"when the standby of the slot {name} takes over", why, remedy
    when = f"when {name} takes over"
    if state == "async":
        why = f"{name} is an asynchronous standby: it may lack acknowledged messages"
        return when, why, "Add it to synchronous_standby_names, or never fail over to it."
    if mode in ("local", "off"):
        return when, f"commits do not wait for it (synchronous_commit = {mode})", "Set synchronous_commit = on."
    return None


def find_notes(status: Mapping[str, Any]) -> Iterator[Note]:
    if status["engine"] != "PostgreSQL":
        return
    settings = status["settings"]
    if status["in_recovery"]:
        yield Note("This server is a standby and refuses every write.", "Use the address of its primary.")
    elif settings["synchronous_standby_names"] and not status["standbys"]:
        what = "A synchronous standby is configured and none is connected: every write waits for one."
        yield Note(what, "Start it, or remove it from synchronous_standby_names.")
    if settings["synchronous_commit"] == "remote_write":
        what = "A standby whose system crashes may lack the last messages (synchronous_commit = remote_write)."
        yield Note(what, "Set synchronous_commit = on, unless this is intended.")
    if settings["data_checksums"] == "off":
        what = "The server has no data checksums: only `holdfast doctor` detects a damaged page."
        yield Note(what, "Stop the server and run pg_checksums --enable, or ignore this.")
    if not status["tls"] and not status["local"]:
        yield Note("The connection is not encrypted.", "Add sslmode=verify-full to the address.")
    if status["pooler"] == TRANSACTION_POOLING:
        what = (
            "A pooler shares server connections between clients (pool_mode = transaction): notifications are lost, "
            "timeouts affect other clients, and statements may fail."
        )
        yield Note(what, "Set pool_mode = session, or use the address of the server itself.")
    used, limit = status["connections"]["database"], status["connections"]["most"]
    if used > 0.8 * limit:
        yield Note(f"{used} of {limit} connections are in use.", "Raise max_connections, or use a pooler.")
