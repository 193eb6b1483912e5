-- What must be looked at after a wait, and so cannot be one plain statement.
--
-- A statement sees what was committed before it began. One that waits for a row sees that row anew afterwards, but
-- what it joins to it as it was before the wait. Each statement of a function begins for itself: it locks first,
-- and looks then.

-- Where the conversation of any session id stands, locked until the transaction ends, and the time it was then.
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

-- One message at the end of a log that others write to as well, in the plain case: the conversation is live, the uid is new, and the number it
-- gets is one of those the caller has made digests for (16 bytes each, from the number after `seen` on). In any
-- other case nothing is changed and no row is answered.
CREATE FUNCTION append_shared(asked_id text, strict boolean, fresh boolean, new_uid text, new_role text,
                              new_at double precision, new_body text, seen bigint, digests bytea)
RETURNS TABLE (seq bigint, session text, epoch bigint, key bigint, head bigint)
LANGUAGE plpgsql VOLATILE ROWS 1 AS $$
#variable_conflict use_column
DECLARE
  here record;
  step bigint;
BEGIN
  -- Which session an id names never changes, so one statement may both wait for the lock and look.
  SELECT c.key, c.head, c.live, c.epoch, c.last_seq,
         (SELECT s.ordinal FROM store.sessions s WHERE s.id = asked_id) AS ordinal INTO here
    FROM store.conversations c
   WHERE c.key = (SELECT s.conversation FROM store.sessions s WHERE s.id = asked_id) FOR NO KEY UPDATE;
  IF NOT FOUND OR here.live IS NULL OR (strict AND here.head <> here.ordinal) THEN RETURN; END IF;
  step := here.last_seq - seen;
  IF step < 0 OR step * 16 >= length(digests) THEN RETURN; END IF;
  IF NOT fresh AND EXISTS (SELECT 1 FROM store.messages m WHERE m.conversation = here.key AND m.uid = new_uid) THEN
    RETURN;
  END IF;
  INSERT INTO store.messages (conversation, seq, session, uid, role, at, body, digest)
  VALUES (here.key, here.last_seq + 1, here.head, new_uid, new_role, new_at, new_body,
          substring(digests FROM (step * 16 + 1)::int FOR 16));
  seq := here.last_seq + 1;
  session := asked_id;
  epoch := here.epoch;
  key := here.key;
  head := here.head;
  IF here.head <> here.ordinal THEN
    SELECT s.id INTO session FROM store.sessions s WHERE s.conversation = here.key AND s.ordinal = here.head;
  END IF;
  RETURN NEXT;
END $$;

-- A whole compaction commit, in the plain case: the conversation is as it was when the work began, the lease holds, and
-- the child's id is new. In any other case nothing is changed and no row is answered, or the tables refuse it. It
-- answers the new head as people may know it. `moment` is the time by the caller's clock; NULL: by the server's.
CREATE FUNCTION commit_plain(conversation_id text, seen_head text, seen_epoch bigint, child text, own_token bigint,
                             own_holder text, moment double precision, new_at double precision, cut bigint,
                             seen bigint, new_body text, new_digest bytea, new_model text,
                             keep_lease boolean DEFAULT false)
RETURNS TABLE (id text, conversation text, ordinal bigint, parent text, owner text, source text, model text, title text,
               started_at double precision, ended_at double precision, end_reason text, first_seq bigint,
               last_seq bigint, active_at double precision)
LANGUAGE plpgsql VOLATILE ROWS 1 AS $$
#variable_conflict use_column
DECLARE
  here store.conversations;
  top store.sessions;
BEGIN
  SELECT c.* INTO here FROM store.conversations c WHERE c.id = conversation_id FOR UPDATE;
  -- A branch may stand on a compaction of its origin, which is not looked for here.
  IF NOT FOUND OR here.live IS NULL OR here.epoch <> seen_epoch
     OR (here.compaction_epoch IS NULL AND here.origin IS NOT NULL) THEN
    RETURN;
  END IF;
  SELECT s.* INTO top FROM store.sessions s WHERE s.conversation = here.key AND s.ordinal = here.head;
  IF top.id <> seen_head OR (own_token IS NOT NULL AND NOT EXISTS (
       SELECT 1 FROM store.leases l
        WHERE l.conversation = here.key AND l.purpose = 'compact' AND l.token = own_token AND l.boot = 'unix'
          AND l.holder::json ->> 'name' = own_holder
          AND l.expires > coalesce(moment, extract(epoch FROM clock_timestamp())::double precision))) THEN
    RETURN;
  END IF;
  UPDATE store.sessions s
     SET live = NULL, ended_at = new_at, end_reason = 'compression', last_seq = here.last_seq
   WHERE s.conversation = here.key AND s.ordinal = here.head;
  INSERT INTO store.sessions (conversation, ordinal, id, parent, live, source, model, started_at, first_seq)
  VALUES (here.key, here.head + 1, child, here.head, 1, top.source, coalesce(new_model, top.model), new_at,
          here.last_seq + 1);
  INSERT INTO store.compactions (conversation, epoch, base_epoch, session, cut_seq, seen_seq, token, body, at, digest)
  VALUES (here.key, here.epoch + 1, here.compaction_epoch, here.head + 1, cut, seen, own_token, new_body, new_at,
          new_digest);
  UPDATE store.conversations c
     SET epoch = here.epoch + 1, head = here.head + 1, compaction_epoch = here.epoch + 1, redo_epoch = NULL
   WHERE c.key = here.key;
  IF NOT keep_lease THEN
    DELETE FROM store.leases l WHERE l.conversation = here.key AND l.purpose = 'compact' AND l.token = own_token;
  END IF;
  RETURN QUERY
  SELECT child, here.id, here.head + 1, top.id, here.owner, top.source, coalesce(new_model, top.model), here.title,
         new_at, NULL::double precision, NULL::text, here.last_seq + 1, here.last_seq,
         coalesce((SELECT m.at FROM store.messages m WHERE m.conversation = here.key AND m.seq = here.last_seq), new_at);
END $$;
