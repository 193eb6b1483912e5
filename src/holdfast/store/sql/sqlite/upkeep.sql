-- name: orphan_candidates
-- Live continuations of compacted sessions, with messages, that nothing has touched for long.
SELECT s.id
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation AND c.head = s.ordinal
  JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE s.live = 1 AND p.end_reason = 'compression' AND s.started_at < :before AND c.last_seq >= s.first_seq
   AND (SELECT at FROM messages WHERE id = (c.key << 32) + c.last_seq) < :before
   AND NOT EXISTS (SELECT 1 FROM routes WHERE conversation = c.key)
 ORDER BY c.key;
