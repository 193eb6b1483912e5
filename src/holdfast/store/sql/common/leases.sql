-- name: lease_row
-- Who has a lease.
SELECT token, holder, expires, boot, snap_seq FROM leases WHERE conversation = :conversation AND purpose = :purpose;

-- name: leases_all
-- Every lease there is.
SELECT c.id, l.purpose, l.token, l.holder, l.expires, l.boot, l.snap_seq, l.acquired_at
  FROM leases l JOIN conversations c ON c.key = l.conversation ORDER BY c.key, l.purpose;

-- name: fence_next
-- The next token of a conversation, whatever it is for.
UPDATE conversations SET fence = fence + 1 WHERE key = :conversation;

-- name: fence
-- The token just made.
SELECT fence FROM conversations WHERE key = :conversation;

-- name: lease_insert
-- A free lease is taken.
INSERT INTO leases (conversation, purpose, token, holder, expires, boot, snap_seq, acquired_at)
VALUES (:conversation, :purpose, :token, :holder, :expires, :boot, :snap_seq, :acquired_at);

-- name: lease_take_over
-- A lease changes hands.
UPDATE leases SET token = :token, holder = :holder, expires = :expires, boot = :boot, snap_seq = :snap_seq,
       acquired_at = :acquired_at
 WHERE conversation = :conversation AND purpose = :purpose;

-- name: lease_extend
-- The holder goes on; what it saw stays what it saw.
UPDATE leases SET expires = :expires, boot = :boot
 WHERE conversation = :conversation AND purpose = :purpose AND token = :token;

-- name: lease_delete
-- The lease is free again.
DELETE FROM leases WHERE conversation = :conversation AND purpose = :purpose AND token = :token;
