-- name: removed_at
-- When something was deleted, redacted or forgotten last; 0 when nothing ever was.
SELECT greatest(coalesce((SELECT max(deleted_at) FROM tombstones), 0), coalesce((SELECT max(redacted_at) FROM messages), 0),
           coalesce((SELECT value::double precision FROM meta WHERE key = 'forgotten_at'), 0));

-- name: redacted_body
-- What a message says that is about to be redacted; nothing when it was. (As bytes: a damaged one is no text.)
SELECT convert_to(body, 'UTF8') FROM messages WHERE conversation = %(conversation)s AND seq = %(seq)s;

-- name: commands_of
-- The processes of a conversation whose commands are still known.
SELECT id, command FROM processes WHERE conversation = %(conversation)s AND command <> '';

-- name: titles_of_branches
-- The titles of a conversation and of all that came from it, at any depth.
WITH RECURSIVE family (key) AS (
  SELECT %(conversation)s::bigint
   UNION
  SELECT c.key FROM family f
    JOIN sessions s ON s.conversation = f.key
    JOIN conversations c ON c.forked_from = s.id
)
SELECT c.key, c.title FROM family f JOIN conversations c ON c.key = f.key WHERE c.title IS NOT NULL ORDER BY c.key;

-- name: tombstone_insert
-- The ids of a conversation about to go are never used again.
INSERT INTO tombstones (id, deleted_at) SELECT id, %(at)s::double precision FROM sessions WHERE conversation = %(conversation)s;

-- name: routes_unbind
-- Routes of a conversation name nothing until the next message.
UPDATE routes SET conversation = NULL, version = version + 1, updated_at = %(at)s WHERE conversation = %(conversation)s;

-- name: erase_conversation
DELETE FROM conversations WHERE key = %(conversation)s;

-- name: erase_messages
DELETE FROM messages WHERE conversation = %(conversation)s;

-- name: erase_compactions
DELETE FROM compactions WHERE conversation = %(conversation)s;

-- name: erase_hides
DELETE FROM hides WHERE conversation = %(conversation)s;

-- name: erase_leases
DELETE FROM leases WHERE conversation = %(conversation)s;

-- name: erase_sessions
DELETE FROM sessions WHERE conversation = %(conversation)s;
