-- name: claim_row
-- Who has a claim, or had it last; and the time at the server.
SELECT token, holder, expires, boot, extract(epoch FROM clock_timestamp())::double precision
  FROM claims WHERE key = :key FOR UPDATE;
