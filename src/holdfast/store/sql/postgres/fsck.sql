-- name: fsck_digests
-- A stretch of messages with all their digests cover.
SELECT seq, uid, role, body, digest FROM messages
 WHERE conversation = :conversation AND seq > :after
 ORDER BY seq LIMIT :limit;

-- name: fsck_p1_uids
SELECT coalesce(c.id, m.conversation::text), 'uid of message ' || min(m.seq) || ' is used ' || count(*) || ' times'
  FROM messages m LEFT JOIN conversations c ON c.key = m.conversation
 GROUP BY c.id, m.conversation, m.uid HAVING count(*) > 1;

-- name: fsck_p2_gaps
SELECT c.id, 'the log should run from ' || (coalesce(c.forked_at, 0) + 1) || ' to ' || c.last_seq || ' and has '
       || (SELECT count(*) FROM messages WHERE conversation = c.key) || ' messages'
  FROM conversations c
 WHERE (SELECT count(*) FROM messages WHERE conversation = c.key)
       <> c.last_seq - coalesce(c.forked_at, 0)
    OR coalesce((SELECT min(seq) FROM messages WHERE conversation = c.key),
                coalesce(c.forked_at, 0) + 1) <> coalesce(c.forked_at, 0) + 1
    OR coalesce((SELECT max(seq) FROM messages WHERE conversation = c.key),
                c.last_seq) <> c.last_seq;

-- name: fsck_p3_heads
SELECT c.id, CASE
         WHEN h.ordinal IS NULL THEN 'the head does not exist'
         WHEN c.live = 1 AND h.live IS NULL THEN 'the conversation is open and its head has ended'
         WHEN c.live IS NULL AND h.live = 1 THEN 'the conversation has ended and its head is live'
         ELSE 'the head is not the newest session' END
  FROM conversations c LEFT JOIN sessions h ON h.conversation = c.key AND h.ordinal = c.head
 WHERE h.ordinal IS NULL OR h.live IS DISTINCT FROM c.live
    OR c.head <> (SELECT max(ordinal) FROM sessions WHERE conversation = c.key);

-- name: fsck_p3_live
SELECT c.id, count(s.ordinal) || ' sessions are live' FROM conversations c
  LEFT JOIN sessions s ON s.conversation = c.key AND s.live = 1
 GROUP BY c.key, c.id, c.live HAVING count(s.ordinal) <> (c.live IS NOT NULL)::int;

-- name: fsck_p3_ends
SELECT coalesce(c.id, s.conversation::text), 'session ' || s.id || ' is neither live nor properly ended'
  FROM sessions s LEFT JOIN conversations c ON c.key = s.conversation
 WHERE (s.live IS NULL) <> (s.ended_at IS NOT NULL) OR (s.ended_at IS NULL) <> (s.end_reason IS NULL)
    OR (s.ended_at IS NULL) <> (s.last_seq IS NULL) OR coalesce(s.live, 1) <> 1
    OR (s.live IS NULL AND s.ordinal = c.head AND s.last_seq IS DISTINCT FROM c.last_seq);

-- name: fsck_p4_continuations
SELECT coalesce(c.id, s.conversation::text), 'session ' || s.id || ' does not continue the one before it'
  FROM sessions s
  LEFT JOIN conversations c ON c.key = s.conversation
  LEFT JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.ordinal - 1
 WHERE c.key IS NULL
    OR (s.ordinal = 1 AND (s.parent IS NOT NULL OR s.id <> c.id OR s.first_seq <> coalesce(c.forked_at, 0) + 1))
    OR (s.ordinal > 1 AND (s.parent IS DISTINCT FROM s.ordinal - 1 OR p.ordinal IS NULL OR p.last_seq IS DISTINCT FROM s.first_seq - 1))
    OR s.ordinal < 1 OR s.last_seq < s.first_seq - 1;

