-- name: compaction_at
-- One compaction.
SELECT c.epoch, c.base_epoch, s.id, c.cut_seq, c.seen_seq, c.token, c.at, c.body
  FROM compactions c JOIN sessions s ON s.conversation = c.conversation AND s.ordinal = c.session
 WHERE c.conversation = %(conversation)s AND c.epoch = %(epoch)s;

-- name: compactions_of
-- Every compaction of a conversation, in order.
SELECT c.epoch, c.base_epoch, s.id, c.cut_seq, c.seen_seq, c.token, c.at, c.body
  FROM compactions c JOIN sessions s ON s.conversation = c.conversation AND s.ordinal = c.session
 WHERE c.conversation = %(conversation)s ORDER BY c.epoch;

-- name: compaction_insert
-- Everything up to cut_seq is represented by this body.
INSERT INTO compactions (conversation, epoch, base_epoch, session, cut_seq, seen_seq, token, body, at, digest)
VALUES (%(conversation)s, %(epoch)s, %(base_epoch)s, %(session)s, %(cut_seq)s, %(seen_seq)s, %(token)s, %(body)s, %(at)s, %(digest)s);

-- name: compaction_of_session
-- The compaction that opened a session.
SELECT epoch, cut_seq, seen_seq, token FROM compactions WHERE conversation = %(conversation)s AND session = %(session)s;

-- name: compactions_seeing
-- Compactions whose summary was made from a message.
SELECT epoch, body FROM compactions
 WHERE conversation = %(conversation)s AND seen_seq >= %(seq)s ORDER BY epoch;

-- name: compaction_redact
-- A summary that may hold a redacted text goes; what it pinned stays.
UPDATE compactions SET body = %(body)s, redacted_at = %(at)s, digest = %(digest)s
 WHERE conversation = %(conversation)s AND epoch = %(epoch)s;

-- name: commit_plain
-- A whole commit, where everything is as it was when the work began; no row answers where it is not.
SELECT made.*, (SELECT folder FROM conversations WHERE id = made.conversation)
  FROM commit_plain(%(conversation)s, %(head)s, %(epoch)s, %(child)s, %(token)s, %(holder)s, %(now)s, %(at)s,
                    %(cut_seq)s, %(seen_seq)s, %(body)s, %(digest)s, %(model)s, %(keep_lease)s) made;
