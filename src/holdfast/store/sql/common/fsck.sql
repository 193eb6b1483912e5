-- Each of these finds the places where one promise is broken: conversation, what is wrong.

-- name: fsck_counts
SELECT (SELECT count(*) FROM conversations), (SELECT count(*) FROM sessions), (SELECT count(*) FROM messages);

-- name: fsck_conversations
-- What the digests are checked by.
SELECT key, id, last_seq FROM conversations ORDER BY key;

-- name: fsck_summaries
-- What a compaction says, with all its digest covers; brought from elsewhere it may have none.
SELECT c.id, k.epoch, k.body, k.digest FROM compactions k JOIN conversations c ON c.key = k.conversation
 WHERE k.digest IS NOT NULL ORDER BY k.conversation, k.epoch;

-- name: fsck_p1_orphan_messages
SELECT cast(m.conversation AS TEXT), 'message ' || m.seq || ' belongs to no conversation'
  FROM messages m WHERE NOT EXISTS (SELECT 1 FROM conversations WHERE key = m.conversation);

-- name: fsck_p2_places
SELECT coalesce(c.id, CAST(m.conversation AS text)), 'message ' || m.seq || ' is not within its session'
  FROM messages m
  LEFT JOIN conversations c ON c.key = m.conversation
  LEFT JOIN sessions s ON s.conversation = m.conversation AND s.ordinal = m.session
 WHERE s.ordinal IS NULL OR m.seq < s.first_seq OR m.seq > coalesce(s.last_seq, m.seq);

-- name: fsck_p4_ids
SELECT min(id), 'the id ' || id || ' is used ' || count(*) || ' times' FROM sessions GROUP BY id HAVING count(*) > 1;

-- name: fsck_p5_cuts
SELECT coalesce(c.id, CAST(k.conversation AS text)), 'compaction ' || k.epoch || ' cuts outside of what it saw'
  FROM compactions k
  LEFT JOIN conversations c ON c.key = k.conversation
  LEFT JOIN sessions s ON s.conversation = k.conversation AND s.ordinal = k.session
  LEFT JOIN compactions b ON b.conversation = k.conversation AND b.epoch = k.base_epoch
 WHERE c.key IS NULL OR s.ordinal IS NULL OR k.cut_seq > k.seen_seq OR k.cut_seq < 0 OR k.seen_seq >= s.first_seq
    OR (k.base_epoch IS NOT NULL AND (b.epoch IS NULL OR b.epoch >= k.epoch OR b.cut_seq > k.cut_seq))
    OR k.epoch > c.epoch;

-- name: fsck_p5_view
SELECT c.id, 'the context stands on a compaction that does not exist' FROM conversations c
 WHERE (c.compaction_epoch IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM compactions WHERE conversation = c.key AND epoch = c.compaction_epoch))
    OR (c.redo_epoch IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM compactions WHERE conversation = c.key AND epoch = c.redo_epoch));

-- name: fsck_p5_hides
SELECT coalesce(c.id, CAST(h.conversation AS text)), 'a hide lies outside of the log'
  FROM hides h LEFT JOIN conversations c ON c.key = h.conversation
 WHERE c.key IS NULL OR h.from_seq < 1 OR h.from_seq > h.to_seq OR h.to_seq > c.last_seq OR h.epoch > c.epoch
    OR h.shown_epoch <= h.epoch OR h.shown_epoch > c.epoch;

-- name: fsck_p6_tokens
SELECT coalesce(c.id, CAST(k.conversation AS text)), 'compaction ' || k.epoch || ' bears an older token than one before it'
  FROM compactions k LEFT JOIN conversations c ON c.key = k.conversation
 WHERE k.token > c.fence
    OR k.token <= (SELECT max(token) FROM compactions WHERE conversation = k.conversation AND epoch < k.epoch);

-- name: fsck_p6_epochs
SELECT id, 'the epoch is older than what it counts' FROM conversations c
 WHERE epoch < head OR compaction_epoch > epoch OR redo_epoch > epoch;

