-- name: lock_meta
-- From here on nobody else notes anything about the store until the transaction ends.
LOCK TABLE meta IN SHARE ROW EXCLUSIVE MODE;
