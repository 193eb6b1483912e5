-- name: search_thousands
-- Conversations with messages of their own, summed up by as many as the shift says.
SELECT key >> :shift, count(*), sum(key), sum(last_seq)
  FROM conversations WHERE last_seq > coalesce(forked_at, 0) GROUP BY 1;

-- name: search_candidates
-- What candidates are ranked and filtered by; nothing of a message whose text is gone.
SELECT m.id, m.role, m.at, c.owner
  FROM json_each(:places) p
 CROSS JOIN messages m ON m.id = p.value
  JOIN conversations c ON c.key = m.conversation
 WHERE m.redacted_at IS NULL;

-- name: search_messages
-- Messages that were found, with what people may know of them.
SELECT m.id, s.id, m.role, m.at, m.body, c.id
  FROM json_each(:places) p
 CROSS JOIN messages m ON m.id = p.value
  JOIN conversations c ON c.key = m.conversation
  JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session;
