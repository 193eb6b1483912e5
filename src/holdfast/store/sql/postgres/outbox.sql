-- name: outgoing_lock_chat
-- Lock a chat for writers, so that the parts of one reply are consecutive among the messages to it.
SELECT pg_advisory_xact_lock(
  hashtextextended(current_schema() || ' outbox ' || CAST(:platform AS text) || ' ' || CAST(:chat AS text), 0));
