-- name: ghosts
-- Whole conversations without a message of their own, title or route; branches before what they read.
SELECT c.key, c.id
  FROM conversations c
 WHERE c.last_seq = coalesce(c.forked_at, 0) AND c.title IS NULL AND (c.live IS NULL OR c.created_at < :before)
   AND NOT EXISTS (SELECT 1 FROM routes WHERE conversation = c.key)
 ORDER BY c.key DESC;
