-- name: memories_of
-- What is remembered about an owner, oldest first.
SELECT m.id, m.owner, m.text, m.at, m.updated_at, c.id
  FROM memories m LEFT JOIN conversations c ON c.key = m.source
 WHERE m.owner = %(owner)s ORDER BY m.id;

-- name: memory_by_text
SELECT m.id, m.owner, m.text, m.at, m.updated_at, c.id
  FROM memories m LEFT JOIN conversations c ON c.key = m.source
 WHERE m.owner = %(owner)s AND m.text = %(text)s;

-- name: memories_count
SELECT count(*) FROM memories WHERE owner = %(owner)s;

-- name: memory_insert
INSERT INTO memories (owner, text, at, updated_at, source) VALUES (%(owner)s, %(text)s, %(at)s, %(updated_at)s, %(source)s);

-- name: memory_revise
UPDATE memories SET text = %(text)s, updated_at = %(at)s WHERE owner = %(owner)s AND id = %(id)s;

-- name: memory_delete
DELETE FROM memories WHERE owner = %(owner)s AND id = %(id)s;
