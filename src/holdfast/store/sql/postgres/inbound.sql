-- name: arrival_settled
-- The attempt that settled it, and the row locked; NULL while it is open.
SELECT settled_by FROM arrivals WHERE id = :id FOR UPDATE;
