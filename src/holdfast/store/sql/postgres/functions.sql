-- Functions that lock a row and then read others.
--
-- A statement sees the rows that were committed before it began. If it waits for a lock, it sees the new version of the
-- locked row, but the old version of all other rows. In a function each statement has a snapshot of its own, so that the
-- first can wait for the lock and the second reads the current rows.

-- Lock the conversation of a session id until the transaction ends; return it with the server's time.
CREATE FUNCTION lock_conversation(asked_id text)
RETURNS TABLE (key bigint, id text, owner text, source text, title text, head bigint, head_id text, live bigint,
               epoch bigint, last_seq bigint, compaction_epoch bigint, redo_epoch bigint, forked_at bigint,
               origin bigint, forked_epoch bigint, asked bigint, now double precision)
LANGUAGE plpgsql VOLATILE ROWS 1 AS $$
#variable_conflict use_column
DECLARE
  place record;
BEGIN
  SELECT s.conversation, s.ordinal INTO place FROM store.sessions s WHERE s.id = asked_id;
  IF NOT FOUND THEN RETURN; END IF;
  PERFORM 1 FROM store.conversations c WHERE c.key = place.conversation FOR UPDATE;
  RETURN QUERY
  SELECT c.key, c.id, c.owner, c.source, c.title, c.head, h.id, c.live, c.epoch, c.last_seq,
         c.compaction_epoch, c.redo_epoch, coalesce(c.forked_at, 0), c.origin, c.forked_epoch, place.ordinal,
         extract(epoch FROM clock_timestamp())::double precision
    FROM store.conversations c JOIN store.sessions h ON h.conversation = c.key AND h.ordinal = c.head
   WHERE c.key = place.conversation;
END $$;

-- Append a message in one statement, if the conversation is live, the uid is not stored (only checked if
-- `may_be_stored`), the lease (if one is given) is held, and the next seq is one that the caller has predicted.
-- Otherwise nothing is changed and no row is returned. `digests` has 16 bytes for each predicted seq, from the one after
-- `seen` on. `moment` is the caller's time; NULL: the server's. `unsynced`: the caller waits for the disk afterwards.
CREATE FUNCTION append_message(asked_id text, conversation_id text, expect_head boolean, may_be_stored boolean,
                               seen bigint, new_uid text, new_role text, new_at double precision, new_body text, digests bytea,
                               lease_purpose text, lease_token bigint, lease_holder text, moment double precision,
                               unsynced boolean, OUT seq bigint, OUT session text, OUT epoch bigint)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  here record;
  ahead int;
BEGIN
  IF unsynced THEN PERFORM set_config('synchronous_commit', 'off', true); END IF;
  -- The session of an id never changes, so this statement may read it before it waits for the lock.
  SELECT c.key, c.head, c.live, c.epoch, c.last_seq,
         (SELECT s.ordinal FROM store.sessions s WHERE s.id = asked_id AND s.conversation = c.key) AS ordinal INTO here
    FROM store.conversations c WHERE c.id = conversation_id FOR NO KEY UPDATE;
  IF here.ordinal IS NULL OR here.live IS NULL OR (expect_head AND here.head <> here.ordinal) THEN RETURN; END IF;
  ahead := here.last_seq - seen;
  IF ahead < 0 OR ahead * 16 >= length(digests) THEN RETURN; END IF;
  -- Nested: PL/pgSQL executes a subquery in a condition even if the part before it is false.
  IF lease_token IS NOT NULL THEN
    IF NOT EXISTS (
      SELECT 1 FROM store.leases l
       WHERE l.conversation = here.key AND l.purpose = lease_purpose AND l.token = lease_token AND l.boot = 'unix'
         AND l.holder::json ->> 'name' = lease_holder
         AND l.expires > coalesce(moment, extract(epoch FROM clock_timestamp())::double precision)) THEN
      RETURN;
    END IF;
  END IF;
  IF may_be_stored THEN
    IF EXISTS (SELECT 1 FROM store.messages m WHERE m.conversation = here.key AND m.uid = new_uid) THEN RETURN; END IF;
  END IF;
  INSERT INTO store.messages (conversation, seq, session, uid, role, at, body, digest)
  VALUES (here.key, here.last_seq + 1, here.head, new_uid, new_role, new_at, new_body,
          substring(digests FROM ahead * 16 + 1 FOR 16));
  seq := here.last_seq + 1;
  session := asked_id;
  epoch := here.epoch;
  IF here.head <> here.ordinal THEN
    SELECT s.id INTO session FROM store.sessions s WHERE s.conversation = here.key AND s.ordinal = here.head;
  END IF;
END $$;