-- name: fsck_p4_forks
SELECT coalesce(c.id, s.conversation::text), count(*) || ' sessions continue one' FROM sessions s
  LEFT JOIN conversations c ON c.key = s.conversation
 WHERE s.parent IS NOT NULL GROUP BY c.id, s.conversation, s.parent HAVING count(*) > 1;

-- name: fsck_budgets
SELECT coalesce(c.id, b.conversation::text), 'the budget is none: of no conversation, without a version, or not readable'
  FROM budgets b LEFT JOIN conversations c ON c.key = b.conversation
 WHERE c.key IS NULL OR b.version < 1 OR b.uid = '' OR length(b.body) > 65536
    OR json_kind(b.body, 'spent') IS DISTINCT FROM 'object';

-- name: fsck_inbox
SELECT coalesce(c.id, i.conversation::text), 'what came in as ' || i.id || ' is of no conversation, or half settled'
  FROM inbox i LEFT JOIN conversations c ON c.key = i.conversation
 WHERE c.key IS NULL OR i.key = '' OR i.kind = '' OR i.outcome = ''
    OR (i.outcome IS NULL) <> (i.settled_at IS NULL) OR (i.outcome IS NULL) <> (i.settled_by IS NULL)
    OR (i.redacted_at IS NULL) <> (i.text <> '') OR (i.outcome IS NULL AND (i.seq IS NOT NULL OR i.redacted_at IS NOT NULL))
    OR (i.seq IS NOT NULL AND NOT EXISTS (SELECT 1 FROM messages WHERE conversation = i.conversation AND seq = i.seq))
    OR (SELECT count(*) FROM inbox WHERE key = i.key) > 1;

-- name: fsck_processes
SELECT coalesce(c.id, p.conversation::text), 'process ' || p.id || ' neither runs nor has ended with its notice'
  FROM processes p LEFT JOIN conversations c ON c.key = p.conversation
 WHERE c.key IS NULL OR p.id = '' OR p.state NOT IN ('running', 'exited', 'killed', 'gone') OR json_kind(p.place) IS NULL
    OR (p.state = 'running') <> (p.ended_at IS NULL) OR (p.state = 'running') <> (p.ended_by IS NULL)
    OR (p.state = 'running' AND p.exit_code IS NOT NULL)
    OR (p.state <> 'running'
        AND NOT EXISTS (SELECT 1 FROM inbox WHERE key = 'process:' || p.id AND conversation = p.conversation))
    OR (SELECT count(*) FROM processes WHERE id = p.id) > 1;

-- name: fsck_grants
SELECT coalesce(c.id, g.conversation::text, ''), 'grant ' || g.id || ' is none: of no conversation, without a rule, or twice'
  FROM grants g LEFT JOIN conversations c ON c.key = g.conversation
 WHERE (g.conversation IS NOT NULL AND c.key IS NULL) OR g.rule = ''
    OR (SELECT count(*) FROM grants WHERE owner = g.owner AND rule = g.rule AND conversation IS NOT DISTINCT FROM g.conversation) > 1;

