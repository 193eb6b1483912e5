-- name: claim_row
-- Who has a claim, or had it last.
SELECT token, holder, expires, boot FROM claims WHERE key = :key;
