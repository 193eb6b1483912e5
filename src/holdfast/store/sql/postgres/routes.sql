-- name: route_get
-- What a route names.
SELECT r.key, c.id, r.version FROM routes r LEFT JOIN conversations c ON c.key = r.conversation WHERE r.key = %(key)s;

-- name: routes_all
-- Every route, or those of one conversation.
SELECT r.key, c.id, r.version FROM routes r LEFT JOIN conversations c ON c.key = r.conversation
 WHERE %(conversation)s::bigint IS NULL OR r.conversation = %(conversation)s ORDER BY r.key;

-- name: route_insert
-- A route is bound for the first time.
INSERT INTO routes (key, conversation, version, updated_at) VALUES (%(key)s, %(conversation)s, 1, %(at)s);

-- name: route_swap
-- A route is bound anew, by whoever saw its last version.
UPDATE routes SET conversation = %(conversation)s, version = version + 1, updated_at = %(at)s
 WHERE key = %(key)s AND version = %(version)s;

-- name: meta_get
SELECT value FROM meta WHERE key = %(key)s;

-- name: meta_set
INSERT INTO meta (key, value) VALUES (%(key)s, %(value)s) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: lock_meta
-- From here on nobody else notes anything about the store until the transaction ends.
LOCK TABLE meta IN SHARE ROW EXCLUSIVE MODE;
