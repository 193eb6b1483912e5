"""Which promises hold as a database is set up, and what breaks the others. Pure.

A promise is kept by the store and by what is under it: a server that does not wait for its disk, or a standby that
takes over without the last commits, breaks it whatever the store does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

TEXTS = {
    "P1": "An acknowledged message is in the log, once, at its number, until its owner deletes the conversation.",
    "P2": "Numbers have no gaps.",
    "P3": "An open conversation has exactly one head.",
    "P4": "A session has at most one continuation.",
    "P5": "No message leaves the context by a compaction that did not see it.",
    "P6": "A lease that expired or was overtaken cannot commit.",
    "P7": "A write to a superseded session lands at the head, or is refused and told where the head is.",
    "P8": "After a crash at any instant all of this holds without a repair, and the next message is accepted.",
}

# What stands between a client and its server: nothing, a pooler that lets a client keep its connection, or one that
# gives it to others between two transactions.
DIRECT, KEEPS, SHARES = "none", "keeps", "shares"


class Breach(NamedTuple):
    """What breaks promises, when it does, and what to do about it."""

    promises: tuple[str, ...]
    when: str
    why: str
    remedy: str


class Promise(NamedTuple):
    """A promise as it stands: it holds, but for these."""

    name: str
    text: str
    breaches: tuple[Breach, ...]

    @property
    def holds(self) -> bool:
        return not self.breaches


class Note(NamedTuple):
    """What breaks no promise and is worth knowing, and what to do about it."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}"


def breaches(standing: Mapping[str, Any]) -> list[Breach]:
    """What breaks promises where a database says this of itself."""
    return list(_of_postgres(standing) if standing["engine"] == "PostgreSQL" else _of_sqlite(standing))


def promised(standing: Mapping[str, Any]) -> list[Promise]:
    """All promises, as they stand there."""
    found = breaches(standing)
    return [
        Promise(name, text, tuple(breach for breach in found if name in breach.promises))
        for name, text in TEXTS.items()
    ]


def _of_sqlite(standing: Mapping[str, Any]) -> Iterator[Breach]:
    if standing.get("path") == ":memory:":
        yield Breach(("P1", "P8"), "when the process ends", "the store is in memory", "Name a file.")
    elif standing.get("durability") != "power-loss":
        yield Breach(
            ("P1",),
            "when the power fails",
            "messages are acknowledged before they are on the disk (durability process-crash)",
            "Open the store with durability power-loss, which is the default.",
        )


def _of_postgres(standing: Mapping[str, Any]) -> Iterator[Breach]:
    settings = standing["settings"]
    if settings["fsync"] == "off":
        why, remedy = "the server never waits for its disk (fsync = off)", "Set fsync = on, and restart the server."
        yield Breach(("P1", "P8"), "when the power fails or the system crashes", why, remedy)
    if settings["full_page_writes"] == "off":
        why = "a page that was half written cannot be told from a whole one (full_page_writes = off)"
        yield Breach(("P1", "P8"), "when the power fails", why, "Set full_page_writes = on.")
    if settings["synchronous_commit"] == "off":
        why = "messages are acknowledged before they are on the disk (synchronous_commit = off)"
        yield Breach(("P1",), "when the server crashes", why, "Set synchronous_commit = on.")
    yield from _of_standbys(standing)


def _of_standbys(standing: Mapping[str, Any]) -> Iterator[Breach]:
    mode = standing["settings"]["synchronous_commit"]
    for standby in standing["standbys"]:
        who, state = standby["name"] or "a standby", standby["sync_state"]
        if state is None:
            yield Breach(
                ("P1",),
                "perhaps, when a standby takes over",
                "there is a standby, and this role may not see whether it is synchronous",
                "GRANT pg_monitor TO this role, and look again.",
            )
        elif state == "away":
            yield Breach(
                ("P1",),
                f"when the standby of the slot {who} takes over",
                "it is not connected: it lacks what was acknowledged meanwhile",
                "Bring it back, or drop its slot if there is none any more.",
            )
        elif state == "async":
            yield Breach(
                ("P1",),
                f"when {who} takes over",
                f"{who} is an asynchronous standby: it may lack messages that were acknowledged",
                "Name it in synchronous_standby_names, or never fail over to it.",
            )
        elif mode in ("local", "off"):
            yield Breach(
                ("P1",),
                f"when {who} takes over",
                f"nobody waits for it (synchronous_commit = {mode})",
                "Set synchronous_commit = on.",
            )


def notes(standing: Mapping[str, Any]) -> Iterator[Note]:
    if standing["engine"] != "PostgreSQL":
        return
    settings = standing["settings"]
    if standing["in_recovery"]:
        what = "This server is a standby: it can be read, and refuses every write."
        yield Note(what, "Give the address of its primary.")
    elif settings["synchronous_standby_names"] and not standing["standbys"]:
        what = "A synchronous standby is named and none is connected: every write waits until one is."
        yield Note(what, "Start it, or take it out of synchronous_standby_names.")
    if settings["synchronous_commit"] == "remote_write":
        what = "A standby whose system crashes may lack the last messages (synchronous_commit = remote_write)."
        yield Note(what, "Set synchronous_commit = on, unless you chose that.")
    if settings["data_checksums"] == "off":
        what = "The server has no data checksums: a damaged page is found by `holdfast doctor`, not by the server."
        yield Note(what, "Stop the server and run pg_checksums --enable, or go on without.")
    yield from _of_connections(standing)


def _of_connections(standing: Mapping[str, Any]) -> Iterator[Note]:
    if not standing["tls"] and not standing["local"]:
        yield Note("The connection is not encrypted.", "Add sslmode=verify-full to the address.")
    if standing["pooler"] == SHARES:
        what = (
            "A pooler gives one connection of the server to several clients (as pool_mode = transaction does): hints "
            "are lost, timeouts reach others, and statements may fail."
        )
        yield Note(what, "Set pool_mode = session, or give the address of the server itself.")
    used, most = standing["connections"]["database"], standing["connections"]["most"]
    if used > 0.8 * most:
        yield Note(f"{used} of {most} connections are in use.", "Raise max_connections, or put a pooler in front.")
