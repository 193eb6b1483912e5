-- name: lock_conversations
-- BEGIN IMMEDIATE has locked the whole file already.
SELECT 1;

-- name: titles_like
-- Titles of an owner that begin with a text, for the number of a branch.
SELECT title FROM conversations WHERE owner = :owner AND substr(title, 1, length(:start)) = :start;

-- name: sessions_list
-- Heads, or every session with `every`, by the time of the last message, newest first. `active_slot` (that time in steps of
-- ten minutes) is indexed: `since` is the oldest slot among the conversations that can be in the result. Conversations
-- without a message have no slot and are always compared.
WITH since AS (
  SELECT min(active_slot) AS slot
    FROM (SELECT c.active_slot FROM conversations c
         WHERE c.active_slot IS NOT NULL AND (:owner IS NULL OR c.owner = :owner) AND (:source IS NULL OR c.source = :source)
           AND (:live IS NULL OR (c.live IS NOT NULL) = :live)
           AND (:folder IS NULL OR c.folder = :folder OR c.folder IS NULL)
         ORDER BY c.active_slot DESC LIMIT :most) latest
)
SELECT s.id, c.id, s.ordinal, coalesce(p.id, c.forked_from), c.owner, s.source, s.model, c.title, s.started_at,
       s.ended_at, s.end_reason, s.first_seq, coalesce(s.last_seq, c.last_seq),
       coalesce((SELECT at FROM messages WHERE id = (c.key << 32) + c.last_seq), s.started_at) AS active_at, c.folder, c.metadata
  FROM (SELECT * FROM conversations WHERE active_slot >= (SELECT slot FROM since)
        UNION ALL SELECT * FROM conversations WHERE active_slot IS NULL) c
  JOIN sessions s ON s.conversation = c.key AND (:every OR s.ordinal = c.head)
  LEFT JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE (:owner IS NULL OR c.owner = :owner) AND (:source IS NULL OR c.source = :source)
   AND (:live IS NULL OR (c.live IS NOT NULL) = :live)
   AND (:folder IS NULL OR c.folder = :folder OR c.folder IS NULL)
 ORDER BY active_at DESC, c.key DESC, s.ordinal DESC
 LIMIT :limit OFFSET :skip;
