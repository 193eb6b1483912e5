-- name: usage_by_model
-- The sums of the usage of replies; damaged bodies are skipped.
SELECT said ->> '$.model' AS model,
       coalesce(sum(said ->> '$.usage.input'), 0),
       coalesce(sum(said ->> '$.usage.output'), 0),
       coalesce(sum(said ->> '$.usage.cache_read'), 0),
       coalesce(sum(said ->> '$.usage.cache_write'), 0),
       coalesce(sum(said ->> '$.usage.reasoning'), 0),
       sum(said ->> '$.usage.cost')
  FROM (SELECT CASE WHEN json_valid(body) THEN body ELSE '{}' END AS said
          FROM messages
         WHERE id > (:conversation << 32) AND id < ((:conversation + 1) << 32) AND role = 'assistant')
 WHERE said ->> '$.usage' IS NOT NULL
 GROUP BY 1 ORDER BY 1;
