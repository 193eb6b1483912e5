-- name: message_insert
-- One message at its seq; a trigger counts it in its conversation.
INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest)
VALUES (:conversation, :seq, :session, :uid, :role, :at, :body, :digest);

-- name: messages_between
-- A stretch of the log, in order.
SELECT seq, uid, session, role, at, body FROM messages
 WHERE conversation = :conversation AND seq > :after AND seq <= :upto
 ORDER BY seq;

-- name: append_plain
-- A whole append of one message, where the conversation is as it was seen last; no row answers where it is not, or
-- where another has it: that one most likely writes, and then it is not. Nothing else is looked at before it is locked.
-- Its number leads to it, its id says that it is the one: a server that was put back gives numbers out again.
WITH here AS (
  SELECT key, epoch FROM conversations
   WHERE key = :key AND id = :conversation AND last_seq = :seen AND head = :head AND live = 1
     FOR NO KEY UPDATE SKIP LOCKED),
added AS (
  INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest)
  SELECT key, :seen + 1, :head, :uid::text, :role::text, :at::double precision, :body::text,
         :digest::bytea FROM here)
SELECT epoch, (SELECT s.id FROM sessions s WHERE s.conversation = key AND s.ordinal = :head) FROM here;

-- name: append_several
-- The same for messages of several conversations: all of them, or none and no row.
WITH here AS (
  SELECT c.key, c.head, c.epoch FROM conversations c
    JOIN unnest(:keys::bigint[], :ids::text[], :seen::bigint[], :heads::bigint[])
         AS w (key, id, seen, head) ON w.key = c.key
   WHERE c.id = w.id AND c.last_seq = w.seen AND c.head = w.head AND c.live = 1 FOR NO KEY UPDATE OF c SKIP LOCKED),
added AS (
  INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest)
  SELECT m.* FROM unnest(:conversations::bigint[], :seqs::bigint[], :sessions::bigint[], :uids::text[],
                         :roles::text[], :ats::double precision[], :bodies::text[], :digests::bytea[]) AS m
   WHERE (SELECT count(*) FROM here) = cardinality(:keys::bigint[]))
SELECT array_agg(h.key), array_agg(h.epoch), array_agg(s.id)
  FROM here h JOIN sessions s ON s.conversation = h.key AND s.ordinal = h.head
HAVING count(*) = cardinality(:keys::bigint[]);

-- name: append_shared
-- One message where others write too: it does not keep them waiting for the disk, so `flushed` comes after it.
SELECT a.* FROM set_config('synchronous_commit', 'off', true),
       append_shared(:id, :strict, :fresh, :uid, :role, :at, :body, :seen, :digests) a;

-- name: flushed
-- A commit that waits for the disk, which then has all that was committed before it.
SELECT count(pg_logical_emit_message(true, 'holdfast', ''));
