-- name: scrub_noted
-- Count a scrub and store its time. The count tells two scrubs apart if the clock does not advance.
INSERT INTO meta (key, value) VALUES ('scrubs', '1'), ('scrubbed_at', :at)
ON CONFLICT (key) DO UPDATE
   SET value = CASE meta.key WHEN 'scrubs' THEN (meta.value::bigint + 1)::text ELSE excluded.value END;
