-- name: lease_row
-- Who has a lease.
SELECT token, holder, expires, boot, snap_seq FROM leases WHERE conversation = :conversation AND purpose = :purpose;

-- name: lease_of_session
SELECT token, holder, expires, boot, snap_seq FROM leases
 WHERE conversation = (SELECT conversation FROM sessions WHERE id = :id) AND purpose = :purpose;

-- name: leases_all
-- Every lease there is.
SELECT c.id, l.purpose, l.token, l.holder, l.expires, l.boot, l.snap_seq, l.acquired_at
  FROM leases l JOIN conversations c ON c.key = l.conversation ORDER BY c.key, l.purpose;

-- name: fence_next
-- The next token of a conversation, whatever it is for.
UPDATE conversations SET fence = fence + 1 WHERE key = :conversation RETURNING fence;

-- name: lease_put
-- Take a lease with the newest token, whether it is free or of another holder.
INSERT INTO leases (conversation, purpose, token, holder, expires, boot, snap_seq, acquired_at)
VALUES (:conversation, :purpose, (SELECT fence FROM conversations WHERE key = :conversation), :holder, :expires, :boot,
        :snap_seq, :acquired_at)
ON CONFLICT (conversation, purpose) DO UPDATE
   SET token = excluded.token, holder = excluded.holder, expires = excluded.expires, boot = excluded.boot,
       snap_seq = excluded.snap_seq, acquired_at = excluded.acquired_at;

-- name: lease_release
-- Delete a lease without the lock of its conversation: `lease_put` inserts it again where it was deleted meanwhile.
DELETE FROM leases
 WHERE conversation = (SELECT conversation FROM sessions WHERE id = :conversation_id)
   AND purpose = :purpose AND token = :token
RETURNING token;

-- name: lease_extend
-- The holder goes on; what it saw stays what it saw.
UPDATE leases SET expires = :expires, boot = :boot
 WHERE conversation = :conversation AND purpose = :purpose AND token = :token;

-- name: lease_delete
-- The lease is free again.
DELETE FROM leases WHERE conversation = :conversation AND purpose = :purpose AND token = :token;
