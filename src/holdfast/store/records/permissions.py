"""Permits: what was allowed for more than once, and the audit of what tools did.

Grants are given and revoked, never changed. An act is written down before it is done, with who allowed or
denied it; afterwards only its end is added, once. What it did goes from the audit with the message that
asked for it, when that is redacted; that it was done stays until its conversation is deleted.
"""

from __future__ import annotations

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Row, Tx
from holdfast.store.facet import Facet

LONGEST = 4_000
MAX_RULE = 4_000


class Permissions(Facet):
    """`db.permissions`: rules that were granted, and the audit of what tools did."""

    # --- grants --------------------------------------------------------------------------------------

    def grant(self, owner: str, rule: str, *, session_id: str | None = None, by: str) -> types.Grant:
        """Allow what the rule says from now on: in one conversation, or in all of the owner's.

        The same again is the same grant. What a rule means is its reader's business.
        """
        who, said = validation.check_owner(owner), validation.check_text(rule, "rule", MAX_RULE)
        giver, now = clipped(by), self._clock()
        return self.driver.write("grant", lambda tx: _grant(tx, who, said, session_id, giver, now))

    def grants(self, owner: str, session_id: str | None = None) -> list[types.Grant]:
        """What holds in all conversations of the owner, and what holds in this one, oldest first."""
        who = validation.check_owner(owner)

        def look(tx: Tx) -> list[types.Grant]:
            key = conversation_row.look(tx, session_id).key if session_id is not None else None
            return [_granted(row) for row in tx.all("grants_of", owner=who, conversation=key)]

        return self.driver.read(look)

    def revoke(self, grant_id: int) -> bool:
        """Take a grant back; whether there was one."""
        validation.check(validation.WholeNumber, grant_id=grant_id)
        return self.driver.write("grant", lambda tx: tx.run("grant_revoke", id=grant_id) == 1)

    # --- the audit -----------------------------------------------------------------------------------

    def begin_audit(self, session_id: str, call_id: str, tool: str, summary: str, allowed: bool, by: str) -> int:
        """Write down what is about to be done, or is denied, and who decided so; the id for `end_audit`.

        Of each text 4,000 characters are kept.
        """
        values = {
            "uid": message_codec.mint_uid(),
            "call_id": clipped(call_id),
            "tool": clipped(tool),
            "summary": clipped(summary),
            "allowed": int(validation.convert(validation.Flag, allowed, "allowed")),
            "decided_by": clipped(by),
            "at": self._clock(),
        }
        return self.driver.write("audit", lambda tx: _begun(tx, session_id, values))

    def end_audit(self, audit_id: int, ok: bool) -> bool:
        """How it ended; whether that was written: once, for what was allowed, while its conversation exists."""
        validation.check(validation.WholeNumber, audit_id=audit_id)
        done, now = int(validation.convert(validation.Flag, ok, "ok")), self._clock()
        return self.driver.write("audit", lambda tx: _finished(tx, audit_id, done, now))

    def audit_log(
        self, session_id: str | None = None, since: float | None = None, denied: bool = False, limit: int = 100
    ) -> list[types.Audited]:
        """What tools did or were denied, newest first: in one conversation or all, from a time on."""
        validation.check(validation.WholeNumber, limit=limit)
        when = validation.check_time(since) if since is not None else None
        only = int(validation.convert(validation.Flag, denied, "denied"))

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
