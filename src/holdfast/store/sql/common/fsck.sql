-- Each query named check_… finds the rows that break one promise: conversation id, description.

-- name: fsck_counts
SELECT (SELECT count(*) FROM conversations), (SELECT count(*) FROM sessions), (SELECT count(*) FROM messages);

-- name: fsck_conversations
SELECT key, id, last_seq FROM conversations ORDER BY key;

-- name: fsck_summaries
-- Summaries with everything their digests cover. An imported compaction may have no digest.
SELECT c.id, k.epoch, k.body, k.digest FROM compactions k JOIN conversations c ON c.key = k.conversation
 WHERE k.digest IS NOT NULL ORDER BY k.conversation, k.epoch;

-- name: check_p1_orphan_messages
SELECT cast(m.conversation AS TEXT), 'message ' || m.seq || ' belongs to no conversation'
  FROM messages m WHERE NOT EXISTS (SELECT 1 FROM conversations WHERE key = m.conversation);

-- name: check_p1_uids
SELECT coalesce(c.id, CAST(m.conversation AS text)), 'message ' || min(m.seq) || ' shares its uid with ' || (count(*) - 1) || ' others'
  FROM messages m LEFT JOIN conversations c ON c.key = m.conversation
 GROUP BY c.id, m.conversation, m.uid HAVING count(*) > 1;

-- name: check_p2_gaps
SELECT c.id, 'the log must have messages ' || (coalesce(c.forked_at, 0) + 1) || ' to ' || c.last_seq || ' but has '
       || (SELECT count(*) FROM messages WHERE messages_of(messages, c.key)) || ' messages'
  FROM conversations c
 WHERE (SELECT count(*) FROM messages WHERE messages_of(messages, c.key))
       <> c.last_seq - coalesce(c.forked_at, 0)
    OR coalesce((SELECT min(seq) FROM messages WHERE messages_of(messages, c.key)),
                coalesce(c.forked_at, 0) + 1) <> coalesce(c.forked_at, 0) + 1
    OR coalesce((SELECT max(seq) FROM messages WHERE messages_of(messages, c.key)),
                c.last_seq) <> c.last_seq;

-- name: check_p2_places
SELECT coalesce(c.id, CAST(m.conversation AS text)), 'message ' || m.seq || ' is outside the range of its session'
  FROM messages m
  LEFT JOIN conversations c ON c.key = m.conversation
  LEFT JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session
 WHERE s.ordinal IS NULL OR m.seq < s.first_seq OR m.seq > coalesce(s.last_seq, m.seq);

-- name: check_p3_heads
SELECT c.id, CASE
         WHEN h.ordinal IS NULL THEN 'the head session does not exist'
         WHEN c.live = 1 AND h.live IS NULL THEN 'the conversation is open but its head session has ended'
         WHEN c.live IS NULL AND h.live = 1 THEN 'the conversation has ended but its head session is live'
         ELSE 'the head session is not the newest session' END
  FROM conversations c LEFT JOIN sessions h ON h.conversation = c.key AND h.ordinal = c.head
 WHERE h.ordinal IS NULL OR h.live IS DISTINCT FROM c.live
    OR c.head <> (SELECT max(ordinal) FROM sessions WHERE conversation = c.key);

-- name: check_p3_live
SELECT c.id, count(s.ordinal) || ' sessions are live' FROM conversations c
  LEFT JOIN sessions s ON s.conversation = c.key AND s.live = 1
 GROUP BY c.key, c.id, c.live HAVING count(s.ordinal) <> CASE WHEN c.live IS NULL THEN 0 ELSE 1 END;

-- name: check_p3_ends
SELECT coalesce(c.id, CAST(s.conversation AS text)), 'session ' || s.id || ' is neither live nor properly ended'
  FROM sessions s LEFT JOIN conversations c ON c.key = s.conversation
 WHERE (s.live IS NULL) <> (s.ended_at IS NOT NULL) OR (s.ended_at IS NULL) <> (s.end_reason IS NULL)
    OR (s.ended_at IS NULL) <> (s.last_seq IS NULL) OR coalesce(s.live, 1) <> 1
    OR (s.live IS NULL AND s.ordinal = c.head AND s.last_seq IS DISTINCT FROM c.last_seq);

