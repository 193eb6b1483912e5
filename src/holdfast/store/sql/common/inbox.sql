-- name: inbound_insert
INSERT INTO inbox (conversation, key, kind, text, at) VALUES (:conversation, :key, :kind, :text, :at);

-- name: inbound_by_key
-- What came in under a key, and whether its text was taken out since.
SELECT i.id, i.key, c.id, i.text, i.kind, i.at, i.outcome, i.seq, i.redacted_at IS NOT NULL
  FROM inbox i JOIN conversations c ON c.key = i.conversation WHERE i.key = :key;

-- name: inbound_waiting
-- The open messages in the inbox of one conversation, oldest first; one row of NULLs where there are none.
SELECT i.id, i.key, c.id, i.text, i.kind, i.at, i.outcome, i.seq
  FROM sessions s JOIN conversations c ON c.key = s.conversation
       LEFT JOIN inbox i ON i.conversation = c.key AND i.outcome IS NULL
 WHERE s.id = :session ORDER BY i.id LIMIT :limit;

-- name: inbound_waiting_anywhere
SELECT i.id, i.key, c.id, i.text, i.kind, i.at, i.outcome, i.seq
  FROM inbox i JOIN conversations c ON c.key = i.conversation
 WHERE i.outcome IS NULL ORDER BY i.id LIMIT :limit;

-- name: inbound_homes
-- Conversations in which something waits and that were spoken to from outside: where from, last, and what waits longest.
SELECT c.id, w.oldest,
       (SELECT route FROM arrivals a WHERE a.conversation = c.key AND a.address <> '' ORDER BY a.id DESC LIMIT 1)
  FROM (SELECT conversation, min(id) AS oldest FROM inbox WHERE outcome IS NULL GROUP BY conversation) w
  JOIN conversations c ON c.key = w.conversation
 WHERE EXISTS (SELECT 1 FROM arrivals a WHERE a.conversation = c.key AND a.address <> '')
 ORDER BY w.oldest LIMIT :limit;

-- name: inbound_settle
-- What became of it, said by the first who knows.
UPDATE inbox SET outcome = :outcome, seq = :seq, settled_at = :at, settled_by = :uid WHERE id = :id AND outcome IS NULL;

-- name: inbound_settled_by
SELECT settled_by FROM inbox WHERE id = :id;

-- name: inbound_redact_message
-- The text of what became a message goes with that message.
UPDATE inbox SET text = '', redacted_at = :at WHERE conversation = :conversation AND seq = :seq AND redacted_at IS NULL;

-- name: inbound_redact_key
-- The text goes; what waited is settled by that, for there is nothing left to answer.
UPDATE inbox SET text = '', redacted_at = :at, outcome = coalesce(outcome, 'redacted'),
       settled_at = coalesce(settled_at, :at), settled_by = coalesce(settled_by, 'redaction')
 WHERE key = :key AND redacted_at IS NULL;

-- name: conversation_awaited
-- Whether something waits to be answered in a conversation or to be sent from it, or a process of it runs.
SELECT EXISTS (SELECT 1 FROM inbox WHERE conversation = :conversation AND outcome IS NULL)
    OR EXISTS (SELECT 1 FROM processes WHERE conversation = :conversation AND state = 'running')
    OR EXISTS (SELECT 1 FROM outbox
                WHERE conversation = :conversation AND delivered_at IS NULL AND failed_at IS NULL)
    OR EXISTS (SELECT 1 FROM arrivals
                WHERE outcome IS NULL AND target IN (SELECT id FROM sessions WHERE conversation = :conversation));

-- name: inbound_conversation
-- In which conversation something came in.
SELECT c.id FROM inbox i JOIN conversations c ON c.key = i.conversation WHERE i.id = :id;
