-- name: grant_insert
-- The same rule in the same place is one grant.
INSERT INTO grants (owner, rule, conversation, given_at, given_by) SELECT %(owner)s::text, %(rule)s::text, %(conversation)s::bigint, %(at)s::double precision, %(given_by)s::text
 WHERE NOT EXISTS (SELECT 1 FROM grants WHERE owner = %(owner)s AND rule = %(rule)s AND conversation IS NOT DISTINCT FROM %(conversation)s::bigint);

-- name: grant_get
SELECT g.id, g.owner, g.rule, c.id, g.given_at, g.given_by
  FROM grants g LEFT JOIN conversations c ON c.key = g.conversation
 WHERE g.owner = %(owner)s AND g.rule = %(rule)s AND g.conversation IS NOT DISTINCT FROM %(conversation)s::bigint;

-- name: grants_of
-- Those that hold everywhere, and those of one conversation, oldest first.
SELECT g.id, g.owner, g.rule, c.id, g.given_at, g.given_by
  FROM grants g LEFT JOIN conversations c ON c.key = g.conversation
 WHERE g.owner = %(owner)s AND (g.conversation IS NULL OR g.conversation = %(conversation)s) ORDER BY g.id;

-- name: grant_revoke
DELETE FROM grants WHERE id = %(id)s;

-- name: audit_insert
-- The uid is minted before the first attempt: a repeated one finds its row.
INSERT INTO audit (conversation, uid, call_id, tool, summary, allowed, decided_by, at)
SELECT %(conversation)s, %(uid)s::text, %(call_id)s::text, %(tool)s::text, %(summary)s::text, %(allowed)s,
       %(decided_by)s::text, %(at)s::double precision
 WHERE NOT EXISTS (SELECT 1 FROM audit WHERE uid = %(uid)s);

-- name: audit_id
SELECT id FROM audit WHERE uid = %(uid)s;

-- name: audit_finish
UPDATE audit SET ended_at = %(at)s, ok = %(ok)s WHERE id = %(id)s AND allowed = 1 AND ended_at IS NULL;

-- name: audit_newest
SELECT a.id, c.id, a.call_id, a.tool, a.summary, a.allowed, a.decided_by, a.at, a.ended_at, a.ok
  FROM audit a JOIN conversations c ON c.key = a.conversation
 WHERE (%(conversation)s::bigint IS NULL OR a.conversation = %(conversation)s) AND (%(since)s::double precision IS NULL OR a.at >= %(since)s)
   AND (%(denied)s = 0 OR a.allowed = 0) ORDER BY a.id DESC LIMIT %(limit)s;

-- name: audit_redact
-- What was done by a call goes with the message that called.
UPDATE audit SET summary = '', redacted_at = %(at)s
 WHERE conversation = %(conversation)s AND call_id = %(call_id)s AND redacted_at IS NULL;
