-- name: inbox_insert
INSERT INTO inbox (conversation, key, kind, text, at) VALUES (:conversation, :key, :kind, :text, :at);

-- name: inbox_by_key
SELECT i.id, i.key, c.id, i.text, i.kind, i.at, i.outcome, i.seq, i.redacted_at IS NOT NULL
  FROM inbox i JOIN conversations c ON c.key = i.conversation WHERE i.key = :key;

-- name: inbox_open
-- The open entries of one conversation, oldest first; one row of NULLs if there are none.
SELECT i.id, i.key, c.id, i.text, i.kind, i.at, i.outcome, i.seq
  FROM sessions s JOIN conversations c ON c.key = s.conversation
       LEFT JOIN inbox i ON i.conversation = c.key AND i.outcome IS NULL
 WHERE s.id = :session ORDER BY i.id LIMIT :limit;

-- name: inbox_open_everywhere
SELECT i.id, i.key, c.id, i.text, i.kind, i.at, i.outcome, i.seq
  FROM inbox i JOIN conversations c ON c.key = i.conversation
 WHERE i.outcome IS NULL ORDER BY i.id LIMIT :limit;

-- name: inbox_routes
-- The conversations with open entries and inbound messages: the oldest open entry, and the route of the last message.
SELECT c.id, w.oldest,
       (SELECT route FROM arrivals a WHERE a.conversation = c.key AND a.address <> '' ORDER BY a.id DESC LIMIT 1)
  FROM (SELECT conversation, min(id) AS oldest FROM inbox WHERE outcome IS NULL GROUP BY conversation) w
  JOIN conversations c ON c.key = w.conversation
 WHERE EXISTS (SELECT 1 FROM arrivals a WHERE a.conversation = c.key AND a.address <> '')
 ORDER BY w.oldest LIMIT :limit;

-- name: inbox_settle
UPDATE inbox SET outcome = :outcome, seq = :seq, settled_at = :at, settled_by = :uid WHERE id = :id AND outcome IS NULL;

-- name: inbox_settled_by
SELECT settled_by FROM inbox WHERE id = :id;

-- name: inbox_redact_message
-- Redact the entries that became a message.
UPDATE inbox SET text = '', redacted_at = :at WHERE conversation = :conversation AND seq = :seq AND redacted_at IS NULL;

-- name: inbox_redact_key
-- Redact an entry. An open one is settled, as nothing is left to answer.
UPDATE inbox SET text = '', redacted_at = :at, outcome = coalesce(outcome, 'redacted'),
       settled_at = coalesce(settled_at, :at), settled_by = coalesce(settled_by, 'redaction')
 WHERE key = :key AND redacted_at IS NULL;

-- name: conversation_has_open_work
-- Whether a conversation has open entries, undelivered messages, a message in progress or a running process.
SELECT EXISTS (SELECT 1 FROM inbox WHERE conversation = :conversation AND outcome IS NULL)
    OR EXISTS (SELECT 1 FROM processes WHERE conversation = :conversation AND state = 'running')
    OR EXISTS (SELECT 1 FROM outbox
                WHERE conversation = :conversation AND delivered_at IS NULL AND failed_at IS NULL)
    OR EXISTS (SELECT 1 FROM arrivals
                WHERE outcome IS NULL AND target IN (SELECT id FROM sessions WHERE conversation = :conversation));

-- name: inbox_conversation
SELECT c.id FROM inbox i JOIN conversations c ON c.key = i.conversation WHERE i.id = :id;
