-- name: pin_insert
INSERT INTO pins (conversation, seq, at) VALUES (:conversation, :seq, :at);

-- name: pin_delete
DELETE FROM pins WHERE conversation = :conversation AND seq = :seq;

-- name: pins_of
SELECT seq, at FROM pins WHERE conversation = :conversation ORDER BY seq;
