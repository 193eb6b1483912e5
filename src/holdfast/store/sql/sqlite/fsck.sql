-- name: fsck_digests
-- Messages of a conversation with everything their digests cover.
SELECT seq, uid, role, body, digest FROM messages
 WHERE id > (:conversation << 32) + :after AND id <= (:conversation << 32) + 4294967295
 ORDER BY id LIMIT :limit;

-- name: check_budgets
SELECT coalesce(c.id, b.conversation), 'the budget has no conversation, no version, or an unreadable body'
  FROM budgets b LEFT JOIN conversations c ON c.key = b.conversation
 WHERE c.key IS NULL OR b.version < 1 OR b.uid = '' OR length(b.body) > 65536
    OR CASE WHEN json_valid(b.body) THEN json_type(b.body, '$.spent') IS NOT 'object' ELSE 1 END;
