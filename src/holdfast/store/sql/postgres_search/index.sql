-- name: index_meta
SELECT value FROM search_meta WHERE key = :key;

-- name: index_meta_set
INSERT INTO search_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: index_writable
-- Whether the index can be updated.
SELECT NOT pg_is_in_recovery() AND current_setting('default_transaction_read_only') = 'off'
       AND has_table_privilege('search_words', 'INSERT');

-- name: index_begun
SELECT 1 FROM search_progress LIMIT 1;

-- name: index_progress
SELECT conversation, upto FROM search_progress;

-- name: index_progress_of
SELECT upto FROM search_progress WHERE conversation = :conversation;

-- name: index_progress_set
INSERT INTO search_progress (conversation, upto) VALUES (:conversation, :upto)
ON CONFLICT (conversation) DO UPDATE SET upto = excluded.upto;

-- name: index_forget_progress
DELETE FROM search_progress WHERE conversation = :conversation;

-- name: index_put
-- Add the words of new messages of a block, and set the lengths of all messages from the first given on.
WITH before AS (
  SELECT lengths FROM search_blocks WHERE conversation = :conversation AND block = :block
), put AS (
  INSERT INTO search_blocks AS b (conversation, block, owner, lengths)
  VALUES (:conversation, :block, :owner,
          array_fill(0, ARRAY[:first::integer]) || :lengths::integer[])
  ON CONFLICT (conversation, block) DO UPDATE
     SET lengths = b.lengths[1 : :first::integer] || :lengths::integer[]
                   || b.lengths[:first::integer + cardinality(:lengths::integer[]) + 1 :]
  RETURNING lengths
), counted AS (
  INSERT INTO search_totals AS t (id, messages, words)
  SELECT 1, coalesce(sum(n), 0), coalesce(sum(n * length), 0)
    FROM (SELECT 1, length FROM put, unnest(put.lengths) length WHERE length > 0
          UNION ALL SELECT -1, length FROM before, unnest(before.lengths) length WHERE length > 0) change (n, length)
  ON CONFLICT (id) DO UPDATE SET messages = t.messages + excluded.messages, words = t.words + excluded.words
)
INSERT INTO search_words AS w (word, conversation, block, messages, places)
SELECT word, :conversation, :block, messages, places::integer[]
  FROM unnest(string_to_array(:words, ' '), :messages::bigint[], string_to_array(:places, ' '))
       AS given (word, messages, places)
ON CONFLICT (word, conversation, block) DO UPDATE
   SET messages = w.messages + excluded.messages, places = w.places || excluded.places;

-- name: index_forget
WITH emptied AS (
  DELETE FROM search_words WHERE conversation = :conversation
), closed AS (
  DELETE FROM search_blocks WHERE conversation = :conversation RETURNING lengths
)
UPDATE search_totals s SET messages = s.messages - gone.messages, words = s.words - gone.words
  FROM (SELECT count(*) AS messages, coalesce(sum(length), 0) AS words
          FROM closed, unnest(closed.lengths) length WHERE length > 0) gone;

-- name: index_merge
-- Nothing to do: `scrub` rewrites the tables.
SELECT 1;

-- name: index_redacted
-- The messages that are indexed as redacted.
SELECT conversation, (block << 8) + (place >> 23) FROM search_words, unnest(places) place WHERE word = '#' || :tag;

-- name: index_weights
-- The indexed words of each range with their rarity (the idf of BM25), and the weight of a message's length.
SELECT given.number, w.word,
       ln(greatest((t.messages - w.messages + 0.5) / (w.messages + 0.5), 1.000001))::double precision,
       (0.9 * t.messages / greatest(t.words, 1))::double precision
  FROM search_totals t CROSS JOIN unnest(:firsts::text[], :lasts::text[]) WITH ORDINALITY given (first, last, number)
 CROSS JOIN LATERAL (
   SELECT word, sum(messages) AS messages FROM search_words
    WHERE word >= given.first AND word <= given.last GROUP BY word OFFSET 0) w;

-- name: index_find
-- The best matches in a range of messages by their own words, best first. OFFSET 0 keeps the join order (words,
-- rows, blocks) whatever the statistics of a recently filled table say. A score needs the first position of a word in a
-- message only: it carries the count, which is 0 at later positions.
WITH fitting AS (
  SELECT place FROM (
    SELECT phrase, (conversation << 32) + (block << 8) + (at >> 23) AS place
      FROM (
        SELECT p.phrase, p.step, p.steps, w.conversation, w.block, unnest(w.places) AS at
          FROM unnest(:phrase::bigint[], :step::bigint[], :steps::bigint[], :needed::text[])
               AS p (phrase, step, steps, word)
         CROSS JOIN LATERAL (
           SELECT conversation, block, places FROM search_words
            WHERE word = p.word AND conversation BETWEEN :first::bigint >> 32 AND :last::bigint >> 32
           OFFSET 0) w
      ) positions
     GROUP BY phrase, steps, 2, (at & 524287) - step
    HAVING count(DISTINCT step) = steps
  ) whole GROUP BY place HAVING count(DISTINCT phrase) = :phrases::bigint
)
SELECT place, score FROM (
  SELECT place, sum(score) AS score FROM (
    SELECT base + (at >> 23) AS place,
           rarity / (1 + (0.3::double precision + lengths[(at >> 23) + 1] * :share::double precision)
                         / ((at >> 19) & 15)) AS score
      FROM (
        SELECT (w.conversation << 32) + (w.block << 8) AS base, a.rarity, b.lengths, unnest(w.places) AS at
          FROM unnest(:words::text[], :rarities::double precision[]) a (word, rarity)
         CROSS JOIN LATERAL (
           SELECT conversation, block, places FROM search_words
            WHERE word = a.word AND conversation BETWEEN :first::bigint >> 32 AND :last::bigint >> 32
           OFFSET 0) w
         CROSS JOIN LATERAL (
           SELECT lengths FROM search_blocks
            WHERE conversation = w.conversation AND block = w.block AND (:owner::text IS NULL OR owner = :owner::text)
           OFFSET 0) b
      ) every WHERE at & 7864320 > 0
    OFFSET 0
  ) scored GROUP BY place OFFSET 0
) summed
 WHERE place BETWEEN :first::bigint AND :last::bigint
   AND (:phrases::bigint = 0 OR place IN (SELECT fitting.place FROM fitting))
 ORDER BY score DESC, place LIMIT :limit::bigint;

