-- name: tombstone
-- Whether an id belonged to a conversation that was deleted.
SELECT 1 FROM tombstones WHERE id = :id;

-- name: conversation
-- Everything people may know of a conversation.
SELECT c.id, c.owner, c.source, c.title, c.created_at, h.id, c.live IS NOT NULL, c.epoch, c.last_seq,
       c.compaction_epoch, c.redo_epoch, c.forked_from, c.forked_at, c.folder, c.metadata
  FROM conversations c JOIN sessions h ON h.conversation = c.key AND h.ordinal = c.head
 WHERE c.key = :key;

-- name: conversation_insert
-- A conversation is born; its first session follows in the same transaction.
INSERT INTO conversations (id, owner, source, title, created_at, head, live, epoch, last_seq,
                           forked_from, forked_at, forked_epoch, origin, folder, metadata)
VALUES (:id, :owner, :source, :title, :at, 1, 1, 1, :last_seq, :forked_from, :forked_at, :forked_epoch, :origin,
        :folder, :metadata);

-- name: conversation_key
-- The inner key of a conversation.
SELECT key FROM conversations WHERE id = :id;

-- name: conversation_moves
-- Head, end or view change: always together with a new epoch, and only from the epoch that was seen.
UPDATE conversations
   SET epoch = epoch + 1, head = :head, live = :live, compaction_epoch = :compaction_epoch, redo_epoch = :redo_epoch
 WHERE key = :key AND epoch = :epoch;

-- name: title_set
-- The title of a conversation, or none.
UPDATE conversations SET title = :title WHERE key = :key;

-- name: folder_set
-- The folder of a conversation, or none.
UPDATE conversations SET folder = :folder WHERE key = :key;

-- name: metadata_get
-- The metadata of a conversation: a JSON object, or NULL.
SELECT metadata FROM conversations WHERE key = :key;

-- name: metadata_set
UPDATE conversations SET metadata = :metadata WHERE key = :key;

-- name: title_holder
-- Who has a title already.
SELECT id FROM conversations WHERE owner = :owner AND title = :title;

-- name: title_holders
-- Conversations with a title, of one owner or of all.
SELECT id FROM conversations WHERE title = :title AND (CAST(:owner AS text) IS NULL OR owner = :owner) ORDER BY key LIMIT 11;

-- name: session_insert
-- A session is born live, where the one before it stopped.
INSERT INTO sessions (conversation, ordinal, id, parent, live, source, model, started_at, first_seq)
VALUES (:conversation, :ordinal, :id, :parent, 1, :source, :model, :at, :first_seq);

-- name: session_end
-- The live head ends, at the last message of its conversation.
UPDATE sessions SET live = NULL, ended_at = :at, end_reason = :reason, last_seq = :last_seq
 WHERE conversation = :conversation AND ordinal = :ordinal AND live = 1;

-- name: session_origin
-- Source, model and end of a session, for its continuation.
SELECT source, model, end_reason FROM sessions WHERE conversation = :conversation AND ordinal = :ordinal;

-- name: session_id_at
-- The id of one session of a conversation.
SELECT id FROM sessions WHERE conversation = :conversation AND ordinal = :ordinal;

-- name: session_holding
-- The session a seq belongs to.
SELECT ordinal, id FROM sessions
 WHERE conversation = :conversation AND first_seq <= :seq AND (last_seq IS NULL OR last_seq >= :seq);

-- name: session_names
-- Ids of a range of sessions of a conversation.
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
SELECT key, id, forked_at FROM conversations WHERE origin = :conversation ORDER BY key;

-- name: session_place
-- Which session of which conversation an id is.
SELECT conversation, ordinal FROM sessions WHERE id = :id;

-- name: lock_conversation, look_conversation
-- Where the conversation of any session id stands. (BEGIN IMMEDIATE has locked the whole file already.)
SELECT c.key, c.id, c.owner, c.source, c.title, c.head, h.id, c.live, c.epoch, c.last_seq,
       c.compaction_epoch, c.redo_epoch, coalesce(c.forked_at, 0), c.origin, c.forked_epoch, s.ordinal
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation
  JOIN sessions h ON h.conversation = c.key AND h.ordinal = c.head
 WHERE s.id = :id;

-- name: session_get
-- One session with all that people may know of it.
SELECT s.id, c.id, s.ordinal, coalesce(p.id, c.forked_from), c.owner, s.source, s.model, c.title, s.started_at,
       s.ended_at, s.end_reason, s.first_seq, coalesce(s.last_seq, c.last_seq),
       coalesce((SELECT at FROM messages m WHERE message_at(m, c.key, c.last_seq)), s.started_at), c.folder, c.metadata
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation
  LEFT JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE s.id = :id;

-- name: sessions_of
-- Every session of a conversation, in order.
SELECT s.id, c.id, s.ordinal, coalesce(p.id, c.forked_from), c.owner, s.source, s.model, c.title, s.started_at,
       s.ended_at, s.end_reason, s.first_seq, coalesce(s.last_seq, c.last_seq),
       coalesce((SELECT at FROM messages m WHERE message_at(m, c.key, c.last_seq)), s.started_at), c.folder, c.metadata
  FROM sessions s
  JOIN conversations c ON c.key = s.conversation
  LEFT JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.parent
 WHERE s.conversation = :conversation
 ORDER BY s.ordinal;
