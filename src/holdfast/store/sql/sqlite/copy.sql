-- name: copy_numbers
-- How far the numbers of a table were given out: what was forgotten or revoked had some too.
SELECT name, seq FROM sqlite_sequence
 WHERE name IN ('memories', 'inbox', 'grants', 'audit', 'arrivals', 'outbox') ORDER BY name;

-- name: copy_number
-- None of them is given out again.
UPDATE sqlite_sequence SET seq = max(seq, :number) WHERE name = :name;

-- name: copy_number_first
-- The same of a table that never had a row here.
INSERT INTO sqlite_sequence (name, seq)
SELECT :name, :number WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :name);
