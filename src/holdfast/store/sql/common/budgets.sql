-- name: budget_get
-- What was spent on a conversation, and who wrote it.
SELECT version, uid, body FROM budgets WHERE conversation = :conversation;

-- name: budget_open
-- The first to spend makes the row; whoever comes second changes nothing. Version 0 is the row that is not there.
INSERT INTO budgets (conversation, version, uid, body) SELECT :conversation, :version + 1, CAST(:uid AS text), CAST(:body AS text)
 WHERE NOT EXISTS (SELECT 1 FROM budgets WHERE conversation = :conversation);

-- name: budget_swap
-- Spent anew, by whoever saw the last version.
UPDATE budgets SET version = version + 1, uid = :uid, body = :body
 WHERE conversation = :conversation AND version = :version;
