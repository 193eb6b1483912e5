-- name: redacted_body
-- The body of a message as bytes: a damaged one is not text.
SELECT convert_to(body, 'UTF8') FROM messages WHERE conversation = :conversation AND seq = :seq;
