-- name: usage_by_model
-- The sums of the usage of replies; damaged bodies are skipped.
SELECT said #>> '{model}' COLLATE "C" AS model,
       coalesce(sum((said #>> '{usage,input}')::bigint), 0)::bigint,
       coalesce(sum((said #>> '{usage,output}')::bigint), 0)::bigint,
       coalesce(sum((said #>> '{usage,cache_read}')::bigint), 0)::bigint,
       coalesce(sum((said #>> '{usage,cache_write}')::bigint), 0)::bigint,
       coalesce(sum((said #>> '{usage,reasoning}')::bigint), 0)::bigint,
       sum((said #>> '{usage,cost}')::double precision)
  FROM (SELECT CASE WHEN json_kind(body) IS NOT NULL THEN replace(body, '\u0000', '\u0020')::json END AS said FROM messages
         WHERE conversation = :conversation AND role = 'assistant') AS replies
 WHERE said #>> '{usage}' IS NOT NULL
 GROUP BY 1 ORDER BY 1 NULLS FIRST;
