-- name: index_meta
SELECT value FROM meta WHERE key = :key;

-- name: index_meta_set
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: index_writable
-- Whether the index can be updated.
SELECT true;

-- name: index_begun
SELECT 1 FROM progress LIMIT 1;

-- name: index_progress
SELECT conversation, upto FROM progress;

-- name: index_progress_of
SELECT upto FROM progress WHERE conversation = :conversation;

-- name: index_progress_set
INSERT INTO progress (conversation, upto) VALUES (:conversation, :upto)
ON CONFLICT (conversation) DO UPDATE SET upto = excluded.upto;

-- name: index_forget_progress
DELETE FROM progress WHERE conversation = :conversation;

-- name: index_put
INSERT OR REPLACE INTO words (rowid, text, around, tags)
VALUES ((:conversation << 32) + :seq, :text, :around, :tags);

-- name: index_forget
DELETE FROM words WHERE rowid > :conversation << 32 AND rowid <= (:conversation << 32) + 4294967295;

-- name: index_merge
-- Rewrite the index without the removed words.
INSERT INTO words (words) VALUES ('optimize');

-- name: index_redacted
-- The messages that are indexed as redacted.
SELECT rowid >> 32, rowid & 4294967295 FROM words WHERE words MATCH 'tags : ' || :tag;

-- name: index_find, index_find_around
-- The best matches in a range of messages, best first.
SELECT rowid, -bm25(words, 1.0, :around, 0.0) AS score FROM words
 WHERE words MATCH :match AND rowid >= :first AND rowid <= :last
 ORDER BY score DESC LIMIT :limit;

-- name: index_find_at
-- The matches among the given messages. The plus keeps SQLite from looking them up one by one.
SELECT rowid, -bm25(words, 1.0, :around, 0.0) FROM words
 WHERE words MATCH :match AND rowid >= :first AND rowid <= :last
   AND +rowid IN (SELECT value FROM json_each(:places));
