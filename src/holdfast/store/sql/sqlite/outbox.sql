-- name: outgoing_lock_chat
-- SQLite has one writer at a time, so no lock is needed.
SELECT 1;
