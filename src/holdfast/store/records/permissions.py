"""Permission grants, and the audit log of tool calls.

Grants are given and revoked, never changed. A tool call is logged before it runs, with the decision; its end is added
once. Redacting the message with the call clears the summary of the entry. Deleting the conversation deletes the entry.
"""

from __future__ import annotations

from holdfast import errors, types
from holdfast.store import conversation_row, message_codec, validation
from holdfast.store.driver import Facet, Tx, read_struct, struct_from_row

MAX_TEXT = 4_000
MAX_RULE = 4_000


class PermissionRecords(Facet):
    """`db.permissions`: granted rules, and the audit log of tool calls."""

    def grant(self, owner: str, rule: str, *, session_id: str | None = None, by: str) -> types.Grant:
        """Grant a rule in one conversation, or in all conversations of the owner.

        The same rule again returns the same grant. The store does not interpret rules.
        """
        granted = {"owner": validation.check_owner(owner), "rule": validation.check_text(rule, "rule", MAX_RULE)}
        given_by, now = clip(by, "by"), self._clock()

        def step(tx: Tx) -> types.Grant:
            key = conversation_row.lock(tx, session_id).key if session_id is not None else None
            tx.run("grant_insert", conversation=key, given_by=given_by, at=now, **granted)
            found = read_struct(tx, types.Grant, "grant_get", conversation=key, **granted)
            assert found is not None  # there, or just written
            return found

        return self.driver.write("grant", step)

    def grants(self, owner: str, session_id: str | None = None) -> list[types.Grant]:
        """Return the grants for all conversations of the owner and for this one, oldest first."""
        validation.check_owner(owner)
        rows = self.driver.read(lambda tx: conversation_row.query_one_or_all(tx, "grants_of", session_id, owner=owner))
        return [struct_from_row(types.Grant, row) for row in rows]

    def revoke(self, grant_id: int) -> bool:
        """Revoke a grant; return whether it existed."""
        validation.check(validation.WholeNumber, grant_id=grant_id)
        return self.driver.write("grant", lambda tx: tx.run("grant_revoke", id=grant_id) == 1)

    def begin_audit(self, session_id: str, call_id: str, tool: str, summary: str, allowed: bool, by: str) -> int:
        """Log a tool call that is about to run or was denied, and the decider; return the id for `end_audit`.

        Texts are cut to 4,000 characters.
        """
        values = {
            "uid": message_codec.generate_uid(),
            "call_id": clip(call_id, "call_id"),
            "tool": clip(tool, "tool"),
            "summary": clip(summary, "summary"),
            "allowed": int(validation.convert(validation.Flag, allowed, "allowed")),
            "decided_by": clip(by, "by"),
            "at": self._clock(),
        }

        def step(tx: Tx) -> int:
            tx.run("audit_insert", conversation=conversation_row.lock(tx, session_id).key, **values)
            (audit_id,) = tx.one("audit_id", uid=values["uid"]) or (0,)  # written by this attempt or an earlier one
            return int(audit_id)

        return self.driver.write("audit", step)

    def end_audit(self, audit_id: int, ok: bool) -> bool:
        """Log the end of an allowed call; return False if it has ended already or its conversation was deleted."""
        validation.check(validation.WholeNumber, audit_id=audit_id)
        values = {"id": audit_id, "ok": int(validation.convert(validation.Flag, ok, "ok")), "at": self._clock()}
        return self.driver.write("audit", lambda tx: tx.run("audit_end", **values) == 1)

    def audit_log(
        self, session_id: str | None = None, since: float | None = None, denied: bool = False, limit: int = 100
    ) -> list[types.Audited]:
        """Return the logged tool calls, newest first; `denied` restricts them to denied ones."""
        validation.check(validation.WholeNumber, limit=limit)
        values = {
            "since": validation.check_time(since) if since is not None else None,
            "denied": int(validation.convert(validation.Flag, denied, "denied")),
            "limit": limit,
        }
        rows = self.driver.read(lambda tx: conversation_row.query_one_or_all(tx, "audit_newest", session_id, **values))
        return [
            struct_from_row(types.Audited, (*head, bool(allowed), by, at, ended_at, None if ok is None else bool(ok)))
            for *head, allowed, by, at, ended_at, ok in rows
        ]


def clip(text: object, name: str) -> str:
    """Shorten and repair a text, so that it can be logged: a call that cannot be logged does not run."""
    if not isinstance(text, str):
        raise errors.InvalidArgument(f"`{name}` must be text.", parameter=name)
    short = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return short.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
