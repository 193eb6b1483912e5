-- name: search_state
-- Changes whenever anything the search index depends on does; the first column is the store's generation.
SELECT (SELECT value FROM meta WHERE key = 'generation'), count(*), CAST(coalesce(sum(key), 0) AS text),
       CAST(coalesce(sum(last_seq), 0) AS text), CAST(coalesce(sum(epoch), 0) AS text)
  FROM conversations;

-- name: search_conversations
SELECT key, last_seq, coalesce(forked_at, 0), owner FROM conversations;

-- name: search_redacted
SELECT conversation, seq FROM messages WHERE redacted_at IS NOT NULL;

-- name: search_redactions
-- Changes with every redaction.
SELECT count(*), CAST(coalesce(sum(conversation), 0) AS text), CAST(coalesce(sum(seq), 0) AS text), coalesce(max(redacted_at), 0)
  FROM messages WHERE redacted_at IS NOT NULL;
