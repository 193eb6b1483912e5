-- name: search_range_counts
-- Count the messages and the redacted messages of a range.
SELECT count(*), count(redacted_at) FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto;

-- name: search_candidates
-- The columns that candidates are ranked and filtered by, without redacted messages.
SELECT m.id, m.role, m.at, c.owner
  FROM json_each(:places) p
 CROSS JOIN messages m ON m.id = p.value
  JOIN conversations c ON c.key = m.conversation
 WHERE m.redacted_at IS NULL;

-- name: search_messages
-- The messages of hits.
SELECT m.id, s.id, m.role, m.at, m.body, c.id
  FROM json_each(:places) p
 CROSS JOIN messages m ON m.id = p.value
  JOIN conversations c ON c.key = m.conversation
  JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session;
