-- name: person_get
SELECT platform, sender, role, name, at, given_by FROM people WHERE platform = :platform AND sender = :sender;

-- name: people_all
SELECT platform, sender, role, name, at, given_by FROM people
 WHERE CAST(:platform AS text) IS NULL OR platform = :platform ORDER BY platform, sender;

-- name: person_put
-- The last role of a contact holds; without a new name the stored one stays.
INSERT INTO people (platform, sender, role, name, at, given_by) VALUES (:platform, :sender, :role, :name, :at, :by)
ON CONFLICT (platform, sender) DO UPDATE
   SET role = excluded.role, name = CASE WHEN excluded.name = '' THEN people.name ELSE excluded.name END,
       at = excluded.at, given_by = excluded.given_by;

-- name: person_forget
DELETE FROM people WHERE platform = :platform AND sender = :sender;

-- name: stranger_met
INSERT INTO strangers (platform, sender) VALUES (:platform, :sender) ON CONFLICT (platform, sender) DO NOTHING;

-- name: stranger_told
-- Once.
UPDATE strangers SET told_at = :at WHERE platform = :platform AND sender = :sender AND told_at IS NULL;

-- name: stranger_asked
-- When a stranger last asked for a code, and which one was given.
SELECT asked_at, digest FROM strangers WHERE platform = :platform AND sender = :sender;

-- name: strangers_waiting
-- How many codes are good on a platform.
SELECT count(*) FROM strangers WHERE platform = :platform AND digest IS NOT NULL AND expires_at > :now;

-- name: stranger_code
UPDATE strangers SET name = :name, asked_at = :at, digest = :digest, salt = :salt, expires_at = :expires_at
 WHERE platform = :platform AND sender = :sender;

-- name: stranger_code_again
-- Another code in place of one that is still good.
UPDATE strangers SET digest = :digest, salt = :salt, expires_at = :expires_at
 WHERE platform = :platform AND sender = :sender AND digest IS NOT NULL AND expires_at > :now;

-- name: strangers_with_codes
-- The codes that are good now.
SELECT platform, sender, name, digest, salt FROM strangers
 WHERE digest IS NOT NULL AND expires_at > :now AND (CAST(:platform AS text) IS NULL OR platform = :platform);

-- name: stranger_code_void
UPDATE strangers SET digest = NULL, salt = NULL, expires_at = NULL
 WHERE platform = :platform AND sender = :sender AND digest IS NOT NULL;

-- name: stranger_forget
DELETE FROM strangers WHERE platform = :platform AND sender = :sender;

-- name: strangers_forget
-- Who came by long ago and never again.
DELETE FROM strangers WHERE coalesce(asked_at, told_at, 0) < :before AND coalesce(told_at, asked_at, 0) < :before;

-- name: lockout_met
INSERT INTO lockouts (platform, failures, failed_at) VALUES (:platform, 0, 0) ON CONFLICT (platform) DO NOTHING;

-- name: lockout_set
UPDATE lockouts SET failures = :failures, failed_at = :at WHERE platform = :platform;
