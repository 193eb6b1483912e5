-- name: copy_numbers
-- How far the numbers of a table were given out: what was forgotten or revoked had some too.
SELECT name, number
  FROM (SELECT name, pg_sequence_last_value(pg_get_serial_sequence(name, 'id')::regclass) AS number
          FROM unnest(ARRAY['arrivals', 'audit', 'grants', 'inbox', 'memories', 'outbox']) AS name) given
 WHERE number IS NOT NULL ORDER BY name;

-- name: copy_number
-- None of them is given out again.
SELECT setval(pg_get_serial_sequence(:name, 'id'),
              greatest(pg_sequence_last_value(pg_get_serial_sequence(:name, 'id')::regclass), :number));

-- name: copy_number_first
-- The same of a table that never had a row here.
SELECT setval(pg_get_serial_sequence(:name, 'id'), :number)
 WHERE pg_sequence_last_value(pg_get_serial_sequence(:name, 'id')::regclass) IS NULL;
