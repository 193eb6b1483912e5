-- name: export_all
-- List every conversation with the number of its own messages, an origin before its branches.
SELECT key, id, last_seq - coalesce(forked_at, 0) FROM conversations ORDER BY key;

-- name: export_chosen
-- Read the same for one conversation, with the key of its origin.
SELECT key, id, last_seq - coalesce(forked_at, 0), origin FROM conversations WHERE key = :key;

-- name: export_conversation
-- Read a conversation without internal keys.
SELECT c.id, c.owner, c.source, c.title, c.created_at, c.head, c.live IS NOT NULL, c.epoch, c.last_seq, c.fence,
       c.compaction_epoch, c.redo_epoch, c.forked_from, c.forked_at, c.forked_epoch, o.id, c.folder, c.metadata
  FROM conversations c LEFT JOIN conversations o ON o.key = c.origin
 WHERE c.key = :key;

-- name: export_sessions
SELECT ordinal, id, source, model, started_at, ended_at, end_reason, first_seq, last_seq FROM sessions
 WHERE conversation = :conversation ORDER BY ordinal;

-- name: export_compaction
-- Read the next compaction of a conversation.
SELECT epoch, base_epoch, session, cut_seq, seen_seq, token, at, body, redacted_at, digest FROM compactions
 WHERE conversation = :conversation AND epoch > :after ORDER BY epoch LIMIT 1;

-- name: export_hides
-- Read the hides and shows between two epochs.
SELECT epoch AS at, from_seq, to_seq, CAST(NULL AS bigint) FROM hides
 WHERE conversation = :conversation AND epoch > :after AND epoch < :before
 UNION ALL
SELECT shown_epoch, from_seq, to_seq, epoch FROM hides
 WHERE conversation = :conversation AND shown_epoch > :after AND shown_epoch < :before
 ORDER BY at, from_seq;

-- name: export_routes
-- Read the routes bound to a conversation.
SELECT key, version, updated_at FROM routes WHERE conversation = :conversation ORDER BY key;

-- name: import_compaction
-- Insert a compaction in its final state.
INSERT INTO compactions (conversation, epoch, base_epoch, session, cut_seq, seen_seq, token, body, at,
                         redacted_at, digest)
VALUES (:conversation, :epoch, :base_epoch, :session, :cut_seq, :seen_seq, :token, :body, :at,
        :redacted_at, :digest);

-- name: import_moves
-- Set the state of the conversation at an epoch of its history.
UPDATE conversations
   SET epoch = :epoch, head = :head, live = :live, compaction_epoch = :compaction_epoch, redo_epoch = :redo_epoch
 WHERE key = :key;

-- name: import_fence
-- Set the highest lease token of the conversation.
UPDATE conversations SET fence = :fence WHERE key = :key;

-- name: import_route
-- Insert a route whose key is new in this store.
INSERT INTO routes (key, conversation, version, updated_at) VALUES (:key, :conversation, :version, :at);

-- name: import_unsound
-- Find shown messages before the cut of a compaction that was made without them and is active or could be redone,
-- and a redo that does not lead back to the compaction that was undone.
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
 WHERE c.key = :key AND k.base_epoch IS DISTINCT FROM c.compaction_epoch;
