-- name: pin_insert
INSERT INTO pins (conversation, seq, at) VALUES (%(conversation)s, %(seq)s, %(at)s);

-- name: pin_delete
DELETE FROM pins WHERE conversation = %(conversation)s AND seq = %(seq)s;

-- name: pins_of
-- What people pinned in a conversation, in the order of its log.
SELECT seq, at FROM pins WHERE conversation = %(conversation)s ORDER BY seq;
