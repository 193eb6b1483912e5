-- name: contact_get
SELECT platform, sender, role, name, at, given_by FROM people WHERE platform = :platform AND sender = :sender;

-- name: contacts_all
SELECT platform, sender, role, name, at, given_by FROM people
 WHERE CAST(:platform AS text) IS NULL OR platform = :platform ORDER BY platform, sender;

-- name: contact_put
-- An empty name keeps the stored one.
INSERT INTO people (platform, sender, role, name, at, given_by) VALUES (:platform, :sender, :role, :name, :at, :by)
ON CONFLICT (platform, sender) DO UPDATE
   SET role = excluded.role, name = CASE WHEN excluded.name = '' THEN people.name ELSE excluded.name END,
       at = excluded.at, given_by = excluded.given_by;

-- name: contact_delete
DELETE FROM people WHERE platform = :platform AND sender = :sender;

-- name: stranger_insert
INSERT INTO strangers (platform, sender) VALUES (:platform, :sender) ON CONFLICT (platform, sender) DO NOTHING;

-- name: stranger_mark_notified
UPDATE strangers SET told_at = :at WHERE platform = :platform AND sender = :sender AND told_at IS NULL;

-- name: stranger_get
SELECT asked_at, digest FROM strangers WHERE platform = :platform AND sender = :sender;

-- name: stranger_set_code
UPDATE strangers SET name = :name, asked_at = :at, digest = :digest, salt = :salt, expires_at = :expires_at
 WHERE platform = :platform AND sender = :sender;

-- name: stranger_renew_code
-- Replace a code that is still valid.
UPDATE strangers SET digest = :digest, salt = :salt, expires_at = :expires_at
 WHERE platform = :platform AND sender = :sender AND digest IS NOT NULL AND expires_at > :now;

-- name: stranger_void_code
UPDATE strangers SET digest = NULL, salt = NULL, expires_at = NULL
 WHERE platform = :platform AND sender = :sender AND digest IS NOT NULL;

-- name: stranger_delete
DELETE FROM strangers WHERE platform = :platform AND sender = :sender;

-- name: strangers_delete_old
DELETE FROM strangers
 WHERE coalesce(asked_at, told_at, 0) < :before AND coalesce(told_at, asked_at, 0) < :before;

-- name: pairing_codes
-- The valid codes of one platform or of all.
SELECT platform, sender, name, digest, salt FROM strangers
 WHERE digest IS NOT NULL AND expires_at > :now AND (CAST(:platform AS text) IS NULL OR platform = :platform);

-- name: pairing_codes_count
SELECT count(*) FROM strangers WHERE platform = :platform AND digest IS NOT NULL AND expires_at > :now;

-- name: lockout_insert
INSERT INTO lockouts (platform, failures, failed_at) VALUES (:platform, 0, 0) ON CONFLICT (platform) DO NOTHING;

-- name: lockout_set
UPDATE lockouts SET failures = :failures, failed_at = :at WHERE platform = :platform;

-- name: link_get
SELECT owner FROM links WHERE platform = :platform AND sender = :sender;

-- name: links_all
SELECT platform, sender, owner, at FROM links
 WHERE CAST(:owner AS text) IS NULL OR owner = :owner ORDER BY owner, platform, sender;

-- name: link_put
INSERT INTO links (platform, sender, owner, at) VALUES (:platform, :sender, :owner, :at)
ON CONFLICT (platform, sender) DO UPDATE SET owner = excluded.owner, at = excluded.at;

-- name: link_insert
INSERT INTO links (platform, sender, owner, at) VALUES (:platform, :sender, :owner, :at)
ON CONFLICT (platform, sender) DO NOTHING;

-- name: link_delete
DELETE FROM links WHERE platform = :platform AND sender = :sender;

-- name: link_code_put
INSERT INTO link_codes (owner, session, digest, salt, expires_at)
VALUES (:owner, :session, :digest, :salt, :expires_at)
ON CONFLICT (owner) DO UPDATE SET session = excluded.session, digest = excluded.digest, salt = excluded.salt,
                                  expires_at = excluded.expires_at;

-- name: link_codes
SELECT owner, session, digest, salt FROM link_codes WHERE expires_at > :now;

-- name: link_code_delete
-- Delete a used code, and those that expired.
DELETE FROM link_codes WHERE digest = :digest OR expires_at <= :now;

-- name: link_code_withdraw
-- Delete the code of the owner that a sender is linked to.
DELETE FROM link_codes WHERE owner = (SELECT owner FROM links WHERE platform = :platform AND sender = :sender);
