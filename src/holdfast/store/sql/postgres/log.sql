-- name: message_insert
-- A trigger increments last_seq of the conversation.
INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest)
VALUES (:conversation, :seq, :session, :uid, :role, :at, :body, :digest);

-- name: messages_between
-- A range of the log, in order.
SELECT seq, uid, session, role, at, body FROM messages
 WHERE conversation = :conversation AND seq > :after AND seq <= :upto
 ORDER BY seq;

-- name: append_message
-- Append a message, or return no row if the append needs a transaction.
SELECT a.* FROM append_message(:session, :conversation, :expect_head, :may_be_stored, :seen, :uid, :role, :at, :body,
                               :digests, :purpose, :token, :holder, :now, :unsynced) a
 WHERE a.seq IS NOT NULL;

-- name: append_to_each
-- Append a message to each of several conversations, except those that another transaction has locked.
WITH locked AS MATERIALIZED (
  SELECT id FROM conversations WHERE id = ANY (:conversation) FOR NO KEY UPDATE SKIP LOCKED)
SELECT r.number, a.*
  FROM unnest(:session::text[], :conversation::text[], :expect_head::boolean[], :may_be_stored::boolean[],
              :seen::bigint[],
              :uid::text[], :role::text[], :at::double precision[], :body::text[], :digests::bytea[],
              :purpose::text[], :token::bigint[], :holder::text[])
       WITH ORDINALITY AS r (session, conversation, expect_head, may_be_stored, seen, uid, role, at, body, digests, purpose,
                             token, holder, number)
  JOIN locked ON locked.id = r.conversation
 CROSS JOIN LATERAL append_message(r.session, r.conversation, r.expect_head, r.may_be_stored, r.seen, r.uid, r.role, r.at,
                                   r.body, r.digests, r.purpose, r.token, r.holder, :now::double precision, false) a
 WHERE a.seq IS NOT NULL;

-- name: flush_wal
-- Commit a transaction that waits for the disk, which then has every earlier commit as well.
SELECT count(pg_logical_emit_message(true, 'holdfast', ''));
