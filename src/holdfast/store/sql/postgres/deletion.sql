-- name: removed_at
-- When something was deleted, redacted or forgotten last; 0 when nothing ever was.
SELECT greatest(coalesce((SELECT max(deleted_at) FROM tombstones), 0), coalesce((SELECT max(redacted_at) FROM messages), 0),
           coalesce((SELECT value::double precision FROM meta WHERE key = 'forgotten_at'), 0));

-- name: redacted_body
-- What a message says that is about to be redacted; nothing when it was. (As bytes: a damaged one is no text.)
SELECT convert_to(body, 'UTF8') FROM messages WHERE conversation = :conversation AND seq = :seq;

-- name: erase_messages
DELETE FROM messages WHERE conversation = :conversation;
