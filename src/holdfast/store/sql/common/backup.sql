-- name: meta_delete
-- A note about the store is not true any more.
DELETE FROM meta WHERE key = :key;

-- name: restore_leases
-- Whoever held a lease on what was there before holds none on what is there now.
DELETE FROM leases;

-- name: restore_arrivals
-- What was open when the backup was made was worked on since, by the store that this one replaces.
UPDATE arrivals SET outcome = 'restored', settled_at = at, settled_by = 'restore' WHERE outcome IS NULL;

-- name: restore_inbox
-- So were the notices that waited where a gateway answers them by itself; elsewhere they wait for somebody to come.
UPDATE inbox SET outcome = 'restored', settled_at = at, settled_by = 'restore'
 WHERE outcome IS NULL
   AND EXISTS (SELECT 1 FROM arrivals a WHERE a.conversation = inbox.conversation AND a.address <> '');

-- name: restore_outgoing
-- And what was to be sent then was sent, as far as anybody knows.
UPDATE outbox SET failed_at = at, error = :error WHERE delivered_at IS NULL AND failed_at IS NULL;

-- name: tombstones_all
SELECT id, deleted_at FROM tombstones;

-- name: tombstone_keep
-- An id that was deleted stays deleted, unless the backup has it.
INSERT INTO tombstones (id, deleted_at)
SELECT CAST(:id AS text), CAST(:at AS double precision) WHERE NOT EXISTS (SELECT 1 FROM sessions WHERE id = :id) AND NOT EXISTS (SELECT 1 FROM tombstones WHERE id = :id);

-- name: restore_counters
-- No epoch and no token from before can match any more.
UPDATE conversations SET epoch = greatest(epoch + 1, :counter), fence = greatest(fence + 1, :counter);

-- name: restore_routes
-- Nor can the version of a route.
UPDATE routes SET version = greatest(version + 1, :counter);

-- name: restore_budgets
-- Nor that of a budget.
UPDATE budgets SET version = greatest(version + 1, :counter);
