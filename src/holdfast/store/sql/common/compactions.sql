-- name: compaction_get
SELECT c.epoch, c.base_epoch, s.id, c.cut_seq, c.seen_seq, c.token, c.at, c.body
  FROM compactions c JOIN sessions s ON s.conversation = c.conversation AND s.ordinal = c.session
 WHERE c.conversation = :conversation AND c.epoch = :epoch;

-- name: compaction_in_force
-- The current compaction of a conversation itself, not one that it inherits.
SELECT c.epoch, c.base_epoch, s.id, c.cut_seq, c.seen_seq, c.token, c.at, c.body
  FROM conversations v
  JOIN compactions c ON c.conversation = v.key AND c.epoch = v.compaction_epoch
  JOIN sessions s ON s.conversation = c.conversation AND s.ordinal = c.session
 WHERE v.id = :id;

-- name: compactions_of
SELECT c.epoch, c.base_epoch, s.id, c.cut_seq, c.seen_seq, c.token, c.at, c.body
  FROM compactions c JOIN sessions s ON s.conversation = c.conversation AND s.ordinal = c.session
 WHERE c.conversation = :conversation ORDER BY c.epoch;

-- name: compaction_insert
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
-- Replace a summary that may contain a redacted text; the body keeps its pinned messages.
UPDATE compactions SET body = :body, redacted_at = :at, digest = :digest
 WHERE conversation = :conversation AND epoch = :epoch;
