-- name: blob_mentions
-- Find messages with references to blobs.
SELECT c.id, m.seq, m.body FROM messages m JOIN conversations c ON c.key = m.conversation
 WHERE strpos(m.body, '"blob":"') > 0 ORDER BY m.conversation, m.seq;

-- name: blob_mentions_between
-- The same for a range of one conversation.
SELECT body FROM messages
 WHERE conversation = :conversation AND seq > :after AND seq <= :upto AND strpos(body, '"blob":"') > 0;

-- name: blob_mention
-- Find the newest message of a range that contains a reference.
SELECT seq FROM messages
 WHERE conversation = :conversation AND seq > :after AND seq <= :upto AND strpos(body, :reference) > 0
 ORDER BY seq DESC LIMIT 1;

-- name: blob_mentions_open
-- Find references in mail that is not handled or not sent.
SELECT body FROM arrivals WHERE outcome IS NULL AND strpos(body, '"blob":"') > 0
 UNION ALL
SELECT body FROM outbox WHERE delivered_at IS NULL AND failed_at IS NULL AND strpos(body, '"blob":"') > 0;

-- name: lock_blobs
-- Lock blobs against storing and collecting until the transaction ends.
LOCK TABLE blobs IN SHARE ROW EXCLUSIVE MODE;

-- name: part_insert
INSERT INTO blob_parts (digest, part, content) VALUES (:digest, :part, :content);

-- name: part_get
SELECT content FROM blob_parts WHERE digest = :digest AND part = :part;

-- name: parts_delete
DELETE FROM blob_parts WHERE digest = :digest;

-- name: parts_strays
-- Find contents without a blob.
SELECT DISTINCT p.digest FROM blob_parts p WHERE NOT EXISTS (SELECT 1 FROM blobs b WHERE b.digest = p.digest);
