-- name: commit_plain
-- A whole commit, where everything is as it was when the work began; no row answers where it is not.
SELECT made.*, (SELECT folder FROM conversations WHERE id = made.conversation)
  FROM commit_plain(:conversation, :head, :epoch, :child, :token, :holder, :now, :at,
                    :cut_seq, :seen_seq, :body, :digest, :model, :keep_lease) made;
