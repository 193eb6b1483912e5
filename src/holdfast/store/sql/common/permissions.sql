-- name: grants_of
-- The grants for all conversations of an owner and for one, oldest first.
SELECT g.id, g.owner, g.rule, c.id, g.given_at, g.given_by
  FROM grants g LEFT JOIN conversations c ON c.key = g.conversation
 WHERE g.owner = :owner AND (g.conversation IS NULL OR g.conversation = :conversation) ORDER BY g.id;

-- name: grant_revoke
DELETE FROM grants WHERE id = :id;

-- name: audit_insert
-- The uid was generated before the first attempt, so that a retry finds its row.
INSERT INTO audit (conversation, uid, call_id, tool, summary, allowed, decided_by, at)
SELECT :conversation, CAST(:uid AS text), CAST(:call_id AS text), CAST(:tool AS text), CAST(:summary AS text), :allowed,
       CAST(:decided_by AS text), CAST(:at AS double precision)
 WHERE NOT EXISTS (SELECT 1 FROM audit WHERE uid = :uid);

-- name: audit_id
SELECT id FROM audit WHERE uid = :uid;

-- name: audit_end
UPDATE audit SET ended_at = :at, ok = :ok WHERE id = :id AND allowed = 1 AND ended_at IS NULL;

-- name: audit_newest
SELECT a.id, c.id, a.call_id, a.tool, a.summary, a.allowed, a.decided_by, a.at, a.ended_at, a.ok
  FROM audit a JOIN conversations c ON c.key = a.conversation
 WHERE (CAST(:conversation AS bigint) IS NULL OR a.conversation = :conversation) AND (CAST(:since AS double precision) IS NULL OR a.at >= :since)
   AND (:denied = 0 OR a.allowed = 0) ORDER BY a.id DESC LIMIT :limit;

-- name: audit_redact
UPDATE audit SET summary = '', redacted_at = :at
 WHERE conversation = :conversation AND call_id = :call_id AND redacted_at IS NULL;

-- name: grant_insert
-- Do nothing if the grant exists.
INSERT INTO grants (owner, rule, conversation, given_at, given_by) SELECT CAST(:owner AS text), CAST(:rule AS text), CAST(:conversation AS bigint), CAST(:at AS double precision), CAST(:given_by AS text)
 WHERE NOT EXISTS (SELECT 1 FROM grants WHERE owner = :owner AND rule = :rule AND conversation IS NOT DISTINCT FROM CAST(:conversation AS bigint));

-- name: grant_get
SELECT g.id, g.owner, g.rule, c.id, g.given_at, g.given_by
  FROM grants g LEFT JOIN conversations c ON c.key = g.conversation
 WHERE g.owner = :owner AND g.rule = :rule AND g.conversation IS NOT DISTINCT FROM CAST(:conversation AS bigint);
