-- name: claim_row
-- The current or last holder of a lease.
SELECT token, holder, expires, boot FROM claims WHERE key = :key;
