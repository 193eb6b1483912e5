-- name: claim_row
-- Who has a claim, or had it last; and the time at the server.
SELECT token, holder, expires, boot, extract(epoch FROM clock_timestamp())::double precision
  FROM claims WHERE key = :key FOR UPDATE;

-- name: restore_claims
-- Whoever had one on what was there before has none on what is there now.
UPDATE claims SET token = greatest(token + 1, :counter), holder = NULL;
