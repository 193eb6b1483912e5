-- name: fsck_digests
-- Messages of a conversation with everything their digests cover.
SELECT seq, uid, role, body, digest FROM messages
 WHERE conversation = :conversation AND seq > :after
 ORDER BY seq LIMIT :limit;

-- name: check_budgets
SELECT coalesce(c.id, b.conversation::text), 'the budget has no conversation, no version, or an unreadable body'
  FROM budgets b LEFT JOIN conversations c ON c.key = b.conversation
 WHERE c.key IS NULL OR b.version < 1 OR b.uid = '' OR length(b.body) > 65536
    OR json_kind(b.body, 'spent') IS DISTINCT FROM 'object';
