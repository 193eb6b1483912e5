-- name: lock_conversations
-- Lock several conversations in the order of their keys, so that two transactions cannot deadlock.
SELECT key FROM conversations WHERE key IN (SELECT conversation FROM sessions WHERE id = ANY(:ids))
 ORDER BY key FOR UPDATE;

-- name: titles_like
-- Titles of an owner that begin with a text, for the number of a branch.
SELECT title FROM conversations WHERE owner = :owner AND starts_with(title, :start);

-- name: sessions_list
-- Heads, or every session with `every`, by the time of the last message, newest first. `active_slot` (that time in steps of
-- ten minutes) is indexed: `since` is the oldest slot among the conversations that can be in the result. Conversations
-- without a message have no slot and are always compared.
-- OFFSET 0 keeps the planner from joining all sessions before it selects the conversations.
WITH since AS (
  SELECT min(active_slot) AS slot
    FROM (SELECT c.active_slot FROM conversations c
         WHERE c.active_slot IS NOT NULL AND (:owner::text IS NULL OR c.owner = :owner)
           AND (:source::text IS NULL OR c.source = :source)
           AND (:live::boolean IS NULL OR (c.live IS NOT NULL) = :live)
           AND (:folder::text IS NULL OR c.folder = :folder OR c.folder IS NULL)
         ORDER BY c.active_slot DESC LIMIT :most) latest
)
SELECT s.id, c.id, s.ordinal,
       coalesce((SELECT id FROM sessions WHERE conversation = c.key AND ordinal = s.parent), c.forked_from),
       c.owner, s.source, s.model, c.title, s.started_at, s.ended_at, s.end_reason, s.first_seq, coalesce(s.last_seq, c.last_seq),
       coalesce((SELECT at FROM messages WHERE conversation = c.key AND seq = c.last_seq), s.started_at) AS active_at, c.folder, c.metadata
  FROM (SELECT * FROM conversations WHERE active_slot >= (SELECT slot FROM since)
        UNION ALL SELECT * FROM conversations WHERE active_slot IS NULL) c
 CROSS JOIN LATERAL (
   SELECT * FROM sessions WHERE conversation = c.key AND (:every::boolean OR ordinal = c.head) OFFSET 0) s
 WHERE (:owner::text IS NULL OR c.owner = :owner) AND (:source::text IS NULL OR c.source = :source)
   AND (:live::boolean IS NULL OR (c.live IS NOT NULL) = :live)
   AND (:folder::text IS NULL OR c.folder = :folder OR c.folder IS NULL)
 ORDER BY active_at DESC, c.key DESC, s.ordinal DESC
 LIMIT :limit OFFSET :skip;

-- name: lock_conversation
-- A function (functions.sql), because a statement that waits for a lock would return rows as of its own start.
SELECT * FROM lock_conversation(:id);
