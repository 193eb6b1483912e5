-- name: copy_numbers
-- Read the highest id each table ever assigned; deleted rows count.
SELECT name, number
  FROM (SELECT name, pg_sequence_last_value(pg_get_serial_sequence(name, 'id')::regclass) AS number
          FROM unnest(ARRAY['arrivals', 'audit', 'grants', 'inbox', 'memories', 'outbox']) AS name) given
 WHERE number IS NOT NULL ORDER BY name;

-- name: copy_number
-- Never assign an id twice.
SELECT setval(pg_get_serial_sequence(:name, 'id'),
              greatest(pg_sequence_last_value(pg_get_serial_sequence(:name, 'id')::regclass), :number));

-- name: copy_number_first
-- The same for a table that never had a row in this store.
SELECT setval(pg_get_serial_sequence(:name, 'id'), :number)
 WHERE pg_sequence_last_value(pg_get_serial_sequence(:name, 'id')::regclass) IS NULL;
