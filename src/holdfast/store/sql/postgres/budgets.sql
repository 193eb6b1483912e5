-- name: budget_get
-- What was spent on a conversation, and who wrote it.
SELECT version, uid, body FROM budgets WHERE conversation = %(conversation)s;

-- name: budget_open
-- The first to spend makes the row; whoever comes second changes nothing. Version 0 is the row that is not there.
INSERT INTO budgets (conversation, version, uid, body) SELECT %(conversation)s, %(version)s + 1, %(uid)s::text, %(body)s::text
 WHERE NOT EXISTS (SELECT 1 FROM budgets WHERE conversation = %(conversation)s);

-- name: budget_swap
-- Spent anew, by whoever saw the last version.
UPDATE budgets SET version = version + 1, uid = %(uid)s, body = %(body)s
 WHERE conversation = %(conversation)s AND version = %(version)s;
