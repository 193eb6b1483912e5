-- name: lease_row
SELECT token, holder, expires, boot, snap_seq, acquired_at FROM leases
 WHERE conversation = :conversation AND purpose = :purpose;

-- name: lease_of_session
SELECT token, holder, expires, boot, snap_seq, acquired_at FROM leases
 WHERE conversation = (SELECT conversation FROM sessions WHERE id = :id) AND purpose = :purpose;

-- name: leases_all
SELECT c.id, l.purpose, l.token, l.holder, l.expires, l.boot, l.snap_seq, l.acquired_at
  FROM leases l JOIN conversations c ON c.key = l.conversation ORDER BY c.key, l.purpose;

-- name: fence_next
-- The next token of a conversation, for a lease of any purpose.
UPDATE conversations SET fence = fence + 1 WHERE key = :conversation RETURNING fence;

-- name: lease_put
-- Take a lease with the newest token, from its last holder if there is one.
INSERT INTO leases (conversation, purpose, token, holder, expires, boot, snap_seq, acquired_at)
VALUES (:conversation, :purpose, (SELECT fence FROM conversations WHERE key = :conversation), :holder, :expires, :boot,
        :snap_seq, :acquired_at)
ON CONFLICT (conversation, purpose) DO UPDATE
   SET token = excluded.token, holder = excluded.holder, expires = excluded.expires, boot = excluded.boot,
       snap_seq = excluded.snap_seq, acquired_at = excluded.acquired_at;

-- name: lease_release
-- Delete a lease without locking its conversation. `lease_put` works whether or not the row exists.
DELETE FROM leases
 WHERE conversation = (SELECT conversation FROM sessions WHERE id = :conversation_id)
   AND purpose = :purpose AND token = :token
RETURNING token;

-- name: lease_extend
-- Extend a lease; its snapshot (snap_seq) does not change.
UPDATE leases SET expires = :expires, boot = :boot
 WHERE conversation = :conversation AND purpose = :purpose AND token = :token;

-- name: lease_delete
DELETE FROM leases WHERE conversation = :conversation AND purpose = :purpose AND token = :token;
