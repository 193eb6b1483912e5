-- name: message_insert
-- A trigger increments last_seq of the conversation.
INSERT INTO messages (id, session, uid, role, at, body, digest)
VALUES ((:conversation << 32) + :seq, :session, :uid, :role, :at, :body, :digest);

-- name: messages_between
-- A range of the log, in order. In a damaged file a body may be of any type; the cast lets the decoder report it.
SELECT seq, uid, session, role, at, CAST(body AS TEXT) FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto
 ORDER BY id;
