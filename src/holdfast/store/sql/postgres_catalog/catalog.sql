-- name: environment
-- The schema, role and server of the connection.
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
-- The versions of the schema.
SELECT key, value FROM meta WHERE key IN ('schema_format', 'schema_revision', 'schema_server', 'schema_cookie');

-- name: recorded
-- The definitions as of the last migration.
SELECT value FROM meta WHERE key = 'schema_shape';

-- name: missing_privileges
-- The privileges that a role lacks.
SELECT privilege, c.relname::text FROM pg_class c, unnest(:privileges::text[]) privilege
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'r'
   AND c.relname = ANY(:tables) AND NOT has_table_privilege(:role::name, c.oid, privilege)
 ORDER BY c.relname, privilege;

-- name: target_schema
-- The first schema of the search_path, whether it exists or not, and whether the role may create schemas. (An unquoted
-- name is in lower case.)
SELECT CASE WHEN name = '"$user"' THEN current_user::text
            WHEN name LIKE '"%' THEN replace(substr(name, 2, length(name) - 2), '""', '"')
            ELSE lower(name) END,
       has_database_privilege(current_database(), 'CREATE'), current_user::text
  FROM (SELECT trim((regexp_match(current_setting('search_path'), '^\s*("(?:[^"]|"")*"|[^,]*)'))[1])) first (name);

-- name: schema_exists
SELECT 1 FROM pg_namespace WHERE nspname = :schema;

-- name: lock
-- Serialize migrations, until the end of the transaction.
SELECT pg_advisory_xact_lock(hashtextextended('holdfast schema ' || :schema, 0));

-- name: function_is_used
-- Whether an object depends on the function.
SELECT EXISTS (
  SELECT 1 FROM pg_depend d JOIN pg_proc p ON p.oid = d.refobjid AND d.refclassid = 'pg_proc'::regclass
   WHERE p.pronamespace = to_regnamespace(quote_ident(current_schema())) AND p.proname = :name);

-- name: label_insert
-- Without ON CONFLICT: the unique constraint itself may be missing.
INSERT INTO meta (key, value)
SELECT :key, :value WHERE NOT EXISTS (SELECT 1 FROM meta WHERE key = :key);

-- name: label_delete
DELETE FROM meta WHERE key = :key;

-- name: definitions
-- The definitions of all objects as the server prints them, marked with DISABLED or NOT VALID.
WITH t AS (
  SELECT c.oid, c.relname FROM pg_class c
   WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'r'
     AND c.relname = ANY(:tables))
SELECT 'table', relname::text, '', '' FROM t
UNION ALL
SELECT 'column', a.attname::text, t.relname::text,
       format_type(a.atttypid, a.atttypmod) || coalesce(' ' || k.collname, '')
       || CASE WHEN a.attnotnull THEN ' not null' ELSE '' END || a.attidentity::text
       || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
  FROM t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_collation k ON k.oid = a.attcollation
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT 'constraint', n.conname::text, t.relname::text, pg_get_constraintdef(n.oid)
       || CASE WHEN EXISTS (SELECT 1 FROM pg_trigger g WHERE g.tgconstraint = n.oid AND g.tgenabled <> 'O')
               THEN ' DISABLED' ELSE '' END
  FROM t JOIN pg_constraint n ON n.conrelid = t.oid AND n.contype IN ('c', 'f', 'p', 'u', 'x')
UNION ALL
SELECT 'index', c.relname::text, t.relname::text, pg_get_indexdef(i.indexrelid)
       || CASE WHEN i.indisvalid THEN '' ELSE ' DISABLED' END
  FROM t JOIN pg_index i ON i.indrelid = t.oid JOIN pg_class c ON c.oid = i.indexrelid
 WHERE NOT EXISTS (SELECT 1 FROM pg_constraint n WHERE n.conindid = i.indexrelid AND n.contype IN ('p', 'u', 'x'))
UNION ALL
SELECT 'trigger', g.tgname::text, t.relname::text, pg_get_triggerdef(g.oid, true)
       || CASE WHEN g.tgenabled = 'O' THEN '' ELSE ' DISABLED' END
  FROM t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal
UNION ALL
SELECT 'function', p.proname::text, '', pg_get_functiondef(p.oid)
  FROM pg_proc p
 WHERE p.pronamespace = to_regnamespace(quote_ident(current_schema())) AND p.proname = ANY(:functions);

-- name: cookie
-- Changes with every change of the schema, which updates the xmin of catalog rows.
WITH t AS (
  SELECT c.oid FROM pg_class c
   WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'r'
     AND c.relname = ANY(:tables))
SELECT count(*) || '.' || coalesce(sum(hashtextextended(part, 0)), 0) FROM (
  SELECT 'a' || a.attrelid || ' ' || a.attnum || ' ' || a.xmin FROM t JOIN pg_attribute a ON a.attrelid = t.oid
  UNION ALL SELECT 'n' || n.oid || ' ' || n.xmin FROM t JOIN pg_constraint n ON n.conrelid = t.oid
  UNION ALL SELECT 'i' || i.indexrelid || ' ' || i.xmin FROM t JOIN pg_index i ON i.indrelid = t.oid
  UNION ALL SELECT 'g' || g.oid || ' ' || g.xmin FROM t JOIN pg_trigger g ON g.tgrelid = t.oid
  UNION ALL SELECT 'p' || p.oid || ' ' || p.xmin FROM pg_proc p
             WHERE p.pronamespace = to_regnamespace(quote_ident(current_schema())) AND p.proname = ANY(:functions)
) parts (part);
