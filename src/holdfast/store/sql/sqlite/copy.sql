-- name: copy_numbers
-- Read the highest id each table ever assigned; deleted rows count.
SELECT name, seq FROM sqlite_sequence
 WHERE name IN ('memories', 'inbox', 'grants', 'audit', 'arrivals', 'outbox') ORDER BY name;

-- name: copy_number
-- Never assign an id twice.
UPDATE sqlite_sequence SET seq = max(seq, :number) WHERE name = :name;

-- name: copy_number_first
-- The same for a table that never had a row in this store.
INSERT INTO sqlite_sequence (name, seq)
SELECT :name, :number WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = :name);
