-- name: claim_row
-- The current or last holder of a lease, locked, and the time at the server.
SELECT token, holder, expires, boot, extract(epoch FROM clock_timestamp())::double precision
  FROM claims WHERE key = :key FOR UPDATE;
