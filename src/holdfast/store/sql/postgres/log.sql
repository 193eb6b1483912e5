-- name: message_insert
-- One message at its seq; a trigger counts it in its conversation.
INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest)
VALUES (:conversation, :seq, :session, :uid, :role, :at, :body, :digest);

-- name: messages_between
-- A stretch of the log, in order.
SELECT seq, uid, session, role, at, body FROM messages
 WHERE conversation = :conversation AND seq > :after AND seq <= :upto
 ORDER BY seq;

-- name: append_message
-- Append a message, or return no row if the append needs a transaction.
SELECT a.* FROM append_message(:session, :conversation, :expect_head, :is_retry, :seen, :uid, :role, :at, :body,
                               :digests, :purpose, :token, :holder, :now, :unsynced) a
 WHERE a.seq IS NOT NULL;

-- name: append_to_each
-- Append a message to each of several conversations, except those that another transaction has locked.
WITH locked AS MATERIALIZED (
  SELECT id FROM conversations WHERE id = ANY (:conversations) FOR NO KEY UPDATE SKIP LOCKED)
SELECT r.number, a.*
  FROM unnest(:sessions::text[], :conversations::text[], :expect_heads::boolean[], :retries::boolean[],
              :seen::bigint[], :uids::text[], :roles::text[], :ats::double precision[], :bodies::text[],
              :digests::bytea[], :purposes::text[], :tokens::bigint[], :holders::text[])
       WITH ORDINALITY AS r (session, conversation, expect_head, is_retry, seen, uid, role, at, body, digests, purpose,
                             token, holder, number)
  JOIN locked ON locked.id = r.conversation
 CROSS JOIN LATERAL append_message(r.session, r.conversation, r.expect_head, r.is_retry, r.seen, r.uid, r.role, r.at,
                                   r.body, r.digests, r.purpose, r.token, r.holder, :now::double precision, false) a
 WHERE a.seq IS NOT NULL;

-- name: flush_wal
-- Commit a transaction that waits for the disk, which then has every earlier commit as well.
SELECT count(pg_logical_emit_message(true, 'holdfast', ''));
