-- name: commands_of
-- The processes of a conversation whose commands are not redacted.
SELECT id, command FROM processes WHERE conversation = :conversation AND command <> '';

-- name: titles_of_branches
-- The titles of a conversation and of its branches at any depth.
WITH RECURSIVE family (key) AS (
  SELECT CAST(:conversation AS bigint)
   UNION
  SELECT c.key FROM family f
    JOIN sessions s ON s.conversation = f.key
    JOIN conversations c ON c.forked_from = s.id
)
SELECT c.key, c.title FROM family f JOIN conversations c ON c.key = f.key WHERE c.title IS NOT NULL ORDER BY c.key;

-- name: tombstone_insert
-- Reserve the ids of a conversation that is being deleted.
INSERT INTO tombstones (id, deleted_at) SELECT id, CAST(:at AS double precision) FROM sessions WHERE conversation = :conversation;

-- name: routes_unbind
UPDATE routes SET conversation = NULL, version = version + 1, updated_at = :at WHERE conversation = :conversation;

-- name: erase_conversation
DELETE FROM conversations WHERE key = :conversation;

-- name: erase_compactions
DELETE FROM compactions WHERE conversation = :conversation;

-- name: erase_hides
DELETE FROM hides WHERE conversation = :conversation;

-- name: erase_leases
DELETE FROM leases WHERE conversation = :conversation;

-- name: erase_sessions
DELETE FROM sessions WHERE conversation = :conversation;

-- name: erase_messages
DELETE FROM messages WHERE messages_of(messages, :conversation);

-- name: removed_at
-- The time of the last deletion, redaction or forgotten memory; 0 if there is none.
SELECT coalesce(max(at), 0)
  FROM (SELECT max(deleted_at) AS at FROM tombstones
         UNION ALL SELECT max(redacted_at) FROM messages WHERE redacted_at IS NOT NULL
         UNION ALL SELECT CAST(value AS double precision) FROM meta WHERE key = 'forgotten_at') removals;
