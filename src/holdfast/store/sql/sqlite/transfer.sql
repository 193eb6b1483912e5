-- name: export_reach
-- Find the last seq of a batch of at most :room bytes, or of one message that is larger.
SELECT coalesce(max(seq), :after + 1)
  FROM (SELECT seq, sum(octet_length(body)) OVER (ORDER BY id) AS size FROM messages
         WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto
         ORDER BY id LIMIT :limit)
 WHERE size <= :room;

-- name: export_messages
-- Read a batch of messages.
SELECT seq, session, uid, role, at, body, redacted_at, digest FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto
 ORDER BY id;

-- name: import_message
-- Insert a message in its final state; a trigger counts it in its conversation.
INSERT INTO messages (id, session, uid, role, at, body, digest, redacted_at)
VALUES ((:conversation << 32) + :seq, :session, :uid, :role, :at, :body, :digest, :redacted_at);
