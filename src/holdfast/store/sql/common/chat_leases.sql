-- name: claims_all
-- Every claim somebody has.
SELECT key, token, holder, expires, boot FROM claims WHERE holder IS NOT NULL ORDER BY key;

-- name: claim_insert
INSERT INTO claims (key, token, holder, expires, boot) VALUES (:key, :token, :holder, :expires, :boot);

-- name: claim_take
-- It changes hands.
UPDATE claims SET token = :token, holder = :holder, expires = :expires, boot = :boot WHERE key = :key;

-- name: claim_extend
UPDATE claims SET expires = :expires, boot = :boot WHERE key = :key;

-- name: claim_free
UPDATE claims SET holder = NULL WHERE key = :key AND token = :token AND holder IS NOT NULL;

-- name: restore_claims
-- Whoever had one on what was there before has none on what is there now.
UPDATE claims SET token = greatest(token + 1, :counter), holder = NULL;
