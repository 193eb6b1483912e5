-- name: blob_mentions
-- Find messages with references to blobs.
SELECT c.id, m.seq, m.body FROM messages m JOIN conversations c ON c.key = m.conversation
 WHERE instr(m.body, '"blob":"') > 0 ORDER BY m.id;

-- name: blob_mentions_between
-- The same for a range of one conversation.
SELECT body FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto AND instr(body, '"blob":"') > 0;

-- name: blob_mention
-- Find the newest message of a range that contains a reference.
SELECT id FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto AND instr(body, :reference) > 0
 ORDER BY id DESC LIMIT 1;

-- name: blob_mentions_open
-- Find references in mail that is not handled or not sent.
SELECT body FROM arrivals WHERE outcome IS NULL AND instr(body, '"blob":"') > 0
 UNION ALL
SELECT body FROM outbox WHERE delivered_at IS NULL AND failed_at IS NULL AND instr(body, '"blob":"') > 0;

-- name: lock_blobs
-- Lock blobs against storing and collecting. BEGIN IMMEDIATE has locked the whole file already.
SELECT 1;
