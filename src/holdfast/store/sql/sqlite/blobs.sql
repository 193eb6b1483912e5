-- name: blob_mentions
-- Messages that name a blob; which one is read from the body.
SELECT c.id, m.seq, m.body FROM messages m JOIN conversations c ON c.key = m.conversation
 WHERE instr(m.body, '"blob":"') > 0 ORDER BY m.id;

-- name: blob_mentions_between
-- The same of one stretch of one log.
SELECT body FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto AND instr(body, '"blob":"') > 0;

-- name: blob_mentions_open
-- What is not worked yet or must still go out names some too, and no message may.
SELECT body FROM arrivals WHERE outcome IS NULL AND instr(body, '"blob":"') > 0
 UNION ALL
SELECT body FROM outbox WHERE delivered_at IS NULL AND failed_at IS NULL AND instr(body, '"blob":"') > 0;

-- name: lock_blobs
-- From here on nobody else puts, names or collects blobs. (BEGIN IMMEDIATE has locked the whole file already.)
SELECT 1;
