-- name: removed_at
-- When something was deleted, redacted or forgotten last; 0 when nothing ever was.
SELECT max(coalesce((SELECT max(deleted_at) FROM tombstones), 0), coalesce((SELECT max(redacted_at) FROM messages), 0),
           coalesce((SELECT CAST(value AS REAL) FROM meta WHERE key = 'forgotten_at'), 0));

-- name: redacted_body
-- What a message says that is about to be redacted; nothing when it was. (As bytes: a damaged one is no text.)
SELECT CAST(body AS BLOB) FROM messages WHERE id = (:conversation << 32) + :seq;

-- name: erase_messages
DELETE FROM messages WHERE id > :conversation << 32 AND id <= (:conversation << 32) + 4294967295;
