-- name: shape
-- Every part of our tables in the server's own words. What does not hold at present ends with DISABLED or NOT VALID.
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
-- Changes with any change of the schema: that writes rows of the catalogue, and each says which transaction wrote it.
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