-- name: check_p4_continuations
SELECT coalesce(c.id, CAST(s.conversation AS text)), 'session ' || s.id || ' does not continue its predecessor'
  FROM sessions s
  LEFT JOIN conversations c ON c.key = s.conversation
  LEFT JOIN sessions p ON p.conversation = s.conversation AND p.ordinal = s.ordinal - 1
 WHERE c.key IS NULL
    OR (s.ordinal = 1 AND (s.parent IS NOT NULL OR s.id <> c.id OR s.first_seq <> coalesce(c.forked_at, 0) + 1))
    OR (s.ordinal > 1 AND (s.parent IS DISTINCT FROM s.ordinal - 1 OR p.ordinal IS NULL OR p.last_seq IS DISTINCT FROM s.first_seq - 1))
    OR s.ordinal < 1 OR s.last_seq < s.first_seq - 1;

-- name: check_p4_forks
SELECT coalesce(c.id, CAST(s.conversation AS text)), count(*) || ' sessions continue the same session' FROM sessions s
  LEFT JOIN conversations c ON c.key = s.conversation
 WHERE s.parent IS NOT NULL GROUP BY c.id, s.conversation, s.parent HAVING count(*) > 1;

-- name: check_p4_ids
SELECT min(id), 'session id ' || id || ' is used ' || count(*) || ' times' FROM sessions GROUP BY id HAVING count(*) > 1;

-- name: check_p5_cuts
SELECT coalesce(c.id, CAST(k.conversation AS text)), 'compaction ' || k.epoch || ' has an invalid cut, base or session'
  FROM compactions k
  LEFT JOIN conversations c ON c.key = k.conversation
  LEFT JOIN sessions s ON s.conversation = k.conversation AND s.ordinal = k.session
  LEFT JOIN compactions b ON b.conversation = k.conversation AND b.epoch = k.base_epoch
 WHERE c.key IS NULL OR s.ordinal IS NULL OR k.cut_seq > k.seen_seq OR k.cut_seq < 0 OR k.seen_seq >= s.first_seq
    OR (k.base_epoch IS NOT NULL AND (b.epoch IS NULL OR b.epoch >= k.epoch OR b.cut_seq > k.cut_seq))
    OR k.epoch > c.epoch;

-- name: check_p5_view
SELECT c.id, 'the context refers to a compaction that does not exist' FROM conversations c
 WHERE (c.compaction_epoch IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM compactions WHERE conversation = c.key AND epoch = c.compaction_epoch))
    OR (c.redo_epoch IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM compactions WHERE conversation = c.key AND epoch = c.redo_epoch));

-- name: check_p5_hides
SELECT coalesce(c.id, CAST(h.conversation AS text)), 'a hidden range is outside the log'
  FROM hides h LEFT JOIN conversations c ON c.key = h.conversation
 WHERE c.key IS NULL OR h.from_seq < 1 OR h.from_seq > h.to_seq OR h.to_seq > c.last_seq OR h.epoch > c.epoch
    OR h.shown_epoch <= h.epoch OR h.shown_epoch > c.epoch;

-- name: check_p6_tokens
SELECT coalesce(c.id, CAST(k.conversation AS text)), 'compaction ' || k.epoch || ' has a lease token that is not newer than the one before it'
  FROM compactions k LEFT JOIN conversations c ON c.key = k.conversation
 WHERE k.token > c.fence
    OR k.token <= (SELECT max(token) FROM compactions WHERE conversation = k.conversation AND epoch < k.epoch);

-- name: check_p6_epochs
SELECT id, 'the epoch is older than the head session or a compaction' FROM conversations c
 WHERE epoch < head OR compaction_epoch > epoch OR redo_epoch > epoch;

-- name: check_branches
SELECT b.id, 'the branch point does not exist in the original conversation' FROM conversations b
  LEFT JOIN conversations o ON o.key = b.origin
 WHERE (b.origin IS NOT NULL) <> (coalesce(b.forked_at, 0) > 0) OR (b.forked_from IS NULL) <> (b.forked_at IS NULL)
    OR (b.origin IS NOT NULL AND (o.key IS NULL OR b.forked_at > o.last_seq))
    OR (b.origin IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = b.forked_from AND conversation = b.origin))
    OR (b.forked_epoch IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM compactions
                         WHERE conversation = b.origin AND epoch = b.forked_epoch AND seen_seq <= b.forked_at));