-- name: fsck_branches
SELECT b.id, 'the fork point does not exist in the origin' FROM conversations b
  LEFT JOIN conversations o ON o.key = b.origin
 WHERE (b.origin IS NOT NULL) <> (coalesce(b.forked_at, 0) > 0) OR (b.forked_from IS NULL) <> (b.forked_at IS NULL)
    OR (b.origin IS NOT NULL AND (o.key IS NULL OR b.forked_at > o.last_seq))
    OR (b.origin IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = b.forked_from AND conversation = b.origin))
    OR (b.forked_epoch IS NOT NULL
        AND NOT EXISTS (SELECT 1 FROM compactions
                         WHERE conversation = b.origin AND epoch = b.forked_epoch AND seen_seq <= b.forked_at));

-- name: fsck_routes
SELECT r.key, 'the route names a conversation that does not exist' FROM routes r
 WHERE r.conversation IS NOT NULL AND NOT EXISTS (SELECT 1 FROM conversations WHERE key = r.conversation);

-- name: fsck_tombstones
SELECT s.id, 'a deleted id is in use' FROM sessions s WHERE EXISTS (SELECT 1 FROM tombstones WHERE id = s.id);

-- name: fsck_titles
SELECT min(id), 'a title is used ' || count(*) || ' times' FROM conversations
 WHERE title IS NOT NULL GROUP BY owner, title HAVING count(*) > 1;

-- name: fsck_leases
SELECT coalesce(c.id, CAST(l.conversation AS text)), 'a lease bears a token that was never given' FROM leases l
  LEFT JOIN conversations c ON c.key = l.conversation
 WHERE c.key IS NULL OR l.token > c.fence OR l.token < 1;

-- name: fsck_memories
SELECT coalesce(c.id, ''), 'memory ' || m.id || ' is none: empty or endless, said twice, or learnt nowhere'
  FROM memories m LEFT JOIN conversations c ON c.key = m.source
 WHERE length(m.text) NOT BETWEEN 1 AND 500 OR (m.source IS NOT NULL AND c.key IS NULL)
    OR (SELECT count(*) FROM memories WHERE owner = m.owner AND text = m.text) > 1
    OR (SELECT count(*) FROM memories WHERE owner = m.owner) > 500;

-- name: fsck_audit
SELECT coalesce(c.id, CAST(a.conversation AS text)), 'act ' || a.id || ' of the audit is of no conversation, or half ended'
  FROM audit a LEFT JOIN conversations c ON c.key = a.conversation
 WHERE c.key IS NULL OR a.uid = '' OR a.allowed NOT IN (0, 1) OR a.ok NOT IN (0, 1)
    OR (a.ended_at IS NULL) <> (a.ok IS NULL) OR (a.allowed = 0 AND a.ended_at IS NOT NULL)
    OR (a.redacted_at IS NOT NULL AND a.summary <> '') OR (SELECT count(*) FROM audit WHERE uid = a.uid) > 1;

-- name: fsck_claims
SELECT '', 'the claim ' || key || ' bears a token that was never given' FROM claims WHERE token < 1 OR holder = '';

-- name: fsck_people
SELECT '', 'what is known of ' || sender || ' on ' || platform || ' is half of it' FROM (
  SELECT platform, sender FROM people WHERE role NOT IN ('user', 'admin', 'denied') OR sender = ''
   UNION ALL
  SELECT platform, sender FROM strangers
   WHERE (digest IS NULL) <> (salt IS NULL) OR (digest IS NULL) <> (expires_at IS NULL)
      OR (digest IS NOT NULL AND asked_at IS NULL)) known;

-- name: fsck_pins
SELECT coalesce(c.id, CAST(p.conversation AS text)), 'message ' || p.seq || ' is pinned and not there, or one too many'
  FROM pins p LEFT JOIN conversations c ON c.key = p.conversation
 WHERE c.key IS NULL OR p.seq NOT BETWEEN 1 AND c.last_seq
    OR (SELECT count(*) FROM pins WHERE conversation = p.conversation) > 100;

-- name: fsck_conversation_values
-- What a row says by itself.
SELECT id, 'it has a value that no conversation has' FROM conversations
 WHERE NOT (key BETWEEN 1 AND 2147483647 AND length(title) BETWEEN 1 AND 100 AND live = 1 AND epoch >= 1 AND fence >= 0
   AND forked_at >= 0 AND length(folder) BETWEEN 1 AND 4096 AND (forked_from IS NULL) = (forked_at IS NULL)
   AND (origin IS NOT NULL) = (coalesce(forked_at, 0) > 0) AND (forked_epoch IS NULL OR origin IS NOT NULL)
   AND origin <> key AND compaction_epoch <= epoch AND redo_epoch <= epoch);
