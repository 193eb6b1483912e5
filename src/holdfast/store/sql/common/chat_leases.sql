-- name: claims_all
-- Every claim that has a holder.
SELECT key, token, holder, expires, boot FROM claims WHERE holder IS NOT NULL ORDER BY key;

-- name: claim_put
-- Take a claim that is free. The tokens of a restored or copied store begin past all tokens given before.
INSERT INTO claims (key, token, holder, expires, boot)
VALUES (:key, (SELECT coalesce(max(CAST(value AS bigint)), 0) FROM meta WHERE key = 'generation') * 4294967296 + 1,
        :holder, :expires, :boot)
ON CONFLICT (key) DO UPDATE
   SET token = claims.token + 1, holder = excluded.holder, expires = excluded.expires, boot = excluded.boot
 WHERE claims.holder IS NULL
RETURNING token;

-- name: claim_take
-- It changes hands.
UPDATE claims SET token = :token, holder = :holder, expires = :expires, boot = :boot WHERE key = :key;

-- name: claim_extend
UPDATE claims SET expires = :expires, boot = :boot WHERE key = :key;

-- name: claim_free
UPDATE claims SET holder = NULL WHERE key = :key AND token = :token AND holder IS NOT NULL RETURNING token;

-- name: restore_claims
-- A restore voids every claim.
UPDATE claims SET token = greatest(token + 1, :counter), holder = NULL;
