-- name: orphan_candidates
-- Live continuations of compacted sessions, with messages, that nothing has touched for long.
SELECT s.id
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation AND c.head = s.ordinal
  JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE s.live = 1 AND p.end_reason = 'compression' AND s.started_at < :before AND c.last_seq >= s.first_seq
   AND (SELECT at FROM messages WHERE conversation = c.key AND seq = c.last_seq) < :before
   AND NOT EXISTS (SELECT 1 FROM routes WHERE conversation = c.key)
 ORDER BY c.key;

-- name: scrub_noted
-- How often and when what was removed was taken out of the files. Counted, since a clock may stand still.
INSERT INTO meta (key, value) VALUES ('scrubs', '1'), ('scrubbed_at', :at)
ON CONFLICT (key) DO UPDATE
   SET value = CASE meta.key WHEN 'scrubs' THEN (meta.value::bigint + 1)::text ELSE excluded.value END;
