-- name: restore_counters
-- No epoch and no token from before can match any more.
UPDATE conversations SET epoch = max(epoch + 1, :counter), fence = max(fence + 1, :counter);

-- name: restore_routes
-- Nor can the version of a route.
UPDATE routes SET version = max(version + 1, :counter);

-- name: restore_budgets
-- Nor that of a budget.
UPDATE budgets SET version = max(version + 1, :counter);
