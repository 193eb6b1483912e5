-- name: blob_put
-- What is known of a blob; putting it again makes it young again.
INSERT INTO blobs (digest, size, media_type, at) VALUES (:digest, :size, :media_type, :at)
ON CONFLICT (digest) DO UPDATE
   SET size = excluded.size, media_type = excluded.media_type, at = excluded.at, dropped_at = NULL;

-- name: blob_known
-- One that messages are about to name, whether its content is here or not; what is known of it stays.
INSERT INTO blobs (digest, size, media_type, at) VALUES (:digest, :size, :media_type, :at)
ON CONFLICT (digest) DO UPDATE SET at = excluded.at, dropped_at = NULL;

-- name: blob_get
SELECT digest, size, media_type, at FROM blobs WHERE digest = :digest;

-- name: blob_wanted
-- Whether one is known and nobody let go of it.
SELECT 1 FROM blobs WHERE digest = :digest AND dropped_at IS NULL;

-- name: blob_given_back
-- One that an import took in and then had no use for; unless somebody put it or is about to name it since.
UPDATE blobs SET dropped_at = :at WHERE digest = :digest AND at = :at;

-- name: blobs_all
-- Every blob there is, for whoever collects or copies them.
SELECT digest, size, at, dropped_at FROM blobs ORDER BY digest;

-- name: blob_marks
-- How far each log reaches.
SELECT key, last_seq FROM conversations;

-- name: blob_dropped
-- A message that named it went for good: nobody waits for it to age.
UPDATE blobs SET dropped_at = :at WHERE digest = :digest;

-- name: blob_kept
-- Others name it still.
UPDATE blobs SET dropped_at = NULL WHERE digest = :digest;

-- name: blob_delete
DELETE FROM blobs WHERE digest = :digest;
