"""Permits: what was allowed for more than once, and the audit of what tools did.

Grants are given and revoked, never changed. An act is written down before it is done, with who allowed or
denied it; afterwards only its end is added, once. What it did goes from the audit with the message that
asked for it, when that is redacted; that it was done stays until its conversation is deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast import errors, types
from holdfast.store import arguments, conversation_row, message_codec
from holdfast.store.driver import Driver, Row, Tx
from holdfast.store.records import memory

LONGEST = 4_000
MAX_RULE = 4_000


class Permits:
    """The part of SessionDB that knows what is allowed, and what was done."""

    driver: Driver
    _clock: Callable[[], float]

    # --- grants --------------------------------------------------------------------------------------

    def grant(self, owner: str, rule: str, *, session_id: str | None = None, by: str) -> types.Grant:
        """Allow what the rule says from now on: in one conversation, or in all of the owner's.

        The same again is the same grant. What a rule means is its reader's business.
        """
        who, said, giver, now = memory.checked_owner(owner), _checked_rule(rule), clipped(by), self._clock()
        return self.driver.write("grant", lambda tx: _grant(tx, who, said, session_id, giver, now))

    def grants(self, owner: str, session_id: str | None = None) -> list[types.Grant]:
        """What holds in all conversations of the owner, and what holds in this one, oldest first."""
        who = memory.checked_owner(owner)

        def look(tx: Tx) -> list[types.Grant]:
            key = conversation_row.look(tx, session_id).key if session_id is not None else None
            return [_granted(row) for row in tx.all("grants_of", owner=who, conversation=key)]

        return self.driver.read(look)

    def revoke(self, grant_id: int) -> bool:
        """Take a grant back; whether there was one."""
        arguments.whole(grant_id)
        return self.driver.write("grant", lambda tx: tx.run("grant_revoke", id=grant_id) == 1)

    # --- the audit -----------------------------------------------------------------------------------

    def audit_begin(self, session_id: str, call_id: str, tool: str, summary: str, allowed: bool, by: str) -> int:
        """Write down what is about to be done, or is denied, and who decided so; the id for `audit_end`.

        Of each text 4,000 characters are kept.
        """
        values = {
            "uid": message_codec.mint_uid(),
            "call_id": clipped(call_id),
            "tool": clipped(tool),
            "summary": clipped(summary),
            "allowed": int(_checked_flag(allowed)),
            "decided_by": clipped(by),
            "at": self._clock(),
        }
        return self.driver.write("audit", lambda tx: _begun(tx, session_id, values))

    def audit_end(self, audit_id: int, ok: bool) -> bool:
        """How it ended; whether that was written: once, for what was allowed, while its conversation exists."""
        arguments.whole(audit_id)
        done, now = int(_checked_flag(ok)), self._clock()
        return self.driver.write("audit", lambda tx: _finished(tx, audit_id, done, now))

    def audit(
        self, session_id: str | None = None, since: float | None = None, denied: bool = False, limit: int = 100
    ) -> list[types.Audited]:
        """What tools did or were denied, newest first: in one conversation or all, from a time on."""
        arguments.whole(limit)
        when = message_codec.checked_time(since) if since is not None else None
        only = int(_checked_flag(denied))

        def look(tx: Tx) -> list[types.Audited]:
            key = conversation_row.look(tx, session_id).key if session_id is not None else None
            rows = tx.all("audit_newest", conversation=key, since=when, denied=only, limit=limit)
            return [_audited(row) for row in rows]

        return self.driver.read(look)


def _grant(tx: Tx, owner: str, rule: str, session_id: str | None, by: str, now: float) -> types.Grant:
    key = conversation_row.lock(tx, session_id).key if session_id is not None else None
    tx.run("grant_insert", owner=owner, rule=rule, conversation=key, given_by=by, at=now)
    row = tx.one("grant_get", owner=owner, rule=rule, conversation=key)
    assert row is not None  # there, or just written
    return _granted(row)


def _begun(tx: Tx, session_id: str, values: dict[str, object]) -> int:
    tx.run("audit_insert", conversation=conversation_row.lock(tx, session_id).key, **values)
    row = tx.one("audit_id", uid=values["uid"])
    assert row is not None  # just written, by this attempt or the one before
    return int(row[0])


def _finished(tx: Tx, audit_id: int, ok: int, now: float) -> bool:
    return tx.run("audit_finish", id=audit_id, ok=ok, at=now) == 1


def _checked_rule(rule: object) -> str:
    if not isinstance(rule, str) or not 0 < len(rule) <= MAX_RULE or not rule.isprintable():
        raise errors.InvalidArgument(f"A rule is printable text of 1 to {MAX_RULE:,} characters.")
    return rule


def _checked_flag(flag: object) -> bool:
    if not isinstance(flag, bool):
        raise errors.InvalidArgument("This takes True or False.")
    return flag


def clipped(text: object) -> str:
    """What cannot be written down is not done: so no text is too long or too odd to be written down."""
    if not isinstance(text, str):
        raise errors.MessageInvalid("The audit takes text.")
    short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return short.encode("utf-8", "replace").decode()


def _granted(row: Row) -> types.Grant:
    id_, owner, rule, conversation_id, at, by = row
    return types.Grant(id=id_, owner=owner, rule=rule, conversation_id=conversation_id, at=at, by=by)


def _audited(row: Row) -> types.Audited:
    id_, conversation_id, call_id, tool, summary, allowed, by, at, ended_at, ok = row
    return types.Audited(
        id=id_,
        conversation_id=conversation_id,
        call_id=call_id,
        tool=tool,
        summary=summary,
        allowed=bool(allowed),
        by=by,
        at=at,
        ended_at=ended_at,
        ok=None if ok is None else bool(ok),
    )
