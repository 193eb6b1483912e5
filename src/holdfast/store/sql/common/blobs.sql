-- name: blob_put
-- Insert a blob; storing it again resets its age.
INSERT INTO blobs (digest, size, media_type, at) VALUES (:digest, :size, :media_type, :at)
ON CONFLICT (digest) DO UPDATE
   SET size = excluded.size, media_type = excluded.media_type, at = excluded.at, dropped_at = NULL;

-- name: blob_known
-- Insert a blob that messages are about to refer to. A known blob keeps its type and size.
INSERT INTO blobs (digest, size, media_type, at) VALUES (:digest, :size, :media_type, :at)
ON CONFLICT (digest) DO UPDATE SET at = excluded.at, dropped_at = NULL;

-- name: blob_get
SELECT digest, size, media_type, at FROM blobs WHERE digest = :digest;

-- name: blobs_all
-- List every blob.
SELECT digest, size, at, dropped_at FROM blobs ORDER BY digest;

-- name: blob_marks
-- Read the last seq of each conversation.
SELECT key, last_seq FROM conversations;

-- name: blob_dropped
-- Mark a blob whose message is removed; it is collected whatever its age.
UPDATE blobs SET dropped_at = :at WHERE digest = :digest;

-- name: blob_kept
-- Another message refers to it.
UPDATE blobs SET dropped_at = NULL WHERE digest = :digest;

-- name: blob_delete
DELETE FROM blobs WHERE digest = :digest;
