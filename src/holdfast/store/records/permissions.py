"""Permission grants, and the audit log of tool calls.

Grants are given and revoked, never changed. A tool call is logged before it runs, with the decision; its end is added
once. Redacting the message with the call clears the summary of the entry. Deleting the conversation deletes the entry.
"""

from __future__ import annotations

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Row, Tx
from holdfast.store.facet import Facet

MAX_TEXT = 4_000
MAX_RULE = 4_000


class Permissions(Facet):
    """`db.permissions`: rules that were granted, and the audit of what tools did."""

    # --- grants --------------------------------------------------------------------------------------

    def grant(self, owner: str, rule: str, *, session_id: str | None = None, by: str) -> types.Grant:
        """Grant a rule in one conversation, or in all conversations of the owner.

        The same rule again returns the same grant. The store does not interpret rules.
        """
        who, said = validation.check_owner(owner), validation.check_text(rule, "rule", MAX_RULE)
        giver, now = clipped(by), self._clock()
        return self.driver.write("grant", lambda tx: _grant(tx, who, said, session_id, giver, now))

    def grants(self, owner: str, session_id: str | None = None) -> list[types.Grant]:
        """Return the grants for all conversations of the owner and for this one, oldest first."""
        who = validation.check_owner(owner)

        def look(tx: Tx) -> list[types.Grant]:
            key = conversation_row.look(tx, session_id).key if session_id is not None else None
            return [_granted(row) for row in tx.all("grants_of", owner=who, conversation=key)]

        return self.driver.read(look)

    def revoke(self, grant_id: int) -> bool:
        """Revoke a grant; return whether it existed."""
        validation.check(validation.WholeNumber, grant_id=grant_id)
        return self.driver.write("grant", lambda tx: tx.run("grant_revoke", id=grant_id) == 1)

    # --- audit log -----------------------------------------------------------------------------------

    def begin_audit(self, session_id: str, call_id: str, tool: str, summary: str, allowed: bool, by: str) -> int:
        """Log a tool call that is about to run or was denied, and who decided; return the id for `end_audit`.

        Texts are cut to 4,000 characters.
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
        return self.driver.write("audit", lambda tx: _begin_audit(tx, session_id, values))

    def end_audit(self, audit_id: int, ok: bool) -> bool:
        """Log the end of an allowed call; return False if it has ended already or its conversation was deleted."""
        validation.check(validation.WholeNumber, audit_id=audit_id)
        done, now = int(validation.convert(validation.Flag, ok, "ok")), self._clock()
        return self.driver.write("audit", lambda tx: tx.run("audit_finish", id=audit_id, ok=done, at=now) == 1)

    def audit_log(
        self, session_id: str | None = None, since: float | None = None, denied: bool = False, limit: int = 100
    ) -> list[types.Audited]:
        """Return the logged tool calls, newest first; `denied` restricts them to denied ones."""
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


def _begin_audit(tx: Tx, session_id: str, values: dict[str, object]) -> int:
    tx.run("audit_insert", conversation=conversation_row.lock(tx, session_id).key, **values)
    row = tx.one("audit_id", uid=values["uid"])
    assert row is not None  # written by this attempt or an earlier one
    return int(row[0])


def clipped(text: object) -> str:
    """Cut and repair a text, so that every text can be logged: a call that cannot be logged does not run."""
    if not isinstance(text, str):
        raise errors.InvalidArgument("`tool`, `summary`, `call_id` and `by` must be text.")
    short = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return short.encode("utf-8", "replace").decode()


def _granted(row: Row) -> types.Grant:
    return types.Grant(**dict(zip(types.Grant.__struct_fields__, row, strict=True)))


def _audited(row: Row) -> types.Audited:
    values = dict(zip(types.Audited.__struct_fields__, row, strict=True))
    ok = values["ok"]
    return types.Audited(**{**values, "allowed": bool(values["allowed"]), "ok": None if ok is None else bool(ok)})
