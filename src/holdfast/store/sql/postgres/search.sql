-- name: search_thousands
-- Conversations with messages of their own, summed up by as many as the shift says.
-- (Range by range: as one GROUP BY it would be planned for as many groups as rows, and sorted.)
SELECT range, each.*
  FROM generate_series(0, (SELECT max(key) >> :shift::integer FROM conversations)) range
 CROSS JOIN LATERAL (
   SELECT count(*), sum(key)::bigint, sum(last_seq)::bigint FROM conversations
    WHERE key >= range << :shift::integer AND key < (range + 1) << :shift::integer
      AND last_seq > coalesce(forked_at, 0)) each (conversations, keys, ends)
 WHERE each.conversations > 0;

-- name: search_candidates
-- What candidates are ranked and filtered by; nothing of a message whose text is gone. OFFSET 0 keeps the planner from
-- reading the whole log where it takes the few places for many.
SELECT p::bigint, m.role, m.at, m.owner
  FROM json_array_elements_text(:places::json) p
 CROSS JOIN LATERAL (
       SELECT m.role, m.at, c.owner FROM messages m JOIN conversations c ON c.key = m.conversation
        WHERE m.conversation = p::bigint >> 32 AND m.seq = p::bigint & 4294967295 AND m.redacted_at IS NULL OFFSET 0) m;

-- name: search_messages
-- Messages that were found, with what people may know of them.
SELECT p::bigint, m.session, m.role, m.at, m.body, m.conversation
  FROM json_array_elements_text(:places::json) p
 CROSS JOIN LATERAL (
       SELECT s.id AS session, m.role, m.at, m.body, c.id AS conversation
         FROM messages m JOIN conversations c ON c.key = m.conversation
         JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session
        WHERE m.conversation = p::bigint >> 32 AND m.seq = p::bigint & 4294967295 OFFSET 0) m;
