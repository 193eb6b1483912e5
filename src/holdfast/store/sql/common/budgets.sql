-- name: budget_get
SELECT version, uid, body FROM budgets WHERE conversation = :conversation;

-- name: budget_open
-- The first writer inserts the row; a second one changes nothing. Version 0 means that there is no row yet.
INSERT INTO budgets (conversation, version, uid, body) SELECT :conversation, :version + 1, CAST(:uid AS text), CAST(:body AS text)
 WHERE NOT EXISTS (SELECT 1 FROM budgets WHERE conversation = :conversation);

-- name: budget_swap
-- Compare and swap: only a caller that read the last version may write.
UPDATE budgets SET version = version + 1, uid = :uid, body = :body
 WHERE conversation = :conversation AND version = :version;
