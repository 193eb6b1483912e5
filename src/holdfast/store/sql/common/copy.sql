-- name: copy_tombstones
-- Read a page of a table in the order of its key, with conversations by id. So do the queries that follow.
SELECT id, deleted_at FROM tombstones WHERE id > :after ORDER BY id LIMIT :limit;

-- name: copy_routes
SELECT r.key, c.id, r.version, r.updated_at FROM routes r LEFT JOIN conversations c ON c.key = r.conversation
 WHERE r.key > :after ORDER BY r.key LIMIT :limit;

-- name: copy_budgets
SELECT c.id, b.version, b.uid, b.body FROM conversations c JOIN budgets b ON b.conversation = c.key
 WHERE c.id > :after ORDER BY c.id LIMIT :limit;

-- name: copy_memories
SELECT m.id, m.owner, m.text, m.at, m.updated_at, c.id
  FROM memories m LEFT JOIN conversations c ON c.key = m.source
 WHERE m.id > :after ORDER BY m.id LIMIT :limit;

-- name: copy_inbox
SELECT i.id, c.id, i.key, i.kind, i.text, i.at, i.outcome, i.seq, i.settled_at, i.settled_by, i.redacted_at
  FROM inbox i JOIN conversations c ON c.key = i.conversation
 WHERE i.id > :after ORDER BY i.id LIMIT :limit;

-- name: copy_processes
SELECT p.id, c.id, p.command, p.folder, p.place, p.started_at, p.state, p.ended_at, p.ended_by, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation
 WHERE p.id > :after ORDER BY p.id LIMIT :limit;

-- name: copy_grants
SELECT g.id, g.owner, g.rule, c.id, g.given_at, g.given_by
  FROM grants g LEFT JOIN conversations c ON c.key = g.conversation
 WHERE g.id > :after ORDER BY g.id LIMIT :limit;

-- name: copy_audit
SELECT a.id, c.id, a.uid, a.call_id, a.tool, a.summary, a.allowed, a.decided_by, a.at, a.ended_at, a.ok, a.redacted_at
  FROM audit a JOIN conversations c ON c.key = a.conversation
 WHERE a.id > :after ORDER BY a.id LIMIT :limit;

-- name: copy_pins
SELECT c.id, p.seq, p.at FROM conversations c JOIN pins p ON p.conversation = c.key
 WHERE (c.id, p.seq) > (:after, :beyond) ORDER BY c.id, p.seq LIMIT :limit;

-- name: copy_arrivals
SELECT a.id, a.platform, a.key, a.route, a.home, a.chat, a.sender, a.address, a.body, a.at, a.attempts, a.target,
       a.joined, a.outcome, c.id, a.seq, a.settled_at, a.settled_by, a.redacted_at
  FROM arrivals a LEFT JOIN conversations c ON c.key = a.conversation
 WHERE a.id > :after ORDER BY a.id LIMIT :limit;

-- name: copy_outbox
SELECT o.id, o.arrival, o.inbound, o.part, o.key, c.id, o.seq, o.platform, o.chat, o.address, o.kind, o.body, o.at,
       o.attempts, o.due_at, o.delivered_at, o.external, o.failed_at, o.error, o.redacted_at
  FROM outbox o LEFT JOIN conversations c ON c.key = o.conversation
 WHERE o.id > :after ORDER BY o.id LIMIT :limit;

-- name: copy_people
SELECT platform, sender, role, name, at, given_by FROM people
 WHERE (platform, sender) > (:after, :beyond) ORDER BY platform, sender LIMIT :limit;

-- name: copy_strangers
SELECT platform, sender, name, told_at, asked_at, digest, salt, expires_at FROM strangers
 WHERE (platform, sender) > (:after, :beyond) ORDER BY platform, sender LIMIT :limit;

-- name: copy_lockouts
SELECT platform, failures, failed_at FROM lockouts WHERE platform > :after ORDER BY platform LIMIT :limit;

-- name: copy_links
SELECT platform, sender, owner, at FROM links
 WHERE (platform, sender) > (:after, :beyond) ORDER BY platform, sender LIMIT :limit;

-- name: copy_blobs
SELECT digest, size, media_type, at, dropped_at FROM blobs WHERE digest > :after ORDER BY digest LIMIT :limit;

-- name: copy_meta
SELECT key, value FROM meta ORDER BY key;

