-- name: compaction_at
-- One compaction.
SELECT c.epoch, c.base_epoch, s.id, c.cut_seq, c.seen_seq, c.token, c.at, c.body
  FROM compactions c JOIN sessions s ON s.conversation = c.conversation AND s.ordinal = c.session
 WHERE c.conversation = :conversation AND c.epoch = :epoch;

-- name: compactions_of
-- Every compaction of a conversation, in order.
SELECT c.epoch, c.base_epoch, s.id, c.cut_seq, c.seen_seq, c.token, c.at, c.body
  FROM compactions c JOIN sessions s ON s.conversation = c.conversation AND s.ordinal = c.session
 WHERE c.conversation = :conversation ORDER BY c.epoch;

-- name: compaction_insert
-- Everything up to cut_seq is represented by this body.
INSERT INTO compactions (conversation, epoch, base_epoch, session, cut_seq, seen_seq, token, body, at, digest)
VALUES (:conversation, :epoch, :base_epoch, :session, :cut_seq, :seen_seq, :token, :body, :at, :digest);

-- name: compaction_of_session
-- The compaction that opened a session.
SELECT epoch, cut_seq, seen_seq, token FROM compactions WHERE conversation = :conversation AND session = :session;

-- name: compactions_seeing
-- Compactions whose summary was made from a message.
SELECT epoch, body FROM compactions
 WHERE conversation = :conversation AND seen_seq >= :seq ORDER BY epoch;

-- name: compaction_redact
-- A summary that may hold a redacted text goes; what it pinned stays.
UPDATE compactions SET body = :body, redacted_at = :at, digest = :digest
 WHERE conversation = :conversation AND epoch = :epoch;
