-- name: tidy_window
-- The next ones that came in, a few at a time: up to where, and how old the oldest is.
SELECT max(id), min(at) FROM (SELECT id, at FROM arrivals WHERE id > :after ORDER BY id LIMIT :most) w;

-- name: tidy_outgoing
-- What ended long ago of what was sent because of those, all parts together, where what it answers goes with it.
DELETE FROM outbox
 WHERE arrival > :after AND arrival <= :upto AND coalesce(delivered_at, failed_at) < :before
   AND NOT EXISTS (SELECT 1 FROM outbox o
                    WHERE o.arrival = outbox.arrival AND coalesce(o.delivered_at, o.failed_at, :before) >= :before)
   AND EXISTS (
         SELECT 1 FROM arrivals a
          WHERE a.id = outbox.arrival AND a.settled_at < :before
            AND NOT EXISTS (SELECT 1 FROM arrivals j WHERE j.joined = a.id AND j.id > :upto)
            AND (a.conversation IS NULL OR a.id < (SELECT max(n.id) FROM arrivals n
                                                    WHERE n.conversation = a.conversation AND n.joined IS NULL)));

-- name: tidy_arrivals
-- Those that were settled long ago, but for the last of each conversation and what something still hangs on.
DELETE FROM arrivals
 WHERE id > :after AND id <= :upto AND settled_at < :before
   AND NOT EXISTS (SELECT 1 FROM arrivals o WHERE o.joined = arrivals.id)
   AND NOT EXISTS (SELECT 1 FROM outbox WHERE arrival = arrivals.id)
   AND (joined IS NOT NULL OR conversation IS NULL
     OR id < (SELECT max(o.id) FROM arrivals o WHERE o.conversation = arrivals.conversation AND o.joined IS NULL));

-- name: tidy_posted_window
-- The same of what was sent by itself, or for a notice.
SELECT max(id), min(at) FROM (SELECT id, at FROM outbox WHERE id > :after ORDER BY id LIMIT :most) w;

-- name: tidy_posted
DELETE FROM outbox
 WHERE id > :after AND id <= :upto AND arrival IS NULL AND coalesce(delivered_at, failed_at) < :before
   AND NOT EXISTS (SELECT 1 FROM outbox o
                    WHERE o.inbound = outbox.inbound AND coalesce(o.delivered_at, o.failed_at, :before) >= :before);
