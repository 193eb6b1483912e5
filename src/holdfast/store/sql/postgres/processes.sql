-- name: processes_of
-- The processes of a conversation, in the order they were started.
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation
 WHERE p.conversation = :conversation AND (:running = 0 OR p.state = 'running') ORDER BY p.started_at, p.id;

-- name: processes_everywhere
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation ORDER BY p.started_at, p.id;

-- name: processes_running
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation WHERE p.state = 'running' ORDER BY p.started_at, p.id;
