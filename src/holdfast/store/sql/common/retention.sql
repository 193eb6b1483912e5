-- name: prune_needed
-- Return whether a conversation has a route or a branch.
SELECT EXISTS (SELECT 1 FROM routes WHERE conversation = :conversation),
       EXISTS (SELECT 1 FROM conversations WHERE origin = :conversation);

-- name: prune_candidates
-- List conversations, the longest unused first, with last activity, size and whether a route or branch needs it.
SELECT c.key, c.id, c.title, c.last_seq - coalesce(c.forked_at, 0),
       (SELECT CAST(coalesce(sum(octet_length(body)), 0) AS bigint) FROM messages WHERE messages_of(messages, c.key)),
       coalesce((SELECT at FROM messages m WHERE message_at(m, c.key, c.last_seq)), h.started_at) AS active_at,
       EXISTS (SELECT 1 FROM routes WHERE conversation = c.key),
       EXISTS (SELECT 1 FROM conversations WHERE origin = c.key)
  FROM conversations c JOIN sessions h ON h.conversation = c.key AND h.ordinal = c.head
 WHERE (CAST(:owner AS text) IS NULL OR c.owner = :owner) AND (CAST(:source AS text) IS NULL OR c.source = :source)
 ORDER BY active_at, c.key;
