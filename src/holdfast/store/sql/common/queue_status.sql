-- name: backlog_routes
-- The chats where something waits, the longest waiting first: how much, since when, and how often it was begun.
SELECT route, count(*), min(at), max(attempts) FROM arrivals
 WHERE outcome IS NULL AND joined IS NULL GROUP BY route ORDER BY min(id) LIMIT :limit;

-- name: backlog_outgoing
-- What is to be sent, by platform: how much, since when, when it is tried again, and why it was not taken last.
SELECT platform, count(*), min(at), min(due_at),
       (SELECT e.error FROM outbox e
         WHERE e.platform = o.platform AND e.delivered_at IS NULL AND e.failed_at IS NULL AND e.error IS NOT NULL
         ORDER BY e.id DESC LIMIT 1)
  FROM outbox o WHERE delivered_at IS NULL AND failed_at IS NULL GROUP BY platform ORDER BY platform;

-- name: backlog_failed
-- What could not be sent and was not given up to be sent again, the last first. A connection that is gone is no loss.
SELECT o.id FROM outbox o
 WHERE o.failed_at IS NOT NULL AND o.redacted_at IS NULL AND o.platform <> :but
   AND NOT EXISTS (SELECT 1 FROM outbox n WHERE n.key = 'again:' || o.id)
 ORDER BY o.failed_at DESC, o.id DESC LIMIT :limit;
