-- name: lock_meta
-- BEGIN IMMEDIATE has locked the whole file already.
SELECT 1;
