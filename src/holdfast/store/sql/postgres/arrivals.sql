-- name: arrival_insert
-- What came in, unless it is known.
INSERT INTO arrivals (platform, key, route, home, chat, sender, address, body, at)
VALUES (%(platform)s, %(key)s, %(route)s, %(home)s, %(chat)s, %(sender)s, %(address)s, %(body)s, %(at)s)
ON CONFLICT (platform, key) DO NOTHING;

-- name: arrival_get
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.id = %(id)s;

-- name: arrival_from
-- Where the answer to it goes; of what was deleted nobody knows.
SELECT home, chat, address FROM arrivals WHERE id = %(id)s AND address <> '';

-- name: arrival_by_key
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.platform = %(platform)s AND a.key = %(key)s;

-- name: arrivals_between
-- The arrivals of a platform whose keys lie between two others, newest first.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation
 WHERE a.platform = %(platform)s AND a.key >= %(first)s AND a.key < %(last)s ORDER BY a.id DESC LIMIT %(limit)s;

-- name: arrival_last
-- The latest arrival of a platform that became a message of a conversation.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a JOIN conversations c ON c.key = a.conversation
 WHERE a.conversation = %(conversation)s AND a.platform = %(platform)s ORDER BY a.id DESC LIMIT 1;

-- name: arrivals_on
-- What is open on one route, oldest first; what was joined is taken care of.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, NULL, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a
 WHERE a.route = %(route)s AND a.outcome IS NULL AND a.joined IS NULL ORDER BY a.id LIMIT %(limit)s;

-- name: routes_open
-- Where something is open; what is open for longest first.
SELECT route FROM arrivals WHERE outcome IS NULL AND joined IS NULL GROUP BY route ORDER BY min(id) LIMIT %(limit)s;

-- name: arrivals_joined_to
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.joined = %(id)s ORDER BY a.id;

-- name: arrivals_since
SELECT count(*) FROM arrivals WHERE route = %(route)s AND at >= %(at)s;

-- name: arrivals_from
SELECT count(*) FROM arrivals WHERE platform = %(platform)s AND sender = %(sender)s AND at >= %(at)s;

-- name: arrival_begin
-- One more attempt; the first says where.
UPDATE arrivals SET attempts = attempts + 1, target = coalesce(target, %(target)s) WHERE id = %(id)s AND outcome IS NULL;

-- name: arrival_join
UPDATE arrivals SET joined = %(into)s WHERE id = %(id)s AND outcome IS NULL AND joined IS NULL;

-- name: arrival_settled
-- Who settled it; nobody yet, while it is open.
SELECT settled_by FROM arrivals WHERE id = %(id)s;

-- name: arrival_settle
-- What became of it, said by the first who knows.
UPDATE arrivals SET outcome = %(outcome)s, conversation = %(conversation)s, seq = %(seq)s, settled_at = %(at)s, settled_by = %(uid)s
 WHERE id = %(id)s AND outcome IS NULL;

-- name: arrival_settle_joined
-- What was joined into it shares its fate.
UPDATE arrivals SET outcome = %(outcome)s, conversation = %(conversation)s, seq = %(seq)s, settled_at = %(at)s, settled_by = %(uid)s
 WHERE joined = %(id)s AND outcome IS NULL;

-- name: arrival_home
-- Where a conversation was last spoken to from.
SELECT home, chat, address, route FROM arrivals
 WHERE conversation = %(conversation)s AND address <> '' ORDER BY id DESC LIMIT 1;

-- name: arrival_redact_settled
-- One whose message was redacted while it was open goes with it, too.
UPDATE arrivals SET body = '', redacted_at = %(at)s
 WHERE (id = %(id)s OR joined = %(id)s) AND redacted_at IS NULL AND EXISTS (
       SELECT 1 FROM messages m
        WHERE m.conversation = arrivals.conversation AND m.seq = arrivals.seq AND m.redacted_at IS NOT NULL);

-- name: arrival_redact_message
-- What became a message goes with that message; where replies go stays known.
UPDATE arrivals SET body = '', redacted_at = %(at)s
 WHERE conversation = %(conversation)s AND seq = %(seq)s AND redacted_at IS NULL;

-- name: arrivals_forget
-- What was settled long ago, but for the last of each conversation and what something still hangs on.
DELETE FROM arrivals
 WHERE settled_at < %(before)s AND NOT EXISTS (SELECT 1 FROM arrivals o WHERE o.joined = arrivals.id)
   AND NOT EXISTS (SELECT 1 FROM outbox WHERE arrival = arrivals.id)
   AND (joined IS NOT NULL OR conversation IS NULL
     OR id < (SELECT max(o.id) FROM arrivals o WHERE o.conversation = arrivals.conversation AND o.joined IS NULL));

-- name: mail_counts
-- How much is open, and what could not be sent.
SELECT (SELECT count(*) FROM arrivals WHERE outcome IS NULL),
       (SELECT count(DISTINCT route) FROM arrivals WHERE outcome IS NULL),
       (SELECT count(*) FROM outbox WHERE delivered_at IS NULL AND failed_at IS NULL),
       (SELECT count(*) FROM outbox WHERE failed_at IS NOT NULL);
