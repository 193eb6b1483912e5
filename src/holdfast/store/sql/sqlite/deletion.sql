-- name: redacted_body
-- What a message says that is about to be redacted; nothing when it was. (As bytes: a damaged one is no text.)
SELECT CAST(body AS BLOB) FROM messages WHERE id = (:conversation << 32) + :seq;
