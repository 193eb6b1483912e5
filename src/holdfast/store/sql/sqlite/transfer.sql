-- name: export_reach
-- The last seq of a stretch that is no more than :room bytes long, or of its first message alone.
SELECT coalesce(max(seq), :after + 1)
  FROM (SELECT seq, sum(octet_length(body)) OVER (ORDER BY id) AS size FROM messages
         WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto
         ORDER BY id LIMIT :limit)
 WHERE size <= :room;

-- name: export_messages
-- A stretch of the log with all there is of it.
SELECT seq, session, uid, role, at, body, redacted_at, digest FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + :upto
 ORDER BY id;

-- name: import_message
-- A message as it stands in the end; a trigger counts it in its conversation.
INSERT INTO messages (id, session, uid, role, at, body, digest, redacted_at)
VALUES ((:conversation << 32) + :seq, :session, :uid, :role, :at, :body, :digest, :redacted_at);

-- name: import_unsound
-- Shown messages that lie before the cut of a compaction which was made without them and is in force, or
-- which redo would bring back; and a redo that would not go back to what was undone.
WITH RECURSIVE chain (epoch, base_epoch, cut_seq) AS (
  SELECT k.epoch, k.base_epoch, k.cut_seq FROM conversations c
    JOIN compactions k ON k.conversation = c.key AND k.epoch = coalesce(c.redo_epoch, c.compaction_epoch)
   WHERE c.key = :key
   UNION ALL
  SELECT k.epoch, k.base_epoch, k.cut_seq FROM chain
    JOIN compactions k ON k.conversation = :key AND k.epoch = chain.base_epoch)
SELECT 1 FROM hides h JOIN chain k ON k.epoch < h.shown_epoch AND k.cut_seq >= h.from_seq
 WHERE h.conversation = :key
 UNION ALL
SELECT 1 FROM conversations c JOIN compactions k ON k.conversation = c.key AND k.epoch = c.redo_epoch
 WHERE c.key = :key AND k.base_epoch IS NOT c.compaction_epoch;
