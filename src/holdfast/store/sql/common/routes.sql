-- name: route_get
SELECT r.key, c.id, r.version, coalesce(c.owner, '') FROM routes r LEFT JOIN conversations c ON c.key = r.conversation
 WHERE r.key = :key;

-- name: routes_all
-- All routes, or those of one conversation.
SELECT r.key, c.id, r.version, coalesce(c.owner, '') FROM routes r LEFT JOIN conversations c ON c.key = r.conversation
 WHERE CAST(:conversation AS bigint) IS NULL OR r.conversation = :conversation ORDER BY r.key;

-- name: route_insert
-- Bind a route for the first time.
INSERT INTO routes (key, conversation, version, updated_at) VALUES (:key, :conversation, 1, :at);

-- name: route_swap
-- Compare and swap: only a caller that read the last version may bind the route.
UPDATE routes SET conversation = :conversation, version = version + 1, updated_at = :at
 WHERE key = :key AND version = :version;