-- name: copy_anything
-- Return whether a store holds any data.
SELECT EXISTS (SELECT 1 FROM conversations) OR EXISTS (SELECT 1 FROM tombstones) OR EXISTS (SELECT 1 FROM routes)
    OR EXISTS (SELECT 1 FROM memories) OR EXISTS (SELECT 1 FROM grants) OR EXISTS (SELECT 1 FROM blobs)
    OR EXISTS (SELECT 1 FROM arrivals) OR EXISTS (SELECT 1 FROM outbox) OR EXISTS (SELECT 1 FROM people);

-- name: copy_budget
INSERT INTO budgets (conversation, version, uid, body) VALUES (:conversation, 1, :uid, :body);

-- name: copy_budget_version
UPDATE budgets SET version = :version WHERE conversation = :conversation;

-- name: copy_memory
INSERT INTO memories (id, owner, text, at, updated_at, source)
VALUES (:id, :owner, :text, :at, :updated_at, :source_conversation);

-- name: copy_inbox_entry
-- Insert an inbox entry as open. A redacted entry gets a placeholder, because its text may be empty only after redaction.
INSERT INTO inbox (id, conversation, key, kind, text, at)
VALUES (:id, :conversation, :key, :kind, coalesce(nullif(:text, ''), '-'), :at);

-- name: copy_inbox_entry_settled
UPDATE inbox SET outcome = :outcome, seq = :seq, settled_at = :settled_at, settled_by = :settled_by WHERE id = :id;

-- name: copy_inbox_entry_redacted
UPDATE inbox SET text = '', redacted_at = :redacted_at WHERE id = :id;

-- name: copy_grant
INSERT INTO grants (id, owner, rule, conversation, given_at, given_by)
VALUES (:id, :owner, :rule, :conversation, :at, :given_by);

-- name: copy_act
-- Insert an audit entry as begun.
INSERT INTO audit (id, conversation, uid, call_id, tool, summary, allowed, decided_by, at)
VALUES (:id, :conversation, :uid, :call_id, :tool, :summary, :allowed, :decided_by, :begun_at);

-- name: copy_act_redacted
UPDATE audit SET summary = '', redacted_at = :redacted_at WHERE id = :id;

-- name: copy_arrival
-- Insert an arrival as open; a redacted one needs an address and a body until it is redacted.
INSERT INTO arrivals (id, platform, key, route, home, chat, sender, address, body, at)
VALUES (:id, :platform, :key, :route, :home, :chat, :sender, coalesce(nullif(:address, ''), '-'),
        coalesce(nullif(:body, ''), '-'), :at);

-- name: copy_arrival_begun
UPDATE arrivals SET attempts = :attempts, target = :target WHERE id = :id;

-- name: copy_arrival_joined
UPDATE arrivals SET joined = :joined WHERE id = :id;

-- name: copy_arrival_settled
-- Settle an arrival, together with joining another that is settled.
UPDATE arrivals SET joined = :joined, outcome = :outcome, conversation = :conversation, seq = :seq,
       settled_at = :settled_at, settled_by = :settled_by
 WHERE id = :id;

-- name: copy_arrival_redacted
-- Redact an arrival. The address is empty where its conversation was deleted.
UPDATE arrivals SET body = '', redacted_at = :redacted_at, address = :address WHERE id = :id;

-- name: copy_outgoing
INSERT INTO outbox (id, arrival, inbound, part, key, conversation, seq, platform, chat, address, kind, body, at, due_at)
VALUES (:id, :arrival, :inbound, :part, :key, :conversation, :seq, :platform, :chat, :address, :kind,
        coalesce(nullif(:body, ''), '-'), :at, :at);

-- name: copy_outgoing_tried
UPDATE outbox SET attempts = :attempts, due_at = :due_at, delivered_at = :delivered_at, external = :external,
       failed_at = :failed_at, error = :error
 WHERE id = :id;

-- name: copy_outgoing_redacted
UPDATE outbox SET body = '', redacted_at = :redacted_at WHERE id = :id;

-- name: copy_stranger
INSERT INTO strangers (platform, sender, name, told_at, asked_at, digest, salt, expires_at)
VALUES (:platform, :sender, :name, :told_at, :asked_at, :digest, :salt, :expires_at);

-- name: copy_blob
INSERT INTO blobs (digest, size, media_type, at, dropped_at) VALUES (:digest, :size, :media_type, :at, :dropped_at);

-- name: store_counts
-- Count conversations and messages without reading the messages.
SELECT count(*), CAST(coalesce(sum(last_seq - coalesce(forked_at, 0)), 0) AS bigint) FROM conversations;
