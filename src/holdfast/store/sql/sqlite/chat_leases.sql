-- name: claim_row
-- Who has a claim, or had it last.
SELECT token, holder, expires, boot FROM claims WHERE key = :key;

-- name: restore_claims
-- Whoever had one on what was there before has none on what is there now.
UPDATE claims SET token = max(token + 1, :counter), holder = NULL;
