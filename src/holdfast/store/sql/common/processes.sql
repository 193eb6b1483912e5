-- name: process_insert
INSERT INTO processes (id, conversation, command, folder, place, started_at, state)
VALUES (:id, :conversation, :command, :folder, :place, :started_at, 'running');

-- name: process_get
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code, p.ended_by, c.key
  FROM processes p JOIN conversations c ON c.key = p.conversation WHERE p.id = :id;

-- name: process_end
UPDATE processes SET state = :state, ended_at = :at, ended_by = :uid, exit_code = :exit_code
 WHERE id = :id AND state = 'running';

-- name: process_redact_noticed
-- Redact the command of the process whose end the redacted message reports.
UPDATE processes SET command = ''
 WHERE conversation = :conversation AND command <> ''
   AND 'process:' || id IN (SELECT key FROM inbox WHERE conversation = :conversation AND seq = :seq);

-- name: process_redact
UPDATE processes SET command = '' WHERE id = :id AND command <> '';

-- name: processes_of
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation
 WHERE p.conversation = :conversation AND (:running = 0 OR p.state = 'running') ORDER BY p.started_at, p.id;

-- name: processes_everywhere
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation ORDER BY p.started_at, p.id;

-- name: processes_running
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation WHERE p.state = 'running' ORDER BY p.started_at, p.id;
