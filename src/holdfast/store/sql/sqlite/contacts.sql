-- name: lockout_get
-- Wrong codes in a row, and when the last one was given.
SELECT failures, failed_at FROM lockouts WHERE platform = :platform;
