-- name: lease_row
-- Who has a lease.
SELECT token, holder, expires, boot, snap_seq FROM leases WHERE conversation = %(conversation)s AND purpose = %(purpose)s;

-- name: leases_all
-- Every lease there is.
SELECT c.id, l.purpose, l.token, l.holder, l.expires, l.boot, l.snap_seq, l.acquired_at
  FROM leases l JOIN conversations c ON c.key = l.conversation ORDER BY c.key, l.purpose;

-- name: fence_next
-- The next token of a conversation, whatever it is for.
UPDATE conversations SET fence = fence + 1 WHERE key = %(conversation)s;

-- name: fence
-- The token just made.
SELECT fence FROM conversations WHERE key = %(conversation)s;

-- name: lease_insert
-- A free lease is taken.
INSERT INTO leases (conversation, purpose, token, holder, expires, boot, snap_seq, acquired_at)
VALUES (%(conversation)s, %(purpose)s, %(token)s, %(holder)s, %(expires)s, %(boot)s, %(snap_seq)s, %(acquired_at)s);

-- name: lease_take_over
-- A lease changes hands.
UPDATE leases SET token = %(token)s, holder = %(holder)s, expires = %(expires)s, boot = %(boot)s, snap_seq = %(snap_seq)s,
       acquired_at = %(acquired_at)s
 WHERE conversation = %(conversation)s AND purpose = %(purpose)s;

-- name: lease_extend
-- The holder goes on; what it saw stays what it saw.
UPDATE leases SET expires = %(expires)s, boot = %(boot)s
 WHERE conversation = %(conversation)s AND purpose = %(purpose)s AND token = %(token)s;

-- name: lease_delete
-- The lease is free again.
DELETE FROM leases WHERE conversation = %(conversation)s AND purpose = %(purpose)s AND token = %(token)s;
