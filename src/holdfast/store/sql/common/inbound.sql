-- name: arrival_insert
-- Store an inbound message, unless its key is known.
INSERT INTO arrivals (platform, key, route, home, chat, sender, address, body, at, received_by)
VALUES (:platform, :key, :route, :home, :chat, :sender, :address, :body, :at, :received_by)
ON CONFLICT (platform, key) DO NOTHING
RETURNING id;

-- name: arrival_receiver
-- The uid of the call that stored a message.
SELECT received_by FROM arrivals WHERE platform = :platform AND key = :key;

-- name: arrival_get
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, linked_owner(a), a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.id = :id;

-- name: arrival_by_key
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, linked_owner(a), a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.platform = :platform AND a.key = :key;

-- name: arrivals_with_prefix
-- The inbound messages of a platform with keys from `first` to before `after`, newest first.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, linked_owner(a), a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation
 WHERE a.platform = :platform AND a.key >= :first AND a.key < :after ORDER BY a.id DESC LIMIT :limit;

-- name: arrivals_newest
-- The newest inbound message of each chat of a platform since a time, without edits and the like, whose keys have a
-- colon; newest first.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, linked_owner(a), a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation
 WHERE a.id IN (SELECT max(n.id) FROM arrivals n
                 WHERE n.platform = :platform AND n.at >= :at AND n.address <> '' AND replace(n.key, ':', '') = n.key
                 GROUP BY n.chat)
 ORDER BY a.id DESC LIMIT :limit;

-- name: arrival_last
-- The latest inbound message of a platform that became a message of a conversation.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, linked_owner(a), a.redacted_at IS NOT NULL
  FROM arrivals a JOIN conversations c ON c.key = a.conversation
 WHERE a.conversation = :conversation AND a.platform = :platform ORDER BY a.id DESC LIMIT 1;

-- name: arrivals_open
-- The open messages of a route, oldest first, without those that were joined into another.
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, NULL, a.seq, a.settled_at, linked_owner(a), a.redacted_at IS NOT NULL
  FROM arrivals a
 WHERE a.route = :route AND a.outcome IS NULL AND a.joined IS NULL ORDER BY a.id LIMIT :limit;

-- name: arrivals_joined_to
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, linked_owner(a), a.redacted_at IS NOT NULL
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation WHERE a.joined = :id ORDER BY a.id;

-- name: routes_open
-- The routes with open messages, the one with the oldest first.
SELECT route FROM arrivals WHERE outcome IS NULL AND joined IS NULL GROUP BY route ORDER BY min(id) LIMIT :limit;

-- name: arrivals_count_on_route
-- The messages of a route since a time, without deletions of messages.
SELECT count(*) FROM arrivals WHERE route = :route AND at >= :at AND substr(key, 1, 7) <> 'delete:';

-- name: arrivals_count_from_sender
-- The messages of a sender since a time, without deletions of messages.
SELECT count(*) FROM arrivals
 WHERE platform = :platform AND sender = :sender AND at >= :at AND substr(key, 1, 7) <> 'delete:';

-- name: arrival_begin
-- Count an attempt; the first one fixes the target.
UPDATE arrivals SET attempts = attempts + 1, target = coalesce(target, :target) WHERE id = :id AND outcome IS NULL
RETURNING id;

-- name: arrival_join
-- Join a message into another, if both are open.
UPDATE arrivals SET joined = :into
 WHERE id = :id AND outcome IS NULL AND joined IS NULL
   AND EXISTS (SELECT 1 FROM arrivals open WHERE open.id = :into AND open.outcome IS NULL);

-- name: arrival_settled
-- The uid of the call that settled a message; NULL while it is open.
SELECT settled_by FROM arrivals WHERE id = :id;

-- name: arrival_settle
-- Settle a message and those that were joined into it, if the session exists and the chat lease is held. Redact them if
-- the message that they became was redacted in the meantime.
UPDATE arrivals
   SET outcome = :outcome, conversation = place.conversation, seq = :seq, settled_at = :at, settled_by = :uid,
       body = CASE WHEN place.redacted THEN '' ELSE body END,
       redacted_at = CASE WHEN place.redacted THEN coalesce(redacted_at, :at) ELSE redacted_at END
  FROM (SELECT s.conversation, EXISTS (
                 SELECT 1 FROM messages m
                  WHERE message_at(m, s.conversation, :seq) AND m.redacted_at IS NOT NULL) AS redacted
          FROM (SELECT (SELECT conversation FROM sessions WHERE id = :session) AS conversation) s) place
 WHERE (id = :id OR joined = :id) AND outcome IS NULL
   AND (place.conversation IS NULL) = (CAST(:session AS text) IS NULL)
   AND coalesce((SELECT token FROM claims WHERE key = :lease AND substr(holder, 1, length(CAST(:holder AS text))) = :holder), 0) = :token;

-- name: claim_release_settled
-- Release a chat lease, if this call settled the message.
UPDATE claims SET holder = NULL
 WHERE key = :lease AND token = :token AND holder IS NOT NULL
   AND EXISTS (SELECT 1 FROM arrivals WHERE id = :id AND settled_by = :uid);

-- name: route_with_inbox
-- The conversation of a route, and whether its inbox has open entries.
SELECT r.key, c.id, r.version, coalesce(c.owner, ''),
       EXISTS (SELECT 1 FROM inbox i WHERE i.conversation = r.conversation AND i.outcome IS NULL)
  FROM routes r LEFT JOIN conversations c ON c.key = r.conversation WHERE r.key = :key;

-- name: arrival_home
-- The chat of the last inbound message of a conversation.
SELECT a.home, a.chat, a.address, a.route, a.sender, c.owner, linked_owner(a)
  FROM arrivals a JOIN conversations c ON c.key = a.conversation
 WHERE a.conversation = :conversation AND a.address <> '' ORDER BY a.id DESC LIMIT 1;

-- name: arrival_home_of_route
-- The chat of the last inbound message of a route, for a message about a conversation.
SELECT a.home, a.chat, a.address, a.route, a.sender, c.owner, linked_owner(a)
  FROM arrivals a JOIN conversations c ON c.key = :conversation
 WHERE a.route = :route AND a.address <> '' ORDER BY a.at DESC, a.id DESC LIMIT 1;

-- name: linked_chats
-- The chats that are bound to a conversation and whose last sender is linked to its owner.
SELECT a.home, a.chat, a.address, a.route, a.sender, c.owner, l.owner
  FROM conversations c
  JOIN routes r ON r.conversation = c.key
  JOIN arrivals a ON a.id = (SELECT last.id FROM arrivals last WHERE last.route = r.key AND last.address <> ''
                              ORDER BY last.at DESC, last.id DESC LIMIT 1)
  JOIN links l ON l.platform = a.platform AND l.sender = a.sender AND l.owner = c.owner
 WHERE c.key = :conversation ORDER BY a.route;

-- name: arrival_redact_message
-- Redact the inbound messages that became a message. The address stays, for replies.
UPDATE arrivals SET body = '', redacted_at = :at
 WHERE conversation = :conversation AND seq = :seq AND redacted_at IS NULL;

-- name: mail_counts
-- Open inbound messages, their routes, undelivered messages and failed ones.
SELECT (SELECT count(*) FROM arrivals WHERE outcome IS NULL),
       (SELECT count(DISTINCT route) FROM arrivals WHERE outcome IS NULL),
       (SELECT count(*) FROM outbox WHERE delivered_at IS NULL AND failed_at IS NULL),
       (SELECT count(*) FROM outbox WHERE failed_at IS NOT NULL);
