-- name: arrival_redact_settled
-- One whose message was redacted while it was open goes with it, too.
UPDATE arrivals SET body = '', redacted_at = :at
 WHERE (id = :id OR joined = :id) AND redacted_at IS NULL AND EXISTS (
       SELECT 1 FROM messages m
        WHERE m.id = (arrivals.conversation << 32) + arrivals.seq AND m.redacted_at IS NOT NULL);
