-- name: process_insert
INSERT INTO processes (id, conversation, command, folder, place, started_at, state)
VALUES (%(id)s, %(conversation)s, %(command)s, %(folder)s, %(place)s, %(started_at)s, 'running');

-- name: process_get
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code, p.ended_by, c.key
  FROM processes p JOIN conversations c ON c.key = p.conversation WHERE p.id = %(id)s;

-- name: process_end
-- It ended, once, however many watch it.
UPDATE processes SET state = %(state)s, ended_at = %(at)s, ended_by = %(uid)s, exit_code = %(exit_code)s
 WHERE id = %(id)s AND state = 'running';

-- name: processes_of
-- The processes of a conversation, in the order they were started.
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation
 WHERE p.conversation = %(conversation)s AND (%(running)s = 0 OR p.state = 'running') ORDER BY p.started_at, p.id;

-- name: processes_everywhere
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation ORDER BY p.started_at, p.id;

-- name: processes_running
SELECT p.id, c.id, p.command, p.folder, p.started_at, p.place, p.state, p.ended_at, p.exit_code
  FROM processes p JOIN conversations c ON c.key = p.conversation WHERE p.state = 'running' ORDER BY p.started_at, p.id;

-- name: process_redact_noticed
-- The message that is redacted is the notice of its end, which quotes it.
UPDATE processes SET command = ''
 WHERE conversation = %(conversation)s AND command <> ''
   AND 'process:' || id IN (SELECT key FROM inbox WHERE conversation = %(conversation)s AND seq = %(seq)s);

-- name: process_redact
-- Its command was in a message that is redacted.
UPDATE processes SET command = '' WHERE id = %(id)s AND command <> '';
