-- name: ground
-- Where a connection stands, and what its role may do there.
SELECT current_schema()::text, current_user::text, current_setting('server_version_num')::int / 10000,
       has_schema_privilege(current_schema(), 'CREATE') AND NOT EXISTS (
         SELECT 1 FROM pg_class c
          WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'r'
            AND c.relname = ANY(:tables) AND NOT pg_has_role(c.relowner, 'USAGE')),
       ARRAY(SELECT c.relname::text FROM pg_class c
              WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relname = ANY(:tables)),
       EXISTS (SELECT 1 FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'value'
                WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relname = 'meta'
                  AND has_table_privilege(c.oid, 'SELECT')),
       current_setting('server_encoding');

-- name: labels
-- What is known of the schema itself, but for its shape, which is long.
SELECT key, value FROM meta WHERE key IN ('schema_format', 'schema_revision', 'schema_server', 'schema_cookie');

-- name: recorded
-- The shape the schema had when it was made.
SELECT value FROM meta WHERE key = 'schema_shape';

-- name: lacking
-- Rights on our tables that this role has not.
SELECT wanted, c.relname::text FROM pg_class c, unnest(:rights::text[]) wanted
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'r'
   AND c.relname = ANY(:tables) AND NOT has_table_privilege(c.oid, wanted)
 ORDER BY c.relname, wanted;

-- name: wanted
-- The first schema that the address names, there or not, and whether this role may make one. (As in any SQL, a name
-- without quotes is in small letters.)
SELECT CASE WHEN name = '"$user"' THEN current_user::text
            WHEN name LIKE '"%' THEN replace(substr(name, 2, length(name) - 2), '""', '"')
            ELSE lower(name) END,
       has_database_privilege(current_database(), 'CREATE'), current_user::text
  FROM (SELECT trim((regexp_match(current_setting('search_path'), '^\s*("(?:[^"]|"")*"|[^,]*)'))[1])) first (name);

-- name: there
-- Whether a schema exists.
SELECT 1 FROM pg_namespace WHERE nspname = :schema;

-- name: lock
-- One at a time makes a schema; the lock goes with the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('holdfast schema ' || :schema, 0));

-- name: used
-- Whether something else of the schema needs a function.
SELECT EXISTS (
  SELECT 1 FROM pg_depend d JOIN pg_proc p ON p.oid = d.refobjid AND d.refclassid = 'pg_proc'::regclass
   WHERE p.pronamespace = to_regnamespace(quote_ident(current_schema())) AND p.proname = :name);

-- name: label_keep
-- A label that is not there yet. (No ON CONFLICT: the very constraint it needs may be what is missing.)
INSERT INTO meta (key, value)
SELECT :key, :value WHERE NOT EXISTS (SELECT 1 FROM meta WHERE key = :key);

-- name: label_gone
-- One that is to be said anew.
DELETE FROM meta WHERE key = :key;
