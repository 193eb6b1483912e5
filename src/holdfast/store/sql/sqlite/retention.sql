-- name: prune_candidates
-- Every conversation, the longest unused first: when it was last active, its size, whether something needs it.
SELECT c.key, c.id, c.title, c.last_seq - coalesce(c.forked_at, 0),
       (SELECT coalesce(sum(octet_length(body)), 0) FROM messages
         WHERE id > c.key << 32 AND id <= (c.key << 32) + 4294967295),
       coalesce((SELECT at FROM messages WHERE id = (c.key << 32) + c.last_seq), h.started_at) AS active_at,
       EXISTS (SELECT 1 FROM routes WHERE conversation = c.key),
       EXISTS (SELECT 1 FROM conversations WHERE origin = c.key)
  FROM conversations c JOIN sessions h ON h.conversation = c.key AND h.ordinal = c.head
 WHERE (:owner IS NULL OR c.owner = :owner) AND (:source IS NULL OR c.source = :source)
 ORDER BY active_at, c.key;
