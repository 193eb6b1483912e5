-- name: search_group_sums
-- Sums over groups of conversations that have messages of their own; 2^shift keys per group.
-- (Group by group: PostgreSQL would plan a GROUP BY for as many groups as rows, and sort them.)
SELECT range, each.*
  FROM generate_series(0, (SELECT max(key) >> :shift::integer FROM conversations)) range
 CROSS JOIN LATERAL (
   SELECT count(*), sum(key)::bigint, sum(last_seq)::bigint FROM conversations
    WHERE key >= range << :shift::integer AND key < (range + 1) << :shift::integer
      AND last_seq > coalesce(forked_at, 0)) each (conversations, keys, ends)
 WHERE each.conversations > 0;

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
