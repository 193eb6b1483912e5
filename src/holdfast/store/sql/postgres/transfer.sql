-- name: export_reach
-- The last seq of a stretch that is no more than :room bytes long, or of its first message alone.
SELECT coalesce(max(seq), :after + 1)
  FROM (SELECT seq, sum(octet_length(body)) OVER (ORDER BY seq) AS size FROM messages
         WHERE conversation = :conversation AND seq > :after AND seq <= :upto
         ORDER BY seq LIMIT :limit) AS stretch
 WHERE size <= :room;

-- name: export_messages
-- A stretch of the log with all there is of it.
SELECT seq, session, uid, role, at, body, redacted_at, digest FROM messages
 WHERE conversation = :conversation AND seq > :after AND seq <= :upto
 ORDER BY seq;

-- name: import_message
-- A message as it stands in the end; a trigger counts it in its conversation.
INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest, redacted_at)
VALUES (:conversation, :seq, :session, :uid, :role, :at, :body, :digest, :redacted_at);
