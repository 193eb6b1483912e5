-- name: message_insert
-- One message at its seq; a trigger counts it in its conversation.
INSERT INTO messages (id, session, uid, role, at, body, digest)
VALUES ((:conversation << 32) + :seq, :session, :uid, :role, :at, :body, :digest);

-- name: messages_between
-- A stretch of the log, in order. (In a damaged file a body may be of any type; as text it is refused when read.)
SELECT seq, uid, session, role, at, CAST(body AS TEXT) FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto
 ORDER BY id;
