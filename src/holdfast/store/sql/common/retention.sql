-- name: prune_needed
-- Whether a route names a conversation, or a branch reads from it.
SELECT EXISTS (SELECT 1 FROM routes WHERE conversation = :conversation),
       EXISTS (SELECT 1 FROM conversations WHERE origin = :conversation);
