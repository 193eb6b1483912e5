-- name: outgoing_chat
-- What goes to one chat together stands there in a row: here only one writes at a time.
SELECT 1;
