-- name: tombstone
-- Whether an id belonged to a conversation that was deleted.
SELECT 1 FROM tombstones WHERE id = :id;

-- name: conversation
SELECT c.id, c.owner, c.source, c.title, c.created_at, h.id, c.live IS NOT NULL, c.epoch, c.last_seq,
       c.compaction_epoch, c.redo_epoch, c.forked_from, c.forked_at, c.folder, c.metadata
  FROM conversations c JOIN sessions h ON h.conversation = c.key AND h.ordinal = c.head
 WHERE c.key = :key;

-- name: conversation_insert
-- Its first session is inserted in the same transaction.
INSERT INTO conversations (id, owner, source, title, created_at, head, live, epoch, last_seq,
                           forked_from, forked_at, forked_epoch, origin, folder, metadata)
VALUES (:id, :owner, :source, :title, :at, 1, 1, 1, :last_seq, :forked_from, :forked_at, :forked_epoch, :origin,
        :folder, :metadata)
RETURNING key;

-- name: conversation_key
SELECT key FROM conversations WHERE id = :id;

-- name: conversation_update
-- Change head, end or view with a new epoch, if the epoch is still the one that was read.
UPDATE conversations
   SET epoch = epoch + 1, head = :head, live = :live, compaction_epoch = :compaction_epoch, redo_epoch = :redo_epoch
 WHERE key = :key AND epoch = :epoch
RETURNING epoch;

-- name: title_set
UPDATE conversations SET title = :title WHERE key = :key;

-- name: folder_set
UPDATE conversations SET folder = :folder WHERE key = :key;

-- name: metadata_get
SELECT metadata FROM conversations WHERE key = :key;

-- name: metadata_set
UPDATE conversations SET metadata = :metadata WHERE key = :key;

-- name: title_holder
-- The conversation of an owner that has a title.
SELECT id FROM conversations WHERE owner = :owner AND title = :title;

-- name: title_holders
-- Conversations with a title, of one owner or of all.
SELECT id FROM conversations WHERE title = :title AND (CAST(:owner AS text) IS NULL OR owner = :owner) ORDER BY key LIMIT 11;

-- name: session_insert
-- The session is live and begins after the last message.
INSERT INTO sessions (conversation, ordinal, id, parent, live, source, model, started_at, first_seq)
VALUES (:conversation, :ordinal, :id, :parent, 1, :source, :model, :at, :first_seq);

-- name: session_end
-- End a live session at the last message of its conversation.
UPDATE sessions SET live = NULL, ended_at = :at, end_reason = :reason, last_seq = :last_seq
 WHERE conversation = :conversation AND ordinal = :ordinal AND live = 1;

-- name: session_origin
-- The values that a continuation takes from the session before it, and how that one ended.
SELECT source, model, end_reason FROM sessions WHERE conversation = :conversation AND ordinal = :ordinal;

-- name: session_id_at
SELECT id FROM sessions WHERE conversation = :conversation AND ordinal = :ordinal;

-- name: session_holding
-- The session that a message belongs to.
SELECT ordinal, id FROM sessions
 WHERE conversation = :conversation AND first_seq <= :seq AND (last_seq IS NULL OR last_seq >= :seq);

-- name: session_names
SELECT ordinal, id FROM sessions WHERE conversation = :conversation AND ordinal BETWEEN :low AND :high;

-- name: prefix_candidates
-- Conversations one of whose session ids begins with this text.
SELECT DISTINCT c.id FROM sessions s JOIN conversations c ON c.key = s.conversation
 WHERE s.id >= :start AND s.id < :stop AND (CAST(:owner AS text) IS NULL OR c.owner = :owner)
 ORDER BY c.id LIMIT 11;

-- name: branches_of
-- Conversations that began from a session of this one.
SELECT c.id FROM conversations c JOIN sessions s ON s.id = c.forked_from
 WHERE s.conversation = :conversation ORDER BY c.key;

-- name: branches_reading
-- Conversations that read messages of this one.
SELECT id, key, forked_at FROM conversations WHERE origin = :conversation ORDER BY key;

-- name: session_place
-- The conversation and ordinal of a session id.
SELECT conversation, ordinal FROM sessions WHERE id = :id;

-- name: lock_conversation, read_conversation
-- The conversation of any session id: see ConversationRow. (In SQLite, BEGIN IMMEDIATE has locked it already.)
SELECT c.key, c.id, c.owner, c.source, c.title, c.head, h.id, c.live, c.epoch, c.last_seq,
       c.compaction_epoch, c.redo_epoch, coalesce(c.forked_at, 0), c.origin, c.forked_epoch, s.ordinal
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation
  JOIN sessions h ON h.conversation = c.key AND h.ordinal = c.head
 WHERE s.id = :id;

-- name: session_get
-- A session as types.Session.
SELECT s.id, c.id, s.ordinal, coalesce(p.id, c.forked_from), c.owner, s.source, s.model, c.title, s.started_at,
       s.ended_at, s.end_reason, s.first_seq, coalesce(s.last_seq, c.last_seq),
       coalesce((SELECT at FROM messages m WHERE message_at(m, c.key, c.last_seq)), s.started_at), c.folder, c.metadata
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation
  LEFT JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE s.id = :id;

-- name: sessions_of
-- Every session of a conversation, in order, as types.Session.
SELECT s.id, c.id, s.ordinal, coalesce(p.id, c.forked_from), c.owner, s.source, s.model, c.title, s.started_at,
       s.ended_at, s.end_reason, s.first_seq, coalesce(s.last_seq, c.last_seq),
       coalesce((SELECT at FROM messages m WHERE message_at(m, c.key, c.last_seq)), s.started_at), c.folder, c.metadata
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation
  LEFT JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE s.conversation = :conversation
 ORDER BY s.ordinal;
