-- name: export_reach
-- The last seq of a stretch that is no more than :room bytes long, or of its first message alone.
SELECT coalesce(max(seq), :after + 1)
  FROM (SELECT seq, sum(octet_length(body)) OVER (ORDER BY id) AS size FROM messages
         WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto
         ORDER BY id LIMIT :limit)
 WHERE size <= :room;

-- name: export_messages
-- A stretch of the log with all there is of it.
SELECT seq, session, uid, role, at, body, redacted_at, digest FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto
 ORDER BY id;

-- name: import_message
-- A message as it stands in the end; a trigger counts it in its conversation.
INSERT INTO messages (id, session, uid, role, at, body, digest, redacted_at)
VALUES ((:conversation << 32) + :seq, :session, :uid, :role, :at, :body, :digest, :redacted_at);
