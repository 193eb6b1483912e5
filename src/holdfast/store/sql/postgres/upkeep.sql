-- name: orphan_candidates
-- Live continuations of compacted sessions, with messages, that nothing has touched for long.
SELECT s.id
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation AND c.head = s.ordinal
  JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE s.live = 1 AND p.end_reason = 'compression' AND s.started_at < %(before)s AND c.last_seq >= s.first_seq
   AND (SELECT at FROM messages WHERE conversation = c.key AND seq = c.last_seq) < %(before)s
   AND NOT EXISTS (SELECT 1 FROM routes WHERE conversation = c.key)
 ORDER BY c.key;

-- name: ghosts
-- Whole conversations without a message of their own, title or route; branches before what they read.
SELECT c.key, c.id
  FROM conversations c
 WHERE c.last_seq = coalesce(c.forked_at, 0) AND c.title IS NULL AND (c.live IS NULL OR c.created_at < %(before)s)
   AND NOT EXISTS (SELECT 1 FROM routes WHERE conversation = c.key)
 ORDER BY c.key DESC;

-- name: scrub_noted
-- How often and when what was removed was taken out of the files. Counted, since a clock may stand still.
INSERT INTO meta (key, value) VALUES ('scrubs', '1'), ('scrubbed_at', %(at)s)
ON CONFLICT (key) DO UPDATE
   SET value = CASE meta.key WHEN 'scrubs' THEN (meta.value::bigint + 1)::text ELSE excluded.value END;
