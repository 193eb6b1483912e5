-- name: export_all
-- Every conversation and how many messages of its own it has; an origin comes before its branches.
SELECT key, id, last_seq - coalesce(forked_at, 0) FROM conversations ORDER BY key;

-- name: export_chosen
-- The same of one conversation, with the key of its origin.
SELECT key, id, last_seq - coalesce(forked_at, 0), origin FROM conversations WHERE key = %(key)s;

-- name: export_conversation
-- A conversation without its inner keys.
SELECT c.id, c.owner, c.source, c.title, c.created_at, c.head, c.live IS NOT NULL, c.epoch, c.last_seq, c.fence,
       c.compaction_epoch, c.redo_epoch, c.forked_from, c.forked_at, c.forked_epoch, o.id, c.folder
  FROM conversations c LEFT JOIN conversations o ON o.key = c.origin
 WHERE c.key = %(key)s;

-- name: export_sessions
-- Some sessions of a conversation, in order.
SELECT ordinal, id, source, model, started_at, ended_at, end_reason, first_seq, last_seq FROM sessions
 WHERE conversation = %(conversation)s AND ordinal > %(after)s ORDER BY ordinal LIMIT %(limit)s;

-- name: export_compaction
-- The next compaction of a conversation.
SELECT epoch, base_epoch, session, cut_seq, seen_seq, token, at, body, redacted_at, digest FROM compactions
 WHERE conversation = %(conversation)s AND epoch > %(after)s ORDER BY epoch LIMIT 1;

-- name: export_hides
-- What was hidden and shown between two epochs, in order.
SELECT epoch AS at, from_seq, to_seq, NULL::bigint FROM hides
 WHERE conversation = %(conversation)s AND epoch > %(after)s AND epoch < %(before)s
 UNION ALL
SELECT shown_epoch, from_seq, to_seq, epoch FROM hides
 WHERE conversation = %(conversation)s AND shown_epoch > %(after)s AND shown_epoch < %(before)s
 ORDER BY at, from_seq;

-- name: export_reach
-- The last seq of a stretch that is no more than :room bytes long, or of its first message alone.
SELECT coalesce(max(seq), %(after)s + 1)
  FROM (SELECT seq, sum(octet_length(body)) OVER (ORDER BY seq) AS size FROM messages
         WHERE conversation = %(conversation)s AND seq > %(after)s AND seq <= %(upto)s
         ORDER BY seq LIMIT %(limit)s) AS stretch
 WHERE size <= %(room)s;

-- name: export_messages
-- A stretch of the log with all there is of it.
SELECT seq, session, uid, role, at, body, redacted_at, digest FROM messages
 WHERE conversation = %(conversation)s AND seq > %(after)s AND seq <= %(upto)s
 ORDER BY seq;

-- name: export_routes
-- The routes that name a conversation.
SELECT key, version, updated_at FROM routes WHERE conversation = %(conversation)s ORDER BY key;

-- name: import_message
-- A message as it stands in the end; a trigger counts it in its conversation.
INSERT INTO messages (conversation, seq, session, uid, role, at, body, digest, redacted_at)
VALUES (%(conversation)s, %(seq)s, %(session)s, %(uid)s, %(role)s, %(at)s, %(body)s, %(digest)s, %(redacted_at)s);

-- name: import_compaction
-- A compaction as it stands in the end.
INSERT INTO compactions (conversation, epoch, base_epoch, session, cut_seq, seen_seq, token, body, at,
                         redacted_at, digest)
VALUES (%(conversation)s, %(epoch)s, %(base_epoch)s, %(session)s, %(cut_seq)s, %(seen_seq)s, %(token)s, %(body)s, %(at)s,
        %(redacted_at)s, %(digest)s);

-- name: import_moves
-- Where the conversation stands at an epoch of its history.
UPDATE conversations
   SET epoch = %(epoch)s, head = %(head)s, live = %(live)s, compaction_epoch = %(compaction_epoch)s, redo_epoch = %(redo_epoch)s
 WHERE key = %(key)s;

-- name: import_fence
-- How many lease tokens the conversation has given out.
UPDATE conversations SET fence = %(fence)s WHERE key = %(key)s;

-- name: import_route
-- A key nobody ever bound here.
INSERT INTO routes (key, conversation, version, updated_at) VALUES (%(key)s, %(conversation)s, %(version)s, %(at)s);

-- name: import_unsound
-- Shown messages that lie before the cut of a compaction which was made without them and is in force, or
-- which redo would bring back; and a redo that would not go back to what was undone.
WITH RECURSIVE chain (epoch, base_epoch, cut_seq) AS (
  SELECT k.epoch, k.base_epoch, k.cut_seq FROM conversations c
    JOIN compactions k ON k.conversation = c.key AND k.epoch = coalesce(c.redo_epoch, c.compaction_epoch)
   WHERE c.key = %(key)s
   UNION ALL
  SELECT k.epoch, k.base_epoch, k.cut_seq FROM chain
    JOIN compactions k ON k.conversation = %(key)s AND k.epoch = chain.base_epoch)
SELECT 1 FROM hides h JOIN chain k ON k.epoch < h.shown_epoch AND k.cut_seq >= h.from_seq
 WHERE h.conversation = %(key)s
 UNION ALL
SELECT 1 FROM conversations c JOIN compactions k ON k.conversation = c.key AND k.epoch = c.redo_epoch
 WHERE c.key = %(key)s AND k.base_epoch IS DISTINCT FROM c.compaction_epoch;