-- name: check_routes
SELECT r.key, 'the route refers to a conversation that does not exist' FROM routes r
 WHERE r.conversation IS NOT NULL AND NOT EXISTS (SELECT 1 FROM conversations WHERE key = r.conversation);

-- name: check_deletion
SELECT s.id, 'the id of a deleted conversation is in use' FROM sessions s WHERE EXISTS (SELECT 1 FROM tombstones WHERE id = s.id);

-- name: check_titles
SELECT min(id), count(*) || ' conversations have the same title' FROM conversations
 WHERE title IS NOT NULL GROUP BY owner, title HAVING count(*) > 1;

-- name: check_leases
SELECT coalesce(c.id, CAST(l.conversation AS text)), 'a lease has a token that was never issued' FROM leases l
  LEFT JOIN conversations c ON c.key = l.conversation
 WHERE c.key IS NULL OR l.token > c.fence OR l.token < 1;

-- name: check_memories
SELECT coalesce(c.id, ''), 'memory ' || m.id || ' is empty, too long, a duplicate, exceeds the limit of 500, or is from a conversation that does not exist'
  FROM memories m LEFT JOIN conversations c ON c.key = m.source
 WHERE length(m.text) NOT BETWEEN 1 AND 500 OR (m.source IS NOT NULL AND c.key IS NULL)
    OR (SELECT count(*) FROM memories WHERE owner = m.owner AND text = m.text) > 1
    OR (SELECT count(*) FROM memories WHERE owner = m.owner) > 500;

-- name: check_audit
SELECT coalesce(c.id, CAST(a.conversation AS text)), 'audit entry ' || a.id || ' has no conversation or inconsistent columns'
  FROM audit a LEFT JOIN conversations c ON c.key = a.conversation
 WHERE c.key IS NULL OR a.uid = '' OR a.allowed NOT IN (0, 1) OR a.ok NOT IN (0, 1)
    OR (a.ended_at IS NULL) <> (a.ok IS NULL) OR (a.allowed = 0 AND a.ended_at IS NOT NULL)
    OR (a.redacted_at IS NOT NULL AND a.summary <> '') OR (SELECT count(*) FROM audit WHERE uid = a.uid) > 1;

-- name: check_claims
SELECT '', 'chat lease ' || key || ' has a token that was never issued, or an empty holder' FROM claims WHERE token < 1 OR holder = '';

-- name: check_people
SELECT '', 'the contact ' || sender || ' on ' || platform || ' has missing or invalid columns' FROM (
  SELECT platform, sender FROM people WHERE role NOT IN ('user', 'admin', 'denied') OR sender = ''
   UNION ALL
  SELECT platform, sender FROM strangers
   WHERE (digest IS NULL) <> (salt IS NULL) OR (digest IS NULL) <> (expires_at IS NULL)
      OR (digest IS NOT NULL AND asked_at IS NULL)) known;

-- name: check_pins
SELECT coalesce(c.id, CAST(p.conversation AS text)), 'message ' || p.seq || ' is pinned but does not exist, or exceeds the limit of pins'
  FROM pins p LEFT JOIN conversations c ON c.key = p.conversation
 WHERE c.key IS NULL OR p.seq NOT BETWEEN 1 AND c.last_seq
    OR (SELECT count(*) FROM pins WHERE conversation = p.conversation) > 100;

-- name: check_conversations
SELECT id, 'the conversation has an invalid column value' FROM conversations
 WHERE NOT (key BETWEEN 1 AND 2147483647 AND length(title) BETWEEN 1 AND 100 AND live = 1 AND epoch >= 1 AND fence >= 0
   AND forked_at >= 0 AND length(folder) BETWEEN 1 AND 4096
   AND length(metadata) BETWEEN 2 AND 4096 AND substr(metadata, 1, 1) = '{' AND (forked_from IS NULL) = (forked_at IS NULL)
   AND (origin IS NOT NULL) = (coalesce(forked_at, 0) > 0) AND (forked_epoch IS NULL OR origin IS NOT NULL)
   AND origin <> key AND compaction_epoch <= epoch AND redo_epoch <= epoch);

