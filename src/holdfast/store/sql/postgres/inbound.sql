-- name: arrival_settled
-- The uid of the call that settled a message, and NULL while it is open. The lock makes the next statement see messages
-- that a concurrent transaction has joined into this one.
SELECT settled_by FROM arrivals WHERE id = :id FOR UPDATE;
