-- name: expire_arrivals_window
-- The last id of the next batch of inbound messages, and the time of the oldest.
SELECT max(id), min(at) FROM (SELECT id, at FROM arrivals WHERE id > :after ORDER BY id LIMIT :limit) batch;

-- name: expire_replies
-- Delete the replies to a batch of inbound messages if all parts of a reply ended and its inbound message expires, too.
DELETE FROM outbox
 WHERE arrival > :after AND arrival <= :last AND coalesce(delivered_at, failed_at) < :before
   AND NOT EXISTS (SELECT 1 FROM outbox o
                    WHERE o.arrival = outbox.arrival AND coalesce(o.delivered_at, o.failed_at, :before) >= :before)
   AND EXISTS (
         SELECT 1 FROM arrivals a
          WHERE a.id = outbox.arrival AND a.settled_at < :before
            AND NOT EXISTS (SELECT 1 FROM arrivals j WHERE j.joined = a.id AND j.id > :last)
            AND (linked_owner(a) IS NULL
              OR EXISTS (SELECT 1 FROM arrivals l WHERE l.route = a.route AND l.address <> '' AND l.at > a.at))
            AND (a.conversation IS NULL OR a.id < (SELECT max(n.id) FROM arrivals n
                                                    WHERE n.conversation = a.conversation AND n.joined IS NULL)));

-- name: expire_arrivals
-- Keep the last inbound message of each conversation and, for the copies of turns, of each route of a linked sender, and
-- messages that others were joined into or replies refer to.
DELETE FROM arrivals
 WHERE id > :after AND id <= :last AND settled_at < :before
   AND NOT EXISTS (SELECT 1 FROM arrivals o WHERE o.joined = arrivals.id)
   AND NOT EXISTS (SELECT 1 FROM outbox WHERE arrival = arrivals.id)
   AND (linked_owner(arrivals) IS NULL
     OR EXISTS (SELECT 1 FROM arrivals l WHERE l.route = arrivals.route AND l.address <> '' AND l.at > arrivals.at))
   AND (joined IS NOT NULL OR conversation IS NULL
     OR id < (SELECT max(o.id) FROM arrivals o WHERE o.conversation = arrivals.conversation AND o.joined IS NULL));

-- name: expire_posts_window
SELECT max(id), min(at) FROM (SELECT id, at FROM outbox WHERE id > :after ORDER BY id LIMIT :limit) batch;

-- name: expire_posts
-- Delete outbound messages that answer no inbound message.
DELETE FROM outbox
 WHERE id > :after AND id <= :last AND arrival IS NULL AND coalesce(delivered_at, failed_at) < :before
   AND NOT EXISTS (SELECT 1 FROM outbox o
                    WHERE o.inbound = outbox.inbound AND coalesce(o.delivered_at, o.failed_at, :before) >= :before);
