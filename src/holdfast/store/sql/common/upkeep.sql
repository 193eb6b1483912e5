-- name: empty_conversations
-- Conversations without messages of their own, title and route; branches before their origins.
SELECT c.key, c.id
  FROM conversations c
 WHERE c.last_seq = coalesce(c.forked_at, 0) AND c.title IS NULL AND (c.live IS NULL OR c.created_at < :before)
   AND NOT EXISTS (SELECT 1 FROM routes WHERE conversation = c.key)
 ORDER BY c.key DESC;

-- name: orphan_candidates
-- Live continuations of compacted sessions with messages, none of them newer than `before`.
SELECT s.id
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation AND c.head = s.ordinal
  JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE s.live = 1 AND p.end_reason = 'compression' AND s.started_at < :before AND c.last_seq >= s.first_seq
   AND (SELECT at FROM messages m WHERE message_at(m, c.key, c.last_seq)) < :before
   AND NOT EXISTS (SELECT 1 FROM routes WHERE conversation = c.key)
 ORDER BY c.key;
