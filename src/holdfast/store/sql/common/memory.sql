-- name: memories_of
SELECT m.id, m.owner, m.text, m.at, m.updated_at, c.id
  FROM memories m LEFT JOIN conversations c ON c.key = m.source
 WHERE m.owner = :owner ORDER BY m.id;

-- name: memory_by_text
SELECT m.id, m.owner, m.text, m.at, m.updated_at, c.id
  FROM memories m LEFT JOIN conversations c ON c.key = m.source
 WHERE m.owner = :owner AND m.text = :text;

-- name: memories_count
SELECT count(*) FROM memories WHERE owner = :owner;

-- name: memory_insert
INSERT INTO memories (owner, text, at, updated_at, source) VALUES (:owner, :text, :at, :updated_at, :source);

-- name: memory_revise
UPDATE memories SET text = :text, updated_at = :at WHERE owner = :owner AND id = :id;

-- name: memory_delete
DELETE FROM memories WHERE owner = :owner AND id = :id;
