-- name: outgoing_chat
-- What goes to one chat together stands there in a row: others who write to it wait for that. (By buckets: a
-- transaction holds a bounded number of them.)
SELECT pg_advisory_xact_lock(hashtext(current_schema() || ' outbox'), hashtext(:platform || ' ' || :chat) & 255);
