-- name: redacted_body
-- The body of a message as bytes: a damaged one is not text.
SELECT CAST(body AS BLOB) FROM messages WHERE id = (:conversation << 32) + :seq;
