-- name: scrub_noted
-- How often and when what was removed was taken out of the files. Counted, since a clock may stand still.
INSERT INTO meta (key, value) VALUES ('scrubs', '1'), ('scrubbed_at', :at)
ON CONFLICT (key) DO UPDATE
   SET value = CASE meta.key WHEN 'scrubs' THEN (meta.value::bigint + 1)::text ELSE excluded.value END;
