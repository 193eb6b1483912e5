-- name: lock_meta
-- From here on nobody else notes anything about the store. (BEGIN IMMEDIATE has locked the whole file already.)
SELECT 1;
