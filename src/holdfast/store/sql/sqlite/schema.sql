-- The store of Holdfast, in SQLite.
--
-- A conversation is one log of messages, numbered 1, 2, 3 … without a gap. It is cut into sessions,
-- numbered 1, 2, 3 … as well: a session's continuation is by definition the next number of the same
-- conversation, so a second continuation is a second row with the same primary key and cannot be written.
-- Exactly one session of an open conversation is live, and it is the head: `live` is 1 or NULL on both
-- tables, UNIQUE (conversation, live) allows one, and a foreign key from the conversation to
-- (conversation, ordinal, live) demands it. An ended conversation has live = NULL on both sides.
--
-- A compaction copies, moves and deletes nothing. It is a row that says "up to cut_seq, read this summary
-- instead", together with the end of one session and the birth of the next, in one transaction. The
-- context is computed from the log and the compaction that conversations.compaction_epoch names.
--
-- Whatever a process believes, the triggers below hold: ends are final, counters only grow, the log is
-- only appended to, and what changes the head or the view also raises the epoch, which every commit
-- compares. Foreign keys that leave `conversations` or point at it are deferred to the commit, since the
-- two sides change together; all others are immediate, because a deferred one makes SQLite search the
-- whole conversation at every compaction.
--
-- In this dialect a message's rowid is its conversation's key and its seq in one integer
-- (key * 2^32 + seq): the log of a conversation lies together in one b-tree and needs no second index.