-- name: check_inbox
SELECT coalesce(c.id, CAST(i.conversation AS text)), 'inbox message ' || i.id || ' has no conversation, is a duplicate, or is only partly settled'
  FROM inbox i LEFT JOIN conversations c ON c.key = i.conversation
 WHERE c.key IS NULL OR i.key = '' OR i.kind = '' OR i.outcome = ''
    OR (i.outcome IS NULL) <> (i.settled_at IS NULL) OR (i.outcome IS NULL) <> (i.settled_by IS NULL)
    OR (i.redacted_at IS NULL) <> (i.text <> '') OR (i.outcome IS NULL AND (i.seq IS NOT NULL OR i.redacted_at IS NOT NULL))
    OR (i.seq IS NOT NULL AND NOT EXISTS (SELECT 1 FROM messages m WHERE message_at(m, i.conversation, i.seq)))
    OR (SELECT count(*) FROM inbox WHERE key = i.key) > 1;

-- name: check_processes
SELECT coalesce(c.id, CAST(p.conversation AS text)), 'process ' || p.id || ' has no conversation, inconsistent columns, or ended without a notice in the inbox'
  FROM processes p LEFT JOIN conversations c ON c.key = p.conversation
 WHERE c.key IS NULL OR p.id = '' OR p.state NOT IN ('running', 'exited', 'killed', 'gone') OR NOT json_valid(p.place)
    OR (p.state = 'running') <> (p.ended_at IS NULL) OR (p.state = 'running') <> (p.ended_by IS NULL)
    OR (p.state = 'running' AND p.exit_code IS NOT NULL)
    OR (p.state <> 'running'
        AND NOT EXISTS (SELECT 1 FROM inbox WHERE key = 'process:' || p.id AND conversation = p.conversation))
    OR (SELECT count(*) FROM processes WHERE id = p.id) > 1;

-- name: check_grants
SELECT coalesce(c.id, CAST(g.conversation AS text), ''), 'grant ' || g.id || ' has no conversation, no rule, or a duplicate'
  FROM grants g LEFT JOIN conversations c ON c.key = g.conversation
 WHERE (g.conversation IS NOT NULL AND c.key IS NULL) OR g.rule = ''
    OR (SELECT count(*) FROM grants WHERE owner = g.owner AND rule = g.rule AND conversation IS NOT DISTINCT FROM g.conversation) > 1;

-- name: check_arrivals
SELECT coalesce(c.id, CAST(a.conversation AS text), ''), 'inbound message ' || a.id || ' is only partly settled, a duplicate, or not in the log as recorded'
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
           WHERE message_at(m, a.conversation, a.seq)
             AND CASE WHEN length('inbox:' || k.platform || ':' || k.key) <= 200
                      THEN m.uid IN ('inbox:' || k.platform || ':' || k.key, 'steer:inbox:' || k.platform || ':' || k.key)
                      ELSE substr(m.uid, 1, 6) IN ('inbox:', 'steer:') END))
    OR (a.seq IS NOT NULL AND a.redacted_at IS NULL
        AND EXISTS (SELECT 1 FROM messages m WHERE message_at(m, a.conversation, a.seq) AND m.redacted_at IS NOT NULL))
    OR (a.outcome = 'answered' AND a.joined IS NULL AND a.redacted_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM outbox WHERE arrival = a.id AND part = 0))
    OR (SELECT count(*) FROM arrivals WHERE platform = a.platform AND key = a.key) > 1;

-- name: check_outbox
SELECT coalesce(c.id, CAST(o.conversation AS text), ''), 'outbound message ' || o.id || ' answers no message, is addressed to another chat, or has inconsistent columns'
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

-- name: check_messages
SELECT coalesce(c.id, CAST(m.conversation AS text)), 'message ' || m.seq || ' has a missing or invalid uid, role, digest or body'
  FROM messages m LEFT JOIN conversations c ON c.key = m.conversation
 WHERE m.uid = '' OR m.role NOT IN ('system', 'user', 'assistant', 'tool') OR octet_length(m.digest) <> 16
    OR (m.redacted_at IS NULL) <> (m.body <> '');
