-- name: restore_leases
-- Void all leases.
DELETE FROM leases;

-- name: restore_arrivals
-- Settle the inbound messages that were open when the backup was made.
UPDATE arrivals SET outcome = 'restored', settled_at = at, settled_by = 'restore' WHERE outcome IS NULL;

-- name: restore_inbox
-- Settle notices that a gateway answers by itself; elsewhere they wait for the next turn.
UPDATE inbox SET outcome = 'restored', settled_at = at, settled_by = 'restore'
 WHERE outcome IS NULL
   AND EXISTS (SELECT 1 FROM arrivals a WHERE a.conversation = inbox.conversation AND a.address <> '');

-- name: restore_outgoing
-- Fail outbound messages that were not sent when the backup was made.
UPDATE outbox SET failed_at = at, error = :error WHERE delivered_at IS NULL AND failed_at IS NULL;

-- name: tombstones_all
SELECT id, deleted_at FROM tombstones;

-- name: tombstone_keep
-- Keep an id deleted, unless the store has it.
INSERT INTO tombstones (id, deleted_at)
SELECT CAST(:id AS text), CAST(:at AS double precision) WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE id = :id) AND NOT EXISTS (SELECT 1 FROM tombstones WHERE id = :id);

-- name: restore_counters
-- Advance epochs and tokens past all earlier ones.
UPDATE conversations SET epoch = greatest(epoch + 1, :counter), fence = greatest(fence + 1, :counter);

-- name: restore_routes
-- Advance the versions of routes.
UPDATE routes SET version = greatest(version + 1, :counter);

-- name: restore_budgets
-- Advance the versions of budgets.
UPDATE budgets SET version = greatest(version + 1, :counter);
