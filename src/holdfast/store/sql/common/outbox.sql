-- name: outgoing_insert
INSERT INTO outbox (arrival, inbound, part, key, conversation, seq, platform, chat, address, kind, body, at, due_at)
VALUES (:arrival, :inbound, :part, :key, :conversation, :seq, :platform, :chat, :address, :kind, :body, :at, :at);

-- name: outgoing_get
SELECT o.id, o.arrival, o.inbound, o.part, o.key, c.id, o.seq, o.platform, o.chat, o.address, o.kind, o.body, o.at,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation WHERE o.id = :id;

-- name: outgoing_by_key
SELECT o.id, o.arrival, o.inbound, o.part, o.key, c.id, o.seq, o.platform, o.chat, o.address, o.kind, o.body, o.at,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation WHERE o.key = :key;

-- name: outgoing_of
-- What goes out because of an arrival.
SELECT o.id, o.arrival, o.inbound, o.part, o.key, c.id, o.seq, o.platform, o.chat, o.address, o.kind, o.body, o.at,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation WHERE o.arrival = :arrival ORDER BY o.id;

-- name: outgoing_questions
-- What a conversation asked people, the last first; not what was sent once more since.
SELECT o.id, o.arrival, o.inbound, o.part, o.key, c.id, o.seq, o.platform, o.chat, o.address, o.kind, o.body, o.at,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL
  FROM outbox o JOIN conversations c ON c.key = o.conversation
 WHERE o.conversation = :conversation AND o.kind = 'question' AND substr(o.key, 1, 9) = 'question:'
 ORDER BY o.id DESC LIMIT :limit;

-- name: outgoing_due
-- The first undelivered message of each chat, if it is due, and how many undelivered messages the chat has.
SELECT o.id, o.arrival, o.inbound, o.part, o.key, c.id, o.seq, o.platform, o.chat, o.address, o.kind, o.body, o.at,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL, w.waiting
  FROM (SELECT min(id) AS id, count(*) AS waiting FROM outbox
         WHERE platform = :platform AND delivered_at IS NULL AND failed_at IS NULL GROUP BY chat) w
       JOIN outbox o ON o.id = w.id LEFT JOIN conversations c ON c.key = o.conversation
 WHERE o.due_at <= :now
 ORDER BY o.due_at, o.id LIMIT :limit;

-- name: outgoing_origin
-- The chat of the inbound message that it answers, unless that was redacted.
SELECT a.home, a.chat, a.address FROM outbox o JOIN arrivals a ON a.id = o.arrival WHERE o.id = :id AND a.address <> '';

-- name: outgoing_begin
-- One more attempt to send it.
UPDATE outbox SET attempts = attempts + 1 WHERE id = :id AND delivered_at IS NULL AND failed_at IS NULL RETURNING id;

-- name: outgoing_delivered
UPDATE outbox SET delivered_at = :at, external = :external
 WHERE id = :id AND delivered_at IS NULL AND failed_at IS NULL RETURNING id;

-- name: outgoing_failed
-- It will never be sent.
UPDATE outbox SET failed_at = :at, error = :error WHERE id = :id AND delivered_at IS NULL AND failed_at IS NULL
RETURNING id;

-- name: outgoing_later
-- It is tried again from then on.
UPDATE outbox SET due_at = :at, error = :error WHERE id = :id AND delivered_at IS NULL AND failed_at IS NULL
RETURNING id;

-- name: outgoing_redact_message
-- Redact the deliveries of a message. A delivery that names no message is redacted with its turn: the one that began
-- with the last inbound message before the redacted one.
UPDATE outbox
   SET body = '', redacted_at = :at, failed_at = CASE WHEN delivered_at IS NULL THEN coalesce(failed_at, CAST(:at AS double precision)) END,
       error = CASE WHEN delivered_at IS NULL AND failed_at IS NULL THEN 'redacted' ELSE error END
 WHERE conversation = :conversation AND redacted_at IS NULL
   AND (seq = :seq
     OR (seq IS NULL
         AND coalesce((SELECT seq FROM arrivals WHERE id = outbox.arrival), (SELECT seq FROM inbox WHERE id = outbox.inbound))
             = (SELECT max(seq) FROM (SELECT seq FROM arrivals WHERE conversation = :conversation AND seq <= :seq
                                       UNION ALL
                                      SELECT seq FROM inbox WHERE conversation = :conversation AND seq <= :seq) began)));

-- name: outgoing_forget
-- What ended long ago, all parts together, and what it answered goes with it.
DELETE FROM outbox
 WHERE coalesce(delivered_at, failed_at) < :before
   AND NOT EXISTS (SELECT 1 FROM outbox o WHERE (o.arrival = outbox.arrival OR o.inbound = outbox.inbound)
                                            AND coalesce(o.delivered_at, o.failed_at, :before) >= :before)
   AND (arrival IS NULL OR EXISTS (
         SELECT 1 FROM arrivals a
          WHERE a.id = outbox.arrival AND a.settled_at < :before
            AND (a.conversation IS NULL OR a.id < (SELECT max(n.id) FROM arrivals n
                                                    WHERE n.conversation = a.conversation AND n.joined IS NULL))));
