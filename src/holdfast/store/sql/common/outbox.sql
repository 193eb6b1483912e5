-- name: post_insert
INSERT INTO outbox (arrival, key, conversation, seq, platform, chat, address, kind, body, at, due_at)
VALUES (:arrival, :key, :conversation, :seq, :platform, :chat, :address, :kind, :body, :at, :at);

-- name: reply_insert
-- One part of a reply, if this call settled the message that it answers and the part does not exist.
INSERT INTO outbox (arrival, inbound, part, conversation, seq, platform, chat, address, kind, body, at, due_at)
SELECT answered.arrival, answered.inbound, CAST(:part AS bigint), answered.conversation, CAST(:seq AS bigint),
       CAST(:platform AS text), CAST(:chat AS text), CAST(:address AS text), CAST(:kind AS text), CAST(:body AS text),
       CAST(:at AS double precision), CAST(:at AS double precision)
  FROM (SELECT id AS arrival, CAST(NULL AS bigint) AS inbound, conversation FROM arrivals
         WHERE id = :id AND settled_by = :uid
         UNION ALL
        SELECT NULL, id, conversation FROM inbox WHERE id = :id AND settled_by = :uid) answered
 WHERE NOT EXISTS (SELECT 1 FROM outbox o
                    WHERE o.part = :part AND (o.arrival = answered.arrival OR o.inbound = answered.inbound));

-- name: outgoing_get
SELECT o.id, o.platform, o.chat, o.address, o.body, o.kind, o.at, o.arrival, o.inbound, o.part, o.key, c.id, o.seq,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL, 0
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation WHERE o.id = :id;

-- name: outgoing_by_key
SELECT o.id, o.platform, o.chat, o.address, o.body, o.kind, o.at, o.arrival, o.inbound, o.part, o.key, c.id, o.seq,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL, 0
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation WHERE o.key = :key;

-- name: outgoing_of_arrival
-- The replies to an inbound message, and the posts of its turn.
SELECT o.id, o.platform, o.chat, o.address, o.body, o.kind, o.at, o.arrival, o.inbound, o.part, o.key, c.id, o.seq,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL, 0
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation WHERE o.arrival = :arrival ORDER BY o.id;

-- name: outgoing_questions
-- The questions of a conversation, newest first, without copies that were sent again.
SELECT o.id, o.platform, o.chat, o.address, o.body, o.kind, o.at, o.arrival, o.inbound, o.part, o.key, c.id, o.seq,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL, 0
  FROM outbox o JOIN conversations c ON c.key = o.conversation
 WHERE o.conversation = :conversation AND o.kind = 'question' AND substr(o.key, 1, 9) = 'question:'
 ORDER BY o.id DESC LIMIT :limit;

-- name: outgoing_due
-- The first undelivered message of each chat, if it is due, and how many undelivered messages are behind it.
SELECT o.id, o.platform, o.chat, o.address, o.body, o.kind, o.at, o.arrival, o.inbound, o.part, o.key, c.id, o.seq,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL, w.waiting - 1
  FROM (SELECT min(id) AS id, count(*) AS waiting FROM outbox
         WHERE platform = :platform AND delivered_at IS NULL AND failed_at IS NULL GROUP BY chat) w
       JOIN outbox o ON o.id = w.id LEFT JOIN conversations c ON c.key = o.conversation
 WHERE o.due_at <= :now
 ORDER BY o.due_at, o.id LIMIT :limit;

-- name: outgoing_failures
-- The messages that could not be sent, the last first, without those that were queued again.
SELECT o.id, o.platform, o.chat, o.address, o.body, o.kind, o.at, o.arrival, o.inbound, o.part, o.key, c.id, o.seq,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at IS NOT NULL, 0
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation
 WHERE o.failed_at IS NOT NULL AND o.redacted_at IS NULL AND o.platform <> :except_platform
   AND NOT EXISTS (SELECT 1 FROM outbox n WHERE n.key = 'again:' || o.id)
 ORDER BY o.failed_at DESC, o.id DESC LIMIT :limit;

-- name: outgoing_origin
-- The last call that began to send it, and the chat of the inbound message that it answers, unless that was redacted.
SELECT o.attempted_by, a.home, a.chat, a.address
  FROM outbox o LEFT JOIN arrivals a ON a.id = o.arrival AND a.address <> '' WHERE o.id = :id;

-- name: outgoing_begin
-- Count an attempt to send it, once per uid, if the chat lease is held and it goes to the chat of the message it answers.
UPDATE outbox SET attempts = attempts + 1, attempted_by = :uid
 WHERE id = :id AND delivered_at IS NULL AND failed_at IS NULL AND attempted_by IS DISTINCT FROM :uid
   AND coalesce((SELECT token FROM claims WHERE key = :lease AND substr(holder, 1, length(CAST(:holder AS text))) = :holder), 0) = :token
   AND NOT EXISTS (SELECT 1 FROM arrivals a
                    WHERE a.id = outbox.arrival AND a.address <> ''
                      AND (a.home <> outbox.platform OR a.chat <> outbox.chat OR a.address <> outbox.address));

-- name: outgoing_delivered
UPDATE outbox SET delivered_at = :at, external = :external
 WHERE id = :id AND delivered_at IS NULL AND failed_at IS NULL RETURNING id;

-- name: outgoing_failed
-- Record that it will not be sent any more.
UPDATE outbox SET failed_at = :at, error = :error WHERE id = :id AND delivered_at IS NULL AND failed_at IS NULL
RETURNING id;

-- name: outgoing_retry
-- Record a failed attempt, and the time of the next one.
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