-- name: fsck_arrivals
SELECT coalesce(c.id, a.conversation::text, ''), 'arrival ' || a.id || ' is half settled, known twice, or became no message of its own'
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation LEFT JOIN arrivals l ON l.id = a.joined
 WHERE (a.conversation IS NOT NULL AND c.key IS NULL) OR a.outcome = '' OR a.attempts < 0
    OR (a.outcome IS NULL) <> (a.settled_at IS NULL) OR (a.outcome IS NULL) <> (a.settled_by IS NULL)
    OR (a.redacted_at IS NULL) <> (a.body <> '')
    OR (a.outcome IS NULL AND (a.conversation IS NOT NULL OR a.seq IS NOT NULL OR a.redacted_at IS NOT NULL))
    OR (a.address = '' AND (a.redacted_at IS NULL OR a.conversation IS NOT NULL))
    OR (a.joined IS NOT NULL AND (l.id IS NULL OR l.id >= a.id OR l.route <> a.route OR l.joined IS NOT NULL
                                  OR l.outcome IS DISTINCT FROM a.outcome))
    OR (a.seq IS NOT NULL AND NOT EXISTS (
          SELECT 1 FROM messages m JOIN arrivals k ON k.id = coalesce(a.joined, a.id)
           WHERE m.conversation = a.conversation AND m.seq = a.seq
             AND CASE WHEN length('inbox:' || k.platform || ':' || k.key) <= 200
                      THEN m.uid IN ('inbox:' || k.platform || ':' || k.key, 'steer:inbox:' || k.platform || ':' || k.key)
                      ELSE substr(m.uid, 1, 6) IN ('inbox:', 'steer:') END))
    OR (a.seq IS NOT NULL AND a.redacted_at IS NULL
        AND EXISTS (SELECT 1 FROM messages m WHERE m.conversation = a.conversation AND m.seq = a.seq AND m.redacted_at IS NOT NULL))
    OR (a.outcome = 'answered' AND a.joined IS NULL AND a.redacted_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM outbox WHERE arrival = a.id AND part = 0))
    OR (SELECT count(*) FROM arrivals WHERE platform = a.platform AND key = a.key) > 1;

-- name: fsck_outbox
SELECT coalesce(c.id, o.conversation::text, ''), 'what goes out as ' || o.id || ' is of no outcome, goes elsewhere, or half ended'
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation
  LEFT JOIN arrivals a ON a.id = o.arrival LEFT JOIN inbox i ON i.id = o.inbound
 WHERE (o.conversation IS NOT NULL AND c.key IS NULL) OR (o.arrival IS NOT NULL AND a.id IS NULL)
    OR (o.inbound IS NOT NULL AND i.id IS NULL) OR (o.part IS NULL) <> (o.key IS NOT NULL)
    OR (o.arrival IS NOT NULL AND (a.home <> o.platform OR a.chat <> o.chat OR (a.address <> '' AND a.address <> o.address)))
    OR (o.arrival IS NOT NULL AND o.part IS NOT NULL AND a.conversation IS DISTINCT FROM o.conversation)
    OR (o.part IS NOT NULL AND o.arrival IS NOT NULL AND a.settled_at IS DISTINCT FROM o.at)
    OR (o.part IS NOT NULL AND o.inbound IS NOT NULL AND i.settled_at IS DISTINCT FROM o.at)
    OR (o.part IS NOT NULL AND o.arrival IS NULL AND o.inbound IS NULL)
    OR (o.arrival IS NOT NULL AND o.inbound IS NOT NULL)
    OR (o.part > 0
        AND NOT EXISTS (SELECT 1 FROM outbox p WHERE p.arrival = o.arrival AND p.part = o.part - 1)
        AND NOT EXISTS (SELECT 1 FROM outbox p WHERE p.inbound = o.inbound AND p.part = o.part - 1))
    OR (o.delivered_at IS NOT NULL AND o.failed_at IS NOT NULL) OR o.attempts < 0
    OR (o.redacted_at IS NULL) <> (o.body <> '')
    OR (o.redacted_at IS NOT NULL AND o.delivered_at IS NULL AND o.failed_at IS NULL)
    OR (SELECT count(*) FROM outbox WHERE key = o.key) > 1
    OR (SELECT count(*) FROM outbox WHERE arrival = o.arrival AND part = o.part) > 1
    OR (SELECT count(*) FROM outbox WHERE inbound = o.inbound AND part = o.part) > 1;

-- name: fsck_message_values
SELECT coalesce(c.id, m.conversation::text), 'message ' || m.seq || ' has no uid, role, digest or text, or one it cannot have'
  FROM messages m LEFT JOIN conversations c ON c.key = m.conversation
 WHERE m.uid = '' OR m.role NOT IN ('system', 'user', 'assistant', 'tool') OR octet_length(m.digest) <> 16
    OR (m.redacted_at IS NULL) <> (m.body <> '');
