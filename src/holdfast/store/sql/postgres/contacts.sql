-- name: lockout_get
-- The number of consecutive wrong codes, and the time of the last one.
SELECT failures, failed_at FROM lockouts WHERE platform = :platform FOR UPDATE;
