-- name: message_insert
-- One message at its seq; a trigger counts it in its conversation.
INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest)
VALUES (%(conversation)s, %(seq)s, %(session)s, %(uid)s, %(role)s, %(at)s, %(body)s, %(digest)s);

-- name: append_plain
-- A whole append of one message, where the conversation is as it was seen last; no row answers where it is not, or
-- where another has it: that one most likely writes, and then it is not. Nothing else is looked at before it is locked.
-- Its number leads to it, its id says that it is the one: a server that was put back gives numbers out again.
WITH here AS (
  SELECT key, epoch FROM conversations
   WHERE key = %(key)s AND id = %(conversation)s AND last_seq = %(seen)s AND head = %(head)s AND live = 1
     FOR NO KEY UPDATE SKIP LOCKED),
added AS (
  INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest)
  SELECT key, %(seen)s + 1, %(head)s, %(uid)s::text, %(role)s::text, %(at)s::double precision, %(body)s::text,
         %(digest)s::bytea FROM here)
SELECT epoch, (SELECT s.id FROM sessions s WHERE s.conversation = key AND s.ordinal = %(head)s) FROM here;

-- name: append_several
-- The same for messages of several conversations: all of them, or none and no row.
WITH here AS (
  SELECT c.key, c.head, c.epoch FROM conversations c
    JOIN unnest(%(keys)s::bigint[], %(ids)s::text[], %(seen)s::bigint[], %(heads)s::bigint[])
         AS w (key, id, seen, head) ON w.key = c.key
   WHERE c.id = w.id AND c.last_seq = w.seen AND c.head = w.head AND c.live = 1 FOR NO KEY UPDATE OF c SKIP LOCKED),
added AS (
  INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest)
  SELECT m.* FROM unnest(%(conversations)s::bigint[], %(seqs)s::bigint[], %(sessions)s::bigint[], %(uids)s::text[],
                         %(roles)s::text[], %(ats)s::double precision[], %(bodies)s::text[], %(digests)s::bytea[]) AS m
   WHERE (SELECT count(*) FROM here) = cardinality(%(keys)s::bigint[]))
SELECT array_agg(h.key), array_agg(h.epoch), array_agg(s.id)
  FROM here h JOIN sessions s ON s.conversation = h.key AND s.ordinal = h.head
HAVING count(*) = cardinality(%(keys)s::bigint[]);

-- name: append_shared
-- One message where others write too: it does not keep them waiting for the disk, so `flushed` comes after it.
SELECT a.* FROM set_config('synchronous_commit', 'off', true),
       append_shared(%(id)s, %(strict)s, %(fresh)s, %(uid)s, %(role)s, %(at)s, %(body)s, %(seen)s, %(digests)s) a;

-- name: flushed
-- A commit that waits for the disk, which then has all that was committed before it.
SELECT count(pg_logical_emit_message(true, 'holdfast', ''));

-- name: message_by_uid
-- A message whose uid is known.
SELECT m.seq, s.id, m.role, m.body, m.redacted_at IS NOT NULL
  FROM messages m JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session
 WHERE m.conversation = %(conversation)s AND m.uid = %(uid)s;

-- name: messages_between
-- A stretch of the log, in order.
SELECT seq, uid, session, role, at, body FROM messages
 WHERE conversation = %(conversation)s AND seq > %(after)s AND seq <= %(upto)s
 ORDER BY seq;

-- name: message_redact
-- The body of a message goes; its place stays.
UPDATE messages SET body = '', digest = %(digest)s, redacted_at = %(at)s
 WHERE conversation = %(conversation)s AND seq = %(seq)s AND redacted_at IS NULL;

-- name: message_identity
-- What a digest covers beside the body.
SELECT uid, role, redacted_at IS NOT NULL FROM messages WHERE conversation = %(conversation)s AND seq = %(seq)s;

-- name: origin_of
-- Where a branch came from.
SELECT origin, coalesce(forked_at, 0), forked_epoch, compaction_epoch FROM conversations WHERE key = %(key)s;

-- name: hides_in_force
-- Ranges that are out of the context now.
SELECT from_seq, to_seq FROM hides WHERE conversation = %(conversation)s AND shown_epoch IS NULL ORDER BY from_seq;

-- name: hides_of
-- Every hide there ever was.
SELECT epoch, from_seq, to_seq, shown_epoch FROM hides WHERE conversation = %(conversation)s ORDER BY epoch, from_seq;

-- name: hide_insert
-- A range leaves the context.
INSERT INTO hides (conversation, epoch, from_seq, to_seq) VALUES (%(conversation)s, %(epoch)s, %(from_seq)s, %(to_seq)s);

-- name: hide_shown
-- A range comes back.
UPDATE hides SET shown_epoch = %(shown_epoch)s
 WHERE conversation = %(conversation)s AND epoch = %(epoch)s AND from_seq = %(from_seq)s AND shown_epoch IS NULL;
