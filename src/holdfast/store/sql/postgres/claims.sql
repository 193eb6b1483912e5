-- name: claim_row
-- Who has a claim, or had it last.
SELECT token, holder, expires, boot FROM claims WHERE key = %(key)s FOR UPDATE;

-- name: claims_all
-- Every claim somebody has.
SELECT key, token, holder, expires, boot FROM claims WHERE holder IS NOT NULL ORDER BY key;

-- name: claim_insert
INSERT INTO claims (key, token, holder, expires, boot) VALUES (%(key)s, %(token)s, %(holder)s, %(expires)s, %(boot)s);

-- name: claim_take
-- It changes hands.
UPDATE claims SET token = %(token)s, holder = %(holder)s, expires = %(expires)s, boot = %(boot)s WHERE key = %(key)s;

-- name: claim_extend
UPDATE claims SET expires = %(expires)s, boot = %(boot)s WHERE key = %(key)s;

-- name: claim_free
UPDATE claims SET holder = NULL WHERE key = %(key)s AND token = %(token)s AND holder IS NOT NULL;

-- name: restore_claims
-- Whoever had one on what was there before has none on what is there now.
UPDATE claims SET token = greatest(token + 1, %(counter)s), holder = NULL;
