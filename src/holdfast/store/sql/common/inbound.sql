-- name: arrival_insert
-- What came in, unless it is known.
INSERT INTO arrivals (platform, key, route, home, chat, sender, address, body, at)
VALUES (:platform, :key, :route, :home, :chat, :sender, :address, :body, :at)
ON CONFLICT (platform, key) DO NOTHING
RETURNING id;

-- name: arrival_get
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.id = :id;

-- name: arrival_by_key
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.platform = :platform AND a.key = :key;

-- name: arrivals_between
-- The arrivals of a platform whose keys lie between two others, newest first.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation
 WHERE a.platform = :platform AND a.key >= :first AND a.key < :last ORDER BY a.id DESC LIMIT :limit;

-- name: arrival_last
-- The latest arrival of a platform that became a message of a conversation.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a JOIN conversations c ON c.key = a.conversation
 WHERE a.conversation = :conversation AND a.platform = :platform ORDER BY a.id DESC LIMIT 1;

-- name: arrivals_on
-- What is open on one route, oldest first; what was joined is taken care of.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, NULL, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a
 WHERE a.route = :route AND a.outcome IS NULL AND a.joined IS NULL ORDER BY a.id LIMIT :limit;

-- name: routes_open
-- Where something is open; what is open for longest first.
SELECT route FROM arrivals WHERE outcome IS NULL AND joined IS NULL GROUP BY route ORDER BY min(id) LIMIT :limit;

-- name: arrivals_joined_to
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.joined = :id ORDER BY a.id;

-- name: arrivals_since
SELECT count(*) FROM arrivals WHERE route = :route AND at >= :at;

-- name: arrivals_from
SELECT count(*) FROM arrivals WHERE platform = :platform AND sender = :sender AND at >= :at;

-- name: arrival_begin
-- One more attempt; the first says where.
UPDATE arrivals SET attempts = attempts + 1, target = coalesce(target, :target) WHERE id = :id AND outcome IS NULL
RETURNING id;

-- name: arrival_join
-- Only into one that is open: the attempt that joins it may have found it settled.
UPDATE arrivals SET joined = :into
 WHERE id = :id AND outcome IS NULL AND joined IS NULL
   AND EXISTS (SELECT 1 FROM arrivals open WHERE open.id = :into AND open.outcome IS NULL);

-- name: arrival_settled
-- The attempt that settled it; NULL while it is open.
SELECT settled_by FROM arrivals WHERE id = :id;

-- name: arrival_settle
-- The outcome of an inbound message, and of those that were joined into it.
UPDATE arrivals SET outcome = :outcome, conversation = :conversation, seq = :seq, settled_at = :at, settled_by = :uid
 WHERE (id = :id OR joined = :id) AND outcome IS NULL;

-- name: route_with_inbox
-- The conversation that a route names, and whether something waits in its inbox.
SELECT r.key, c.id, r.version,
       EXISTS (SELECT 1 FROM inbox i WHERE i.conversation = r.conversation AND i.outcome IS NULL)
  FROM routes r LEFT JOIN conversations c ON c.key = r.conversation WHERE r.key = :key;

-- name: arrival_home
-- Where a conversation was last spoken to from.
SELECT home, chat, address, route FROM arrivals
 WHERE conversation = :conversation AND address <> '' ORDER BY id DESC LIMIT 1;

-- name: arrival_redact_message
-- What became a message goes with that message; where replies go stays known.
UPDATE arrivals SET body = '', redacted_at = :at
 WHERE conversation = :conversation AND seq = :seq AND redacted_at IS NULL;

-- name: arrivals_forget
-- What was settled long ago, but for the last of each conversation and what something still hangs on.
DELETE FROM arrivals
 WHERE settled_at < :before AND NOT EXISTS (SELECT 1 FROM arrivals o WHERE o.joined = arrivals.id)
   AND NOT EXISTS (SELECT 1 FROM outbox WHERE arrival = arrivals.id)
   AND (joined IS NOT NULL OR conversation IS NULL
     OR id < (SELECT max(o.id) FROM arrivals o WHERE o.conversation = arrivals.conversation AND o.joined IS NULL));

-- name: mail_counts
-- How much is open, and what could not be sent.
SELECT (SELECT count(*) FROM arrivals WHERE outcome IS NULL),
       (SELECT count(DISTINCT route) FROM arrivals WHERE outcome IS NULL),
       (SELECT count(*) FROM outbox WHERE delivered_at IS NULL AND failed_at IS NULL),
       (SELECT count(*) FROM outbox WHERE failed_at IS NOT NULL);

-- name: arrival_redact_settled
-- One whose message was redacted while it was open goes with it, too.
UPDATE arrivals SET body = '', redacted_at = :at
 WHERE (id = :id OR joined = :id) AND redacted_at IS NULL AND EXISTS (
       SELECT 1 FROM messages m
        WHERE message_at(m, arrivals.conversation, arrivals.seq) AND m.redacted_at IS NOT NULL);
