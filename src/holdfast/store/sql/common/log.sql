-- name: message_by_uid
SELECT m.seq, s.id, m.role, m.body, m.redacted_at IS NOT NULL
  FROM messages m JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session
 WHERE m.conversation = :conversation AND m.uid = :uid;

-- name: origin_of
-- The origin of a branch, the fork point, and the compaction in force there.
SELECT origin, coalesce(forked_at, 0), forked_epoch FROM conversations WHERE key = :key;

-- name: hides_in_force
-- The ranges that are hidden from the context.
SELECT from_seq, to_seq FROM hides WHERE conversation = :conversation AND shown_epoch IS NULL ORDER BY from_seq;

-- name: hides_of
-- Every hide, including those that were shown again.
SELECT epoch, from_seq, to_seq, shown_epoch FROM hides WHERE conversation = :conversation ORDER BY epoch, from_seq;

-- name: hide_insert
INSERT INTO hides (conversation, epoch, from_seq, to_seq) VALUES (:conversation, :epoch, :from_seq, :to_seq);

-- name: hide_shown
UPDATE hides SET shown_epoch = :shown_epoch
 WHERE conversation = :conversation AND epoch = :epoch AND from_seq = :from_seq AND shown_epoch IS NULL;

-- name: message_redact
-- Remove the body of a message; its number stays.
UPDATE messages SET body = '', digest = :digest, redacted_at = :at
 WHERE message_at(messages, :conversation, :seq) AND redacted_at IS NULL;

-- name: message_identity
-- The fields that a digest covers in addition to the body.
SELECT uid, role, redacted_at IS NOT NULL FROM messages WHERE message_at(messages, :conversation, :seq);