CREATE TABLE meta (
  key   TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE conversations (
  key              INTEGER PRIMARY KEY AUTOINCREMENT CHECK (key BETWEEN 1 AND 2147483647),
  id               TEXT NOT NULL UNIQUE,
  owner            TEXT NOT NULL DEFAULT '',
  source           TEXT NOT NULL,
  title            TEXT CHECK (length(title) BETWEEN 1 AND 100),
  created_at       REAL NOT NULL,
  head             INTEGER NOT NULL,
  live             INTEGER CHECK (live = 1),
  epoch            INTEGER NOT NULL CHECK (epoch >= 1),
  last_seq         INTEGER NOT NULL CHECK (last_seq BETWEEN 0 AND 4294967295),
  fence            INTEGER NOT NULL DEFAULT 0 CHECK (fence >= 0),
  compaction_epoch INTEGER,
  redo_epoch       INTEGER,
  forked_from      TEXT,
  forked_at        INTEGER CHECK (forked_at >= 0),
  forked_epoch     INTEGER,
  origin           INTEGER REFERENCES conversations (key) DEFERRABLE INITIALLY DEFERRED,
  UNIQUE (owner, title),
  UNIQUE (key, live),
  FOREIGN KEY (key, head) REFERENCES sessions (conversation, ordinal) DEFERRABLE INITIALLY DEFERRED,
  FOREIGN KEY (key, head, live) REFERENCES sessions (conversation, ordinal, live) DEFERRABLE INITIALLY DEFERRED,
  FOREIGN KEY (key, compaction_epoch) REFERENCES compactions (conversation, epoch) DEFERRABLE INITIALLY DEFERRED,
  FOREIGN KEY (key, redo_epoch) REFERENCES compactions (conversation, epoch) DEFERRABLE INITIALLY DEFERRED,
  FOREIGN KEY (origin, forked_epoch) REFERENCES compactions (conversation, epoch) DEFERRABLE INITIALLY DEFERRED,
  CHECK (last_seq >= coalesce(forked_at, 0)),
  CHECK ((forked_from IS NULL) = (forked_at IS NULL)),
  CHECK ((origin IS NOT NULL) = (coalesce(forked_at, 0) > 0)),
  CHECK (forked_epoch IS NULL OR origin IS NOT NULL),
  CHECK (origin <> key),
  CHECK (compaction_epoch <= epoch AND redo_epoch <= epoch)
) STRICT;

CREATE INDEX conversations_by_origin ON conversations (origin) WHERE origin IS NOT NULL;

CREATE TABLE sessions (
  conversation INTEGER NOT NULL REFERENCES conversations (key) DEFERRABLE INITIALLY DEFERRED,
  ordinal      INTEGER NOT NULL CHECK (ordinal >= 1),
  id           TEXT NOT NULL UNIQUE,
  parent       INTEGER,
  live         INTEGER CHECK (live = 1),
  source       TEXT NOT NULL,
  model        TEXT,
  started_at   REAL NOT NULL,
  ended_at     REAL,
  end_reason   TEXT,
  first_seq    INTEGER NOT NULL CHECK (first_seq >= 1),
  last_seq     INTEGER,
  PRIMARY KEY (conversation, ordinal),
  UNIQUE (conversation, live),
  UNIQUE (conversation, ordinal, live),
  FOREIGN KEY (conversation, parent) REFERENCES sessions (conversation, ordinal),
  FOREIGN KEY (conversation, live) REFERENCES conversations (key, live) DEFERRABLE INITIALLY DEFERRED,
  CHECK ((ordinal = 1) = (parent IS NULL)),
  CHECK (parent = ordinal - 1),
  CHECK ((live IS NULL) = (ended_at IS NOT NULL)),
  CHECK ((ended_at IS NULL) = (end_reason IS NULL)),
  CHECK ((ended_at IS NULL) = (last_seq IS NULL)),
  CHECK (last_seq >= first_seq - 1)
) STRICT, WITHOUT ROWID;

CREATE TABLE messages (
  id           INTEGER PRIMARY KEY,
  conversation INTEGER NOT NULL GENERATED ALWAYS AS (id >> 32) VIRTUAL,
  seq          INTEGER NOT NULL GENERATED ALWAYS AS (id & 4294967295) VIRTUAL,
  session      INTEGER NOT NULL,
  uid          TEXT NOT NULL CHECK (uid <> ''),
  role         TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant', 'tool')),
  at           REAL NOT NULL,
  body         TEXT NOT NULL,
  digest       BLOB NOT NULL CHECK (length(digest) = 16),
  redacted_at  REAL,
  UNIQUE (conversation, uid),
  FOREIGN KEY (conversation, session) REFERENCES sessions (conversation, ordinal),
  CHECK ((redacted_at IS NULL) = (body <> ''))
) STRICT;

CREATE TABLE compactions (
  conversation INTEGER NOT NULL REFERENCES conversations (key) DEFERRABLE INITIALLY DEFERRED,
  epoch        INTEGER NOT NULL,
  base_epoch   INTEGER,
  session      INTEGER NOT NULL,
  cut_seq      INTEGER NOT NULL CHECK (cut_seq >= 0),
  seen_seq     INTEGER NOT NULL,
  token        INTEGER,
  body         TEXT NOT NULL,
  at           REAL NOT NULL,
  redacted_at  REAL,
  digest       BLOB CHECK (length(digest) = 16),
  PRIMARY KEY (conversation, epoch),
  UNIQUE (conversation, token),
  UNIQUE (conversation, session),
  FOREIGN KEY (conversation, session) REFERENCES sessions (conversation, ordinal),
  FOREIGN KEY (conversation, base_epoch) REFERENCES compactions (conversation, epoch),
  CHECK (base_epoch < epoch),
  CHECK (cut_seq <= seen_seq)
) STRICT;

CREATE TABLE hides (
  conversation INTEGER NOT NULL REFERENCES conversations (key) DEFERRABLE INITIALLY DEFERRED,
  epoch        INTEGER NOT NULL,
  from_seq     INTEGER NOT NULL CHECK (from_seq >= 1),
  to_seq       INTEGER NOT NULL,
  shown_epoch  INTEGER,
  PRIMARY KEY (conversation, epoch, from_seq),
  CHECK (from_seq <= to_seq),
  CHECK (shown_epoch > epoch)
) STRICT, WITHOUT ROWID;

CREATE TABLE leases (
  conversation INTEGER NOT NULL REFERENCES conversations (key) DEFERRABLE INITIALLY DEFERRED,
  purpose      TEXT NOT NULL CHECK (purpose IN ('compact', 'turn')),
  token        INTEGER NOT NULL CHECK (token >= 1),
  holder       TEXT NOT NULL,
  expires      REAL NOT NULL,
  boot         TEXT NOT NULL,
  snap_seq     INTEGER NOT NULL,
  PRIMARY KEY (conversation, purpose)
) STRICT, WITHOUT ROWID;

CREATE TABLE routes (
  key          TEXT NOT NULL PRIMARY KEY CHECK (key <> ''),
  conversation INTEGER REFERENCES conversations (key) DEFERRABLE INITIALLY DEFERRED,
  version      INTEGER NOT NULL CHECK (version >= 1),
  updated_at   REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX routes_by_conversation ON routes (conversation) WHERE conversation IS NOT NULL;

CREATE TABLE tombstones (
  id         TEXT NOT NULL PRIMARY KEY,
  deleted_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- What slow work has used up. It goes with its conversation whoever deletes that, a version that does not know
-- this table included.
CREATE TABLE budgets (
  conversation INTEGER NOT NULL PRIMARY KEY,
  version      INTEGER NOT NULL CHECK (version >= 1),
  uid          TEXT NOT NULL CHECK (uid <> ''),
  body         TEXT NOT NULL,
  FOREIGN KEY (conversation) REFERENCES conversations (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  CHECK (length(body) <= 65536),
  CHECK (json_valid(body) AND json_type(body, '$.spent') IS 'object')
) STRICT;

-- What is known of attachments; their content is in files beside the database, named by their digests.
CREATE TABLE blobs (
  digest     TEXT NOT NULL PRIMARY KEY CHECK (length(digest) = 64),
  size       INTEGER NOT NULL CHECK (size >= 0),
  media_type TEXT NOT NULL,
  at         REAL NOT NULL,
  dropped_at REAL
) STRICT, WITHOUT ROWID;

-- conversations ----------------------------------------------------------------------------------------

CREATE TRIGGER conversation_counters_only_grow
BEFORE UPDATE OF epoch, last_seq, fence ON conversations
WHEN NEW.epoch < OLD.epoch OR NEW.last_seq < OLD.last_seq OR NEW.fence < OLD.fence
BEGIN SELECT raise(ABORT, 'epoch, last_seq and fence never go back'); END;

CREATE TRIGGER conversation_counts_what_is_there
BEFORE UPDATE OF last_seq ON conversations
WHEN NEW.last_seq <> OLD.last_seq
 AND (NEW.last_seq <> OLD.last_seq + 1 OR NOT EXISTS (SELECT 1 FROM messages WHERE id = (NEW.key << 32) + NEW.last_seq))
BEGIN SELECT raise(ABORT, 'last_seq counts messages that exist'); END;

CREATE TRIGGER conversation_begins_at_its_fork_point
BEFORE INSERT ON conversations
WHEN NEW.last_seq <> coalesce(NEW.forked_at, 0)
BEGIN SELECT raise(ABORT, 'last_seq counts messages that exist'); END;

CREATE TRIGGER conversation_view_needs_epoch
BEFORE UPDATE OF head, live, compaction_epoch ON conversations
WHEN NEW.epoch <= OLD.epoch
 AND (NEW.head <> OLD.head OR NEW.live IS NOT OLD.live OR NEW.compaction_epoch IS NOT OLD.compaction_epoch)
BEGIN SELECT raise(ABORT, 'head, live and compaction_epoch change only with a new epoch'); END;

CREATE TRIGGER conversation_head_moves_by_one
BEFORE UPDATE OF head ON conversations
WHEN NEW.head <> OLD.head AND NEW.head <> OLD.head + 1
BEGIN SELECT raise(ABORT, 'the head moves to its own continuation only'); END;

CREATE TRIGGER conversation_identity_stays
BEFORE UPDATE OF key, id, owner, created_at, forked_from, forked_at, forked_epoch, origin ON conversations
WHEN NEW.key <> OLD.key OR NEW.id <> OLD.id OR NEW.owner <> OLD.owner OR NEW.created_at <> OLD.created_at
  OR NEW.forked_from IS NOT OLD.forked_from OR NEW.forked_at IS NOT OLD.forked_at
  OR NEW.forked_epoch IS NOT OLD.forked_epoch OR NEW.origin IS NOT OLD.origin
BEGIN SELECT raise(ABORT, 'identity and fork point of a conversation never change'); END;

CREATE TRIGGER conversation_fork_point_exists
BEFORE INSERT ON conversations
WHEN NEW.origin IS NOT NULL
 AND (NEW.forked_at > coalesce((SELECT last_seq FROM conversations WHERE key = NEW.origin), -1)
   OR NEW.forked_at < (SELECT seen_seq FROM compactions WHERE conversation = NEW.origin AND epoch = NEW.forked_epoch)
   OR NOT EXISTS (SELECT 1 FROM sessions WHERE conversation = NEW.origin AND id = NEW.forked_from))
BEGIN SELECT raise(ABORT, 'a branch begins within its origin, on a compaction that saw no more'); END;

CREATE TRIGGER conversation_leaves_tombstones
BEFORE DELETE ON conversations
WHEN OLD.last_seq > coalesce(OLD.forked_at, 0)
 AND EXISTS (SELECT 1 FROM sessions WHERE conversation = OLD.key AND id NOT IN (SELECT id FROM tombstones))
BEGIN SELECT raise(ABORT, 'a deletion leaves a tombstone for every session'); END;

-- sessions ---------------------------------------------------------------------------------------------

CREATE TRIGGER session_is_born_live
BEFORE INSERT ON sessions
WHEN NEW.live IS NULL
BEGIN SELECT raise(ABORT, 'a session is born live'); END;

CREATE TRIGGER session_follows_its_parent
BEFORE INSERT ON sessions
WHEN NEW.first_seq IS NOT CASE
       WHEN NEW.parent IS NULL
       THEN (SELECT coalesce(forked_at, 0) + 1 FROM conversations WHERE key = NEW.conversation)
       ELSE (SELECT last_seq + 1 FROM sessions WHERE conversation = NEW.conversation AND ordinal = NEW.parent)
     END
BEGIN SELECT raise(ABORT, 'a session begins where its ended parent stopped'); END;

CREATE TRIGGER session_id_was_never_deleted
BEFORE INSERT ON sessions
WHEN EXISTS (SELECT 1 FROM tombstones WHERE id = NEW.id)
BEGIN SELECT raise(ABORT, 'the id of a deleted session is never used again'); END;

CREATE TRIGGER session_end_is_final
BEFORE UPDATE ON sessions
WHEN OLD.live IS NULL
BEGIN SELECT raise(ABORT, 'an ended session is never changed'); END;

CREATE TRIGGER session_identity_stays
BEFORE UPDATE ON sessions
WHEN NEW.conversation <> OLD.conversation OR NEW.ordinal <> OLD.ordinal OR NEW.id <> OLD.id
  OR NEW.parent IS NOT OLD.parent OR NEW.first_seq <> OLD.first_seq OR NEW.started_at <> OLD.started_at
BEGIN SELECT raise(ABORT, 'identity of a session never changes'); END;

CREATE TRIGGER session_ends_at_the_tip
BEFORE UPDATE OF last_seq ON sessions
WHEN NEW.last_seq IS NOT NULL
 AND NEW.last_seq <> (SELECT last_seq FROM conversations WHERE key = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a session ends at the last message of its conversation'); END;

CREATE TRIGGER session_is_not_deleted
BEFORE DELETE ON sessions
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'no session is deleted while its conversation exists'); END;

-- messages ---------------------------------------------------------------------------------------------

CREATE TRIGGER message_joins_a_live_session
BEFORE INSERT ON messages
WHEN NOT EXISTS (SELECT 1 FROM sessions WHERE conversation = NEW.id >> 32 AND ordinal = NEW.session AND live = 1)
BEGIN SELECT raise(ABORT, 'a message joins a live session'); END;

CREATE TRIGGER message_is_the_next
BEFORE INSERT ON messages
WHEN NEW.id IS NOT (SELECT (key << 32) + last_seq + 1 FROM conversations WHERE key = NEW.id >> 32)
BEGIN SELECT raise(ABORT, 'messages are numbered without a gap'); END;

CREATE TRIGGER message_is_counted
AFTER INSERT ON messages
BEGIN UPDATE conversations SET last_seq = last_seq + 1 WHERE key = NEW.id >> 32; END;

CREATE TRIGGER message_is_only_redacted
BEFORE UPDATE ON messages
WHEN NEW.id <> OLD.id OR NEW.session <> OLD.session OR NEW.uid <> OLD.uid OR NEW.role <> OLD.role
  OR NEW.at <> OLD.at OR OLD.redacted_at IS NOT NULL OR NEW.redacted_at IS NULL
BEGIN SELECT raise(ABORT, 'a message is never changed but by redaction'); END;

CREATE TRIGGER message_is_not_deleted
BEFORE DELETE ON messages
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.id >> 32)
BEGIN SELECT raise(ABORT, 'no message is deleted while its conversation exists'); END;

-- compactions ------------------------------------------------------------------------------------------

CREATE TRIGGER compaction_stands_on_the_current_one
BEFORE INSERT ON compactions
WHEN NOT EXISTS (
       SELECT 1 FROM conversations c
        WHERE c.key = NEW.conversation AND NEW.epoch = c.epoch + 1 AND NEW.base_epoch IS c.compaction_epoch
          AND NEW.session = c.head + 1 AND NEW.seen_seq <= c.last_seq AND coalesce(NEW.token, 0) <= c.fence)
BEGIN SELECT raise(ABORT, 'a compaction stands on the current one, at the next epoch, within the log'); END;

CREATE TRIGGER compaction_cut_only_grows
BEFORE INSERT ON compactions
WHEN NEW.cut_seq < (SELECT cut_seq FROM compactions WHERE conversation = NEW.conversation AND epoch = NEW.base_epoch)
BEGIN SELECT raise(ABORT, 'a cut never lies before the cut it stands on'); END;

CREATE TRIGGER compaction_token_only_grows
BEFORE INSERT ON compactions
WHEN NEW.token <= (SELECT max(token) FROM compactions WHERE conversation = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a compaction never bears an older token than one before it'); END;

CREATE TRIGGER compaction_is_only_redacted
BEFORE UPDATE ON compactions
WHEN NEW.conversation <> OLD.conversation OR NEW.epoch <> OLD.epoch OR NEW.base_epoch IS NOT OLD.base_epoch
  OR NEW.session <> OLD.session OR NEW.cut_seq <> OLD.cut_seq OR NEW.seen_seq <> OLD.seen_seq
  OR NEW.token IS NOT OLD.token OR NEW.at <> OLD.at OR NEW.redacted_at IS NULL
  OR json_type(NEW.body, '$.summary') IS NOT NULL OR json_type(NEW.body, '$.ledger') IS NOT NULL
  OR json_extract(NEW.body, '$.pinned') IS NOT json_extract(OLD.body, '$.pinned')
BEGIN SELECT raise(ABORT, 'a compaction is never changed but by redaction'); END;

CREATE TRIGGER compaction_is_not_deleted
BEFORE DELETE ON compactions
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'no compaction is deleted while its conversation exists'); END;

-- hides ------------------------------------------------------------------------------------------------

CREATE TRIGGER hide_lies_within_the_log
BEFORE INSERT ON hides
WHEN NOT EXISTS (
       SELECT 1 FROM conversations
        WHERE key = NEW.conversation AND NEW.to_seq <= last_seq AND NEW.epoch = epoch)
  OR NEW.shown_epoch IS NOT NULL
BEGIN SELECT raise(ABORT, 'a hide lies within the log'); END;

CREATE TRIGGER hide_is_only_shown
BEFORE UPDATE ON hides
WHEN NEW.conversation <> OLD.conversation OR NEW.epoch <> OLD.epoch OR NEW.from_seq <> OLD.from_seq
  OR NEW.to_seq <> OLD.to_seq OR OLD.shown_epoch IS NOT NULL
  OR NEW.shown_epoch IS NOT (SELECT epoch FROM conversations WHERE key = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a hide is never changed but by being shown once'); END;

CREATE TRIGGER hide_is_not_deleted
BEFORE DELETE ON hides
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'no hide is deleted while its conversation exists'); END;

-- leases -----------------------------------------------------------------------------------------------

CREATE TRIGGER lease_token_is_the_newest
BEFORE INSERT ON leases
WHEN NEW.token IS NOT (SELECT fence FROM conversations WHERE key = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a lease is given the newest token'); END;

CREATE TRIGGER lease_token_never_goes_back
BEFORE UPDATE ON leases
WHEN NEW.conversation <> OLD.conversation OR NEW.purpose <> OLD.purpose
  OR (NEW.token <> OLD.token AND NEW.token IS NOT (SELECT fence FROM conversations WHERE key = NEW.conversation))
  OR (NEW.token = OLD.token AND (NEW.holder <> OLD.holder OR NEW.snap_seq <> OLD.snap_seq))
BEGIN SELECT raise(ABORT, 'a lease changes hands only with the newest token'); END;

-- routes -----------------------------------------------------------------------------------------------

CREATE TRIGGER route_version_only_grows
BEFORE UPDATE ON routes
WHEN NEW.key <> OLD.key OR NEW.version <= OLD.version
BEGIN SELECT raise(ABORT, 'a route changes only with a new version'); END;

CREATE TRIGGER route_is_not_deleted
BEFORE DELETE ON routes
BEGIN SELECT raise(ABORT, 'a route is unbound, never deleted'); END;

-- budgets ----------------------------------------------------------------------------------------------

CREATE TRIGGER budget_begins_at_one
BEFORE INSERT ON budgets
WHEN NEW.version <> 1
BEGIN SELECT raise(ABORT, 'the first version of a budget is 1'); END;

CREATE TRIGGER budget_version_only_grows
BEFORE UPDATE ON budgets
WHEN NEW.conversation <> OLD.conversation OR NEW.version <= OLD.version
BEGIN SELECT raise(ABORT, 'a budget changes only with a new version'); END;

CREATE TRIGGER budget_is_not_deleted
BEFORE DELETE ON budgets
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'no budget is deleted while its conversation exists'); END;

-- tombstones -------------------------------------------------------------------------------------------

CREATE TRIGGER tombstone_stays
BEFORE UPDATE ON tombstones
BEGIN SELECT raise(ABORT, 'a tombstone stays'); END;

CREATE TRIGGER tombstone_is_not_deleted
BEFORE DELETE ON tombstones
BEGIN SELECT raise(ABORT, 'a tombstone stays'); END;
