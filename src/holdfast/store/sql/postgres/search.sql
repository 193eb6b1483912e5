-- name: search_range_counts
-- Count the messages and the redacted messages of a range.
SELECT count(*), count(redacted_at) FROM messages
 WHERE conversation = :conversation AND seq > :after AND seq <= :upto;

-- name: search_candidates
-- The columns that candidates are ranked and filtered by, without redacted messages. OFFSET 0 keeps the planner from
-- reading the whole log when it overestimates the number of places.
SELECT p, m.role, m.at, m.owner
  FROM unnest(translate(:places, '[]', '{}')::bigint[]) p
 CROSS JOIN LATERAL (
       SELECT m.role, m.at, c.owner FROM messages m JOIN conversations c ON c.key = m.conversation
        WHERE m.conversation = p >> 32 AND m.seq = p & 4294967295 AND m.redacted_at IS NULL OFFSET 0) m;

-- name: search_messages
-- The messages of hits.
SELECT p, m.session, m.role, m.at, m.body, m.conversation
  FROM unnest(translate(:places, '[]', '{}')::bigint[]) p
 CROSS JOIN LATERAL (
       SELECT s.id AS session, m.role, m.at, m.body, c.id AS conversation
         FROM messages m JOIN conversations c ON c.key = m.conversation
         JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session
        WHERE m.conversation = p >> 32 AND m.seq = p & 4294967295 OFFSET 0) m;
