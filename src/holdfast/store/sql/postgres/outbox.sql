-- name: outgoing_chat
-- Lock a chat for writers, so that the parts of one reply get consecutive places among the messages to it.
SELECT pg_advisory_xact_lock(
  hashtextextended(current_schema() || ' outbox ' || CAST(:platform AS text) || ' ' || CAST(:chat AS text), 0));