-- name: index_find_around, index_find_at
-- The best matches in a range, or the matches among the given messages: by their own words, by words close to each
-- other, and by both in their neighbours. `places` is a JSON array; as an array of PostgreSQL it is planned for few
-- rows, so that hash tables stay small. The lengths of each block are read once, not once per message and word.
WITH wanted AS MATERIALIZED (
  SELECT unnest(translate(:places::text, '[]', '{}')::bigint[]) AS place
), sources AS MATERIALIZED (
  SELECT DISTINCT place + generate_series(-:near::bigint, :near::bigint) AS place FROM wanted
), blocks AS MATERIALIZED (
  SELECT DISTINCT place >> 32 AS conversation, (place & 4294967295) >> 8 AS block FROM sources
   UNION ALL
  SELECT conversation, block FROM search_blocks
   WHERE :places::text IS NULL AND conversation BETWEEN :first::bigint >> 32 AND :last::bigint >> 32
), sizes AS MATERIALIZED (
  SELECT b.conversation, b.block, s.lengths FROM blocks b
   CROSS JOIN LATERAL (
     SELECT lengths FROM search_blocks
      WHERE conversation = b.conversation AND block = b.block AND (:owner::text IS NULL OR owner = :owner::text)
     OFFSET 0) s
), hits AS MATERIALIZED (
  SELECT * FROM (
    SELECT term, rarity, base + (at >> 23) AS place, (at >> 19) & 15 AS times, at & 524287 AS at
      FROM (
        SELECT a.term, a.rarity, (w.conversation << 32) + (w.block << 8) AS base, unnest(w.places) AS at
          FROM unnest(:terms::bigint[], :words::text[], :rarities::double precision[]) a (term, word, rarity)
         CROSS JOIN LATERAL (
           SELECT conversation, block, places FROM search_words
            WHERE word = a.word AND conversation = ANY (ARRAY(SELECT conversation FROM blocks)) OFFSET 0) w
         WHERE (w.conversation, w.block) IN (SELECT conversation, block FROM blocks)
      ) every
  ) unpacked WHERE :places::text IS NULL OR place IN (SELECT sources.place FROM sources)
), features AS (
  SELECT term AS feature, place, rarity, sum(times)::double precision AS times FROM hits WHERE times > 0
   GROUP BY term, place, rarity
   UNION ALL
  SELECT -a.term, a.place, a.rarity + b.rarity, 1
    FROM hits a JOIN hits b ON b.place = a.place AND b.term = a.term + 1 AND abs(b.at - a.at) <= :apart::bigint
   WHERE a.term = ANY (:together::bigint[])
   GROUP BY a.term, a.place, a.rarity + b.rarity
), lent AS (
  SELECT place + n AS place, feature, rarity,
         sum(times * CASE n WHEN 0 THEN 1 ELSE :around::double precision END) AS times
    FROM features, generate_series(-:near::bigint, :near::bigint) n
   WHERE place + n BETWEEN :first::bigint AND :last::bigint
     AND (:places::text IS NULL OR place + n IN (SELECT wanted.place FROM wanted))
   GROUP BY place + n, feature, rarity
), fitting AS (
  SELECT place FROM (
    SELECT phrase, (conversation << 32) + (block << 8) + (at >> 23) AS place
      FROM (
        SELECT p.phrase, p.step, p.steps, w.conversation, w.block, unnest(w.places) AS at
          FROM unnest(:phrase::bigint[], :step::bigint[], :steps::bigint[], :needed::text[])
               AS p (phrase, step, steps, word)
         CROSS JOIN LATERAL (
           SELECT conversation, block, places FROM search_words
            WHERE word = p.word AND conversation = ANY (ARRAY(SELECT conversation FROM blocks)) OFFSET 0) w
         WHERE (w.conversation, w.block) IN (SELECT conversation, block FROM blocks)
      ) positions
     GROUP BY phrase, steps, 2, (at & 524287) - step
    HAVING count(DISTINCT step) = steps
  ) whole GROUP BY place HAVING count(DISTINCT phrase) = :phrases::bigint
)
SELECT place, sum(rarity / (1 + (0.3::double precision + length * :share::double precision) / times)) AS score
  FROM (
    SELECT place, rarity, times, lengths[(place & 255) + 1] AS length
      FROM lent JOIN sizes ON conversation = place >> 32 AND block = (place & 4294967295) >> 8 OFFSET 0) each
 WHERE length > 0 AND (:phrases::bigint = 0 OR place IN (SELECT fitting.place FROM fitting))
 GROUP BY place ORDER BY score DESC, place LIMIT :limit::bigint;
