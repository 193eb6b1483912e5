-- name: redacted_body
-- What a message says that is about to be redacted; nothing when it was. (As bytes: a damaged one is no text.)
SELECT convert_to(body, 'UTF8') FROM messages WHERE conversation = :conversation AND seq = :seq;
