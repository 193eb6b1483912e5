-- name: search_state
-- Changes whenever anything the search index depends on does.
SELECT (SELECT value FROM meta WHERE key = 'generation'), count(*), coalesce(max(key), 0), coalesce(sum(last_seq), 0),
       coalesce(sum(epoch), 0)
  FROM conversations;

-- name: search_conversations
-- What there is to index.
SELECT key, last_seq, coalesce(forked_at, 0), owner FROM conversations;

-- name: search_redacted
-- Messages whose words must be in no index.
SELECT conversation, seq FROM messages WHERE redacted_at IS NOT NULL;

-- name: search_candidate
-- What a candidate is ranked and filtered by; nothing of a message whose text is gone.
SELECT m.role, m.at, c.owner FROM messages m JOIN conversations c ON c.key = :conversation
 WHERE m.id = (:conversation << 32) + :seq AND m.redacted_at IS NULL;

-- name: search_message
-- A message that was found, with what people may know of it.
SELECT s.id, m.role, m.at, m.body, c.id
  FROM messages m
  JOIN conversations c ON c.key = m.conversation
  JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session
 WHERE m.id = (:conversation << 32) + :seq;
