-- name: lock_meta
-- Exclude other writers of `meta` until the transaction ends.
LOCK TABLE meta IN SHARE ROW EXCLUSIVE MODE;
