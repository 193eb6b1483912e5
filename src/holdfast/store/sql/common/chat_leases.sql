-- name: claims_all
SELECT key, token, holder, expires, boot FROM claims WHERE holder IS NOT NULL ORDER BY key;

-- name: claim_acquire
-- Acquire a free lease. In a restored or copied store, tokens begin past all tokens issued before.
INSERT INTO claims (key, token, holder, expires, boot)
VALUES (:key, (SELECT coalesce(max(CAST(value AS bigint)), 0) FROM meta WHERE key = 'generation') * 4294967296 + 1,
        :holder, :expires, :boot)
ON CONFLICT (key) DO UPDATE
   SET token = claims.token + 1, holder = excluded.holder, expires = excluded.expires, boot = excluded.boot
 WHERE claims.holder IS NULL
RETURNING token;

-- name: claim_take_over
UPDATE claims SET token = :token, holder = :holder, expires = :expires, boot = :boot WHERE key = :key;

-- name: claim_extend
UPDATE claims SET expires = :expires, boot = :boot
 WHERE key = :lease AND token = :token AND substr(holder, 1, length(CAST(:holder AS text))) = :holder
RETURNING token;

-- name: claim_release
UPDATE claims SET holder = NULL WHERE key = :lease AND token = :token AND substr(holder, 1, length(CAST(:holder AS text))) = :holder
RETURNING token;

-- name: restore_claims
-- Void every lease after a restore.
UPDATE claims SET token = greatest(token + 1, :counter), holder = NULL;
