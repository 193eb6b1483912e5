-- name: backlog_routes
-- The routes with open messages, the one with the oldest first: how many, since when, and the most attempts at one.
SELECT route, count(*), min(at), max(attempts) FROM arrivals
 WHERE outcome IS NULL AND joined IS NULL GROUP BY route ORDER BY min(id) LIMIT :limit;

-- name: backlog_outgoing
-- The undelivered messages by platform: how many, since when, when the next is due, and the last error.
SELECT platform, count(*), min(at), min(due_at),
       (SELECT e.error FROM outbox e
         WHERE e.platform = o.platform AND e.delivered_at IS NULL AND e.failed_at IS NULL AND e.error IS NOT NULL
         ORDER BY e.id DESC LIMIT 1)
  FROM outbox o WHERE delivered_at IS NULL AND failed_at IS NULL GROUP BY platform ORDER BY platform;
