-- name: index_meta
-- What the index says of itself.
SELECT value FROM meta WHERE key = :key;

-- name: index_meta_set
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: index_writable
-- Whether the index can be brought on here.
SELECT true;

-- name: index_begun
-- Whether there is anything in it.
SELECT 1 FROM progress LIMIT 1;

-- name: index_thousands
-- How far conversations are indexed, summed up as `search_thousands` does it with the log.
SELECT conversation >> :shift, count(*), sum(conversation), sum(upto)
  FROM progress GROUP BY 1;

-- name: index_progress
-- How far some conversations are indexed.
SELECT conversation, upto FROM progress WHERE conversation BETWEEN :first AND :last;

-- name: index_progress_of
SELECT upto FROM progress WHERE conversation = :conversation;

-- name: index_progress_set
INSERT INTO progress (conversation, upto) VALUES (:conversation, :upto)
ON CONFLICT (conversation) DO UPDATE SET upto = excluded.upto;

-- name: index_forget_progress
DELETE FROM progress WHERE conversation = :conversation;

-- name: index_put
-- The words of one message.
INSERT OR REPLACE INTO words (rowid, text, around, tags)
VALUES ((:conversation << 32) + :seq, :text, :around, :tags);

-- name: index_forget_between
-- The words of a stretch of messages go.
DELETE FROM words WHERE rowid > (:conversation << 32) + :after AND rowid <= (:conversation << 32) + :upto;

-- name: index_merge
-- Rewrites the index so that nothing of what was forgotten is left in it.
INSERT INTO words (words) VALUES ('optimize');

-- name: index_redacted
-- The messages that are known to be redacted.
SELECT rowid >> 32, rowid & 4294967295 FROM words WHERE words MATCH 'tags : ' || :tag;

-- name: index_find, index_find_around
-- The best matches of a stretch of the log, best first.
SELECT rowid, -bm25(words, 1.0, :around, 0.0) AS score FROM words
 WHERE words MATCH :match AND rowid >= :first AND rowid <= :last
 ORDER BY score DESC LIMIT :limit;

-- name: index_find_at
-- The matches among some messages; the plus keeps SQLite from asking the index for them one by one.
SELECT rowid, -bm25(words, 1.0, :around, 0.0) FROM words
 WHERE words MATCH :match AND rowid >= :first AND rowid <= :last
   AND +rowid IN (SELECT value FROM json_each(:places));
