-- The SQLite schema of a store.
--
-- A conversation is one log of messages, numbered 1, 2, 3 … without gaps. It is divided into sessions, numbered in the
-- same way: the continuation of a session is the next number, so a second continuation would be a second row with the
-- same primary key. Exactly one session of an open conversation is live, the head: `live` is 1 or NULL in both tables,
-- UNIQUE (conversation, live) allows one live session, and a foreign key from the conversation to
-- (conversation, ordinal, live) requires it. An ended conversation has live = NULL in both tables.
--
-- A compaction copies, moves and deletes nothing. It is a row that replaces the messages up to cut_seq by a summary,
-- written in one transaction with the end of one session and the start of the next. The context is computed from the
-- log and from the compaction that conversations.compaction_epoch names.
--
-- The triggers hold for every process: ends are final, counters only grow, the log is append-only, and a change
-- of the head or of the view raises the epoch, which every commit compares. Foreign keys from and to `conversations`
-- are deferred to the commit, since both sides change together. All others are immediate: a deferred one makes SQLite
-- search the whole conversation at every compaction.
--
-- The rowid of a message is its conversation's key and its seq in one integer (key * 2^32 + seq), so the log of a
-- conversation is contiguous in one b-tree and needs no second index.

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
  -- The ten minutes of the last message: a list of recent conversations stops early, and few appends change it.
  active_slot      INTEGER,
  -- The working directory, if known; lists can be filtered by it.
  folder           TEXT CHECK (length(folder) BETWEEN 1 AND 4096),
  -- A JSON object of the embedding program.
  metadata         TEXT CHECK (length(metadata) BETWEEN 2 AND 4096 AND substr(metadata, 1, 1) = '{'),
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
CREATE INDEX conversations_by_activity ON conversations (active_slot);
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
CREATE INDEX messages_redacted ON messages (redacted_at) WHERE redacted_at IS NOT NULL;

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
  acquired_at  REAL,
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

-- Spent compaction budgets. Deleted with the conversation, even by a version that does not know this table.
CREATE TABLE budgets (
  conversation INTEGER NOT NULL PRIMARY KEY,
  version      INTEGER NOT NULL CHECK (version >= 1),
  uid          TEXT NOT NULL CHECK (uid <> ''),
  body         TEXT NOT NULL,
  FOREIGN KEY (conversation) REFERENCES conversations (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  CHECK (length(body) <= 65536),
  CHECK (json_valid(body) AND json_type(body, '$.spent') IS 'object')
) STRICT;

-- Tables of agents. Their rows are deleted with the conversation, except memories, which belong to an owner.
CREATE TABLE memories (
  id         INTEGER PRIMARY KEY AUTOINCREMENT,
  owner      TEXT NOT NULL,
  text       TEXT NOT NULL CHECK (length(text) BETWEEN 1 AND 500),
  at         REAL NOT NULL,
  updated_at REAL NOT NULL,
  source     INTEGER,
  UNIQUE (owner, text),
  FOREIGN KEY (source) REFERENCES conversations (key) ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED
) STRICT;
CREATE INDEX memories_by_source ON memories (source) WHERE source IS NOT NULL;

-- Messages for a conversation that are processed once. `key` is the sender's idempotency key, `settled_by` the uid of
-- the call that settled it.
CREATE TABLE inbox (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation INTEGER NOT NULL,
  key          TEXT NOT NULL UNIQUE CHECK (key <> ''),
  kind         TEXT NOT NULL CHECK (kind <> ''),
  text         TEXT NOT NULL,
  at           REAL NOT NULL,
  outcome      TEXT CHECK (outcome <> ''),
  seq          INTEGER,
  settled_at   REAL,
  settled_by   TEXT,
  redacted_at  REAL,
  FOREIGN KEY (conversation) REFERENCES conversations (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  CHECK ((outcome IS NULL) = (settled_at IS NULL)),
  CHECK ((outcome IS NULL) = (settled_by IS NULL)),
  CHECK (seq IS NULL OR outcome IS NOT NULL),
  CHECK (redacted_at IS NULL OR outcome IS NOT NULL),
  CHECK ((redacted_at IS NULL) = (text <> ''))
) STRICT;
CREATE INDEX inbox_by_conversation ON inbox (conversation, id);
CREATE INDEX inbox_waiting ON inbox (conversation, id) WHERE outcome IS NULL;

-- Background processes of agents. The end of one is written with its notice in the inbox.
CREATE TABLE processes (
  id           TEXT NOT NULL PRIMARY KEY CHECK (id <> ''),
  conversation INTEGER NOT NULL,
  command      TEXT NOT NULL,
  folder       TEXT NOT NULL,
  place        TEXT NOT NULL CHECK (json_valid(place)),
  started_at   REAL NOT NULL,
  state        TEXT NOT NULL CHECK (state IN ('running', 'exited', 'killed', 'gone')),
  ended_at     REAL,
  ended_by     TEXT,
  exit_code    INTEGER,
  FOREIGN KEY (conversation) REFERENCES conversations (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  CHECK ((state = 'running') = (ended_at IS NULL)),
  CHECK ((state = 'running') = (ended_by IS NULL)),
  CHECK (exit_code IS NULL OR state <> 'running')
) STRICT;
CREATE INDEX processes_by_conversation ON processes (conversation);
CREATE INDEX processes_running ON processes (started_at) WHERE state = 'running';

-- Permanent permissions, for one conversation or (NULL) for all conversations of the owner.
CREATE TABLE grants (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  owner        TEXT NOT NULL,
  rule         TEXT NOT NULL CHECK (rule <> ''),
  conversation INTEGER,
  given_at     REAL NOT NULL,
  given_by     TEXT NOT NULL,
  FOREIGN KEY (conversation) REFERENCES conversations (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
) STRICT;
CREATE UNIQUE INDEX grants_once ON grants (owner, rule, coalesce(conversation, 0));
CREATE INDEX grants_by_conversation ON grants (conversation) WHERE conversation IS NOT NULL;

-- Tool calls, allowed or denied. A row without an end is running, or its process died.
CREATE TABLE audit (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  conversation INTEGER NOT NULL,
  uid          TEXT NOT NULL UNIQUE CHECK (uid <> ''),
  call_id      TEXT NOT NULL,
  tool         TEXT NOT NULL,
  summary      TEXT NOT NULL,
  allowed      INTEGER NOT NULL CHECK (allowed IN (0, 1)),
  decided_by   TEXT NOT NULL,
  at           REAL NOT NULL,
  ended_at     REAL,
  ok           INTEGER CHECK (ok IN (0, 1)),
  redacted_at  REAL,
  FOREIGN KEY (conversation) REFERENCES conversations (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  CHECK ((ended_at IS NULL) = (ok IS NULL)),
  CHECK (allowed = 1 OR ended_at IS NULL),
  CHECK (redacted_at IS NULL OR summary = '')
) STRICT;
CREATE INDEX audit_by_call ON audit (conversation, call_id);

-- Inbound messages, by route. The conversation is set when a message is processed, as the route may be rebound before.
-- `platform` and `key` identify a message across repeated deliveries; replies go to `home`, `chat` and `address`.
-- `target` is the session of its turn, set before the turn begins. `received_by` and `settled_by` are the uids of the
-- calls that stored and settled it.
CREATE TABLE arrivals (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  platform     TEXT NOT NULL CHECK (platform <> ''),
  key          TEXT NOT NULL CHECK (key <> ''),
  route        TEXT NOT NULL CHECK (route <> ''),
  home         TEXT NOT NULL CHECK (home <> ''),
  chat         TEXT NOT NULL CHECK (chat <> ''),
  sender       TEXT NOT NULL CHECK (sender <> ''),
  address      TEXT NOT NULL,
  body         TEXT NOT NULL,
  at           REAL NOT NULL,
  received_by  TEXT,
  attempts     INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  target       TEXT CHECK (target <> ''),
  joined       INTEGER REFERENCES arrivals (id),
  outcome      TEXT CHECK (outcome <> ''),
  conversation INTEGER,
  seq          INTEGER,
  settled_at   REAL,
  settled_by   TEXT,
  redacted_at  REAL,
  UNIQUE (platform, key),
  FOREIGN KEY (conversation) REFERENCES conversations (key) DEFERRABLE INITIALLY DEFERRED,
  CHECK (joined < id),
  CHECK ((outcome IS NULL) = (settled_at IS NULL)),
  CHECK ((outcome IS NULL) = (settled_by IS NULL)),
  CHECK (conversation IS NULL OR outcome IS NOT NULL),
  CHECK (seq IS NULL OR conversation IS NOT NULL),
  CHECK (redacted_at IS NULL OR outcome IS NOT NULL),
  CHECK ((redacted_at IS NULL) = (body <> '')),
  CHECK (address <> '' OR (redacted_at IS NOT NULL AND conversation IS NULL))
) STRICT;
CREATE INDEX arrivals_open ON arrivals (route, id) WHERE outcome IS NULL;
CREATE INDEX arrivals_by_route ON arrivals (route, at);
CREATE INDEX arrivals_by_sender ON arrivals (platform, sender, at);
CREATE INDEX arrivals_by_conversation ON arrivals (conversation, id) WHERE conversation IS NOT NULL;
CREATE INDEX arrivals_by_joined ON arrivals (joined) WHERE joined IS NOT NULL;

-- Leases of routes and chats. A free one has no holder and keeps its token, which never decreases.
CREATE TABLE claims (
  key     TEXT NOT NULL PRIMARY KEY CHECK (key <> ''),
  token   INTEGER NOT NULL CHECK (token >= 1),
  holder  TEXT CHECK (holder <> ''),
  expires REAL NOT NULL,
  boot    TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Outbound messages. The parts of a reply are written with the outcome of the arrival or inbox notice they answer, and
-- have its time. A message that answers nothing has a key instead of a part. `attempted_by` is the uid of the call that
-- last began to send it.
CREATE TABLE outbox (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  arrival      INTEGER REFERENCES arrivals (id),
  inbound      INTEGER,
  part         INTEGER CHECK (part >= 0),
  key          TEXT CHECK (key <> ''),
  conversation INTEGER,
  seq          INTEGER,
  platform     TEXT NOT NULL CHECK (platform <> ''),
  chat         TEXT NOT NULL CHECK (chat <> ''),
  address      TEXT NOT NULL CHECK (address <> ''),
  kind         TEXT NOT NULL CHECK (kind IN ('reply', 'notice', 'question')),
  body         TEXT NOT NULL,
  at           REAL NOT NULL,
  attempts     INTEGER NOT NULL DEFAULT 0 CHECK (attempts >= 0),
  attempted_by TEXT,
  due_at       REAL NOT NULL,
  delivered_at REAL,
  external     TEXT,
  failed_at    REAL,
  error        TEXT,
  redacted_at  REAL,
  FOREIGN KEY (inbound) REFERENCES inbox (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  FOREIGN KEY (conversation) REFERENCES conversations (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
  CHECK ((part IS NULL) = (key IS NOT NULL)),
  CHECK (arrival IS NULL OR inbound IS NULL),
  CHECK (part IS NULL OR arrival IS NOT NULL OR inbound IS NOT NULL),
  CHECK (delivered_at IS NULL OR failed_at IS NULL),
  CHECK (external IS NULL OR delivered_at IS NOT NULL),
  CHECK (failed_at IS NULL OR error IS NOT NULL),
  CHECK (redacted_at IS NULL OR delivered_at IS NOT NULL OR failed_at IS NOT NULL),
  CHECK ((redacted_at IS NULL) = (body <> ''))
) STRICT;
CREATE UNIQUE INDEX outbox_by_arrival ON outbox (arrival, part) WHERE arrival IS NOT NULL;
CREATE UNIQUE INDEX outbox_by_inbound ON outbox (inbound, part) WHERE inbound IS NOT NULL;
CREATE UNIQUE INDEX outbox_by_key ON outbox (key) WHERE key IS NOT NULL;
CREATE INDEX outbox_open ON outbox (platform, chat, id) WHERE delivered_at IS NULL AND failed_at IS NULL;
CREATE INDEX outbox_failed ON outbox (failed_at) WHERE failed_at IS NOT NULL;
CREATE INDEX outbox_by_conversation ON outbox (conversation) WHERE conversation IS NOT NULL;

-- Access of senders.
CREATE TABLE people (
  platform TEXT NOT NULL CHECK (platform <> ''),
  sender   TEXT NOT NULL CHECK (sender <> ''),
  role     TEXT NOT NULL CHECK (role IN ('user', 'admin', 'denied')),
  name     TEXT NOT NULL,
  at       REAL NOT NULL,
  given_by TEXT NOT NULL,
  PRIMARY KEY (platform, sender)
) STRICT, WITHOUT ROWID;

-- Unknown senders: when they were refused, and the digest of their pairing code.
CREATE TABLE strangers (
  platform   TEXT NOT NULL CHECK (platform <> ''),
  sender     TEXT NOT NULL CHECK (sender <> ''),
  name       TEXT NOT NULL DEFAULT '',
  told_at    REAL,
  asked_at   REAL,
  digest     BLOB CHECK (length(digest) = 32),
  salt       BLOB CHECK (length(salt) = 16),
  expires_at REAL,
  PRIMARY KEY (platform, sender),
  CHECK ((digest IS NULL) = (salt IS NULL)),
  CHECK ((digest IS NULL) = (expires_at IS NULL)),
  CHECK (digest IS NULL OR asked_at IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- Consecutive wrong pairing codes.
CREATE TABLE lockouts (
  platform  TEXT NOT NULL PRIMARY KEY CHECK (platform <> ''),
  failures  INTEGER NOT NULL CHECK (failures >= 0),
  failed_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Senders who use the conversations of another owner: of a sender on another platform, or of the terminal ('').
CREATE TABLE links (
  platform TEXT NOT NULL CHECK (platform <> ''),
  sender   TEXT NOT NULL CHECK (sender <> ''),
  owner    TEXT NOT NULL,
  at       REAL NOT NULL,
  PRIMARY KEY (platform, sender)
) STRICT, WITHOUT ROWID;
CREATE INDEX links_by_owner ON links (owner);

-- The digest of the code that links another sender to an owner, and the session to continue there.
CREATE TABLE link_codes (
  owner      TEXT NOT NULL PRIMARY KEY,
  session    TEXT NOT NULL CHECK (session <> ''),
  digest     BLOB NOT NULL CHECK (length(digest) = 32),
  salt       BLOB NOT NULL CHECK (length(salt) = 16),
  expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

-- Messages that stay verbatim in the context. A branch copies those within its part of the log.
CREATE TABLE pins (
  conversation INTEGER NOT NULL,
  seq          INTEGER NOT NULL CHECK (seq >= 1),
  at           REAL NOT NULL,
  PRIMARY KEY (conversation, seq),
  FOREIGN KEY (conversation) REFERENCES conversations (key) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID;

-- Attachments; their content is in files named by digest.
CREATE TABLE blobs (
  digest     TEXT NOT NULL PRIMARY KEY CHECK (length(digest) = 64),
  size       INTEGER NOT NULL CHECK (size >= 0),
  media_type TEXT NOT NULL,
  at         REAL NOT NULL,
  dropped_at REAL
) STRICT, WITHOUT ROWID;

-- conversations ----------------------------------------------------------------------------------------

CREATE TRIGGER conversation_counters_only_grow BEFORE UPDATE OF epoch, last_seq, fence ON conversations
WHEN NEW.epoch < OLD.epoch OR NEW.last_seq < OLD.last_seq OR NEW.fence < OLD.fence
BEGIN SELECT raise(ABORT, 'epoch, last_seq and fence never decrease'); END;

CREATE TRIGGER conversation_last_seq_exists BEFORE UPDATE OF last_seq ON conversations
WHEN NEW.last_seq <> OLD.last_seq
 AND (NEW.last_seq <> OLD.last_seq + 1 OR NOT EXISTS (SELECT 1 FROM messages WHERE id = (NEW.key << 32) + NEW.last_seq))
BEGIN SELECT raise(ABORT, 'last_seq must be the number of the last message'); END;

CREATE TRIGGER conversation_begins_at_its_fork_point BEFORE INSERT ON conversations
WHEN NEW.last_seq <> coalesce(NEW.forked_at, 0)
BEGIN SELECT raise(ABORT, 'last_seq must be the number of the last message'); END;

CREATE TRIGGER conversation_view_needs_epoch BEFORE UPDATE OF head, live, compaction_epoch ON conversations
WHEN NEW.epoch <= OLD.epoch
 AND (NEW.head <> OLD.head OR NEW.live IS NOT OLD.live OR NEW.compaction_epoch IS NOT OLD.compaction_epoch)
BEGIN SELECT raise(ABORT, 'head, live and compaction_epoch change only with a new epoch'); END;

CREATE TRIGGER conversation_head_moves_by_one BEFORE UPDATE OF head ON conversations
WHEN NEW.head <> OLD.head AND NEW.head <> OLD.head + 1
BEGIN SELECT raise(ABORT, 'the head must move to the next session'); END;

CREATE TRIGGER conversation_identity_is_immutable
BEFORE UPDATE OF key, id, owner, created_at, forked_from, forked_at, forked_epoch, origin ON conversations
WHEN NEW.key <> OLD.key OR NEW.id <> OLD.id OR NEW.owner <> OLD.owner OR NEW.created_at <> OLD.created_at
  OR NEW.forked_from IS NOT OLD.forked_from OR NEW.forked_at IS NOT OLD.forked_at
  OR NEW.forked_epoch IS NOT OLD.forked_epoch OR NEW.origin IS NOT OLD.origin
BEGIN SELECT raise(ABORT, 'the identity and fork point of a conversation are immutable'); END;

CREATE TRIGGER conversation_fork_point_exists BEFORE INSERT ON conversations
WHEN NEW.origin IS NOT NULL
 AND (NEW.forked_at > coalesce((SELECT last_seq FROM conversations WHERE key = NEW.origin), -1)
   OR NEW.forked_at < (SELECT seen_seq FROM compactions WHERE conversation = NEW.origin AND epoch = NEW.forked_epoch)
   OR NOT EXISTS (SELECT 1 FROM sessions WHERE conversation = NEW.origin AND id = NEW.forked_from))
BEGIN SELECT raise(ABORT, 'the fork point and compaction of a branch must exist in its origin'); END;

CREATE TRIGGER conversation_leaves_tombstones BEFORE DELETE ON conversations
WHEN OLD.last_seq > coalesce(OLD.forked_at, 0)
 AND EXISTS (SELECT 1 FROM sessions WHERE conversation = OLD.key AND id NOT IN (SELECT id FROM tombstones))
BEGIN SELECT raise(ABORT, 'a conversation is deleted only with a tombstone for every session'); END;

-- sessions ---------------------------------------------------------------------------------------------

CREATE TRIGGER session_begins_live BEFORE INSERT ON sessions
WHEN NEW.live IS NULL
BEGIN SELECT raise(ABORT, 'a new session must be live'); END;

CREATE TRIGGER session_follows_its_parent BEFORE INSERT ON sessions
WHEN NEW.first_seq IS NOT CASE
       WHEN NEW.parent IS NULL
       THEN (SELECT coalesce(forked_at, 0) + 1 FROM conversations WHERE key = NEW.conversation)
       ELSE (SELECT last_seq + 1 FROM sessions WHERE conversation = NEW.conversation AND ordinal = NEW.parent)
     END
BEGIN SELECT raise(ABORT, 'a session must begin after the last message of its ended parent'); END;

CREATE TRIGGER session_id_was_never_deleted BEFORE INSERT ON sessions
WHEN EXISTS (SELECT 1 FROM tombstones WHERE id = NEW.id)
BEGIN SELECT raise(ABORT, 'the id of a deleted session cannot be reused'); END;

CREATE TRIGGER session_end_is_final BEFORE UPDATE ON sessions
WHEN OLD.live IS NULL
BEGIN SELECT raise(ABORT, 'an ended session is immutable'); END;

CREATE TRIGGER session_identity_is_immutable BEFORE UPDATE ON sessions
WHEN NEW.conversation <> OLD.conversation OR NEW.ordinal <> OLD.ordinal OR NEW.id <> OLD.id
  OR NEW.parent IS NOT OLD.parent OR NEW.first_seq <> OLD.first_seq OR NEW.started_at <> OLD.started_at
BEGIN SELECT raise(ABORT, 'the identity of a session is immutable'); END;

CREATE TRIGGER session_ends_at_the_last_message BEFORE UPDATE OF last_seq ON sessions
WHEN NEW.last_seq IS NOT NULL
 AND NEW.last_seq <> (SELECT last_seq FROM conversations WHERE key = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a session must end at the last message of its conversation'); END;

CREATE TRIGGER session_is_not_deleted BEFORE DELETE ON sessions
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'a session is deleted only with its conversation'); END;

-- messages ---------------------------------------------------------------------------------------------

CREATE TRIGGER message_joins_a_live_session BEFORE INSERT ON messages
WHEN NOT EXISTS (SELECT 1 FROM sessions WHERE conversation = NEW.id >> 32 AND ordinal = NEW.session AND live = 1)
BEGIN SELECT raise(ABORT, 'a message must belong to a live session'); END;

CREATE TRIGGER message_is_the_next BEFORE INSERT ON messages
WHEN NEW.id IS NOT (SELECT (key << 32) + last_seq + 1 FROM conversations WHERE key = NEW.id >> 32)
BEGIN SELECT raise(ABORT, 'messages must be numbered without gaps'); END;

CREATE TRIGGER message_is_counted AFTER INSERT ON messages
BEGIN
  UPDATE conversations SET last_seq = last_seq + 1 WHERE key = NEW.id >> 32;
  UPDATE conversations SET active_slot = CAST(NEW.at / 600 AS INTEGER)
   WHERE key = NEW.id >> 32 AND active_slot IS NOT CAST(NEW.at / 600 AS INTEGER);
END;

CREATE TRIGGER message_is_only_redacted BEFORE UPDATE ON messages
WHEN NEW.id <> OLD.id OR NEW.session <> OLD.session OR NEW.uid <> OLD.uid OR NEW.role <> OLD.role
  OR NEW.at <> OLD.at OR OLD.redacted_at IS NOT NULL OR NEW.redacted_at IS NULL
BEGIN SELECT raise(ABORT, 'a message is immutable except for redaction'); END;

CREATE TRIGGER message_is_not_deleted BEFORE DELETE ON messages
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.id >> 32)
BEGIN SELECT raise(ABORT, 'a message is deleted only with its conversation'); END;

-- compactions ------------------------------------------------------------------------------------------

CREATE TRIGGER compaction_follows_the_current_one BEFORE INSERT ON compactions
WHEN NOT EXISTS (
       SELECT 1 FROM conversations c
        WHERE c.key = NEW.conversation AND NEW.epoch = c.epoch + 1 AND NEW.base_epoch IS c.compaction_epoch
          AND NEW.session = c.head + 1 AND NEW.seen_seq <= c.last_seq AND coalesce(NEW.token, 0) <= c.fence)
BEGIN SELECT raise(ABORT, 'a compaction must follow the current one, at the next epoch, within the log'); END;

CREATE TRIGGER compaction_cut_only_grows BEFORE INSERT ON compactions
WHEN NEW.cut_seq < (SELECT cut_seq FROM compactions WHERE conversation = NEW.conversation AND epoch = NEW.base_epoch)
BEGIN SELECT raise(ABORT, 'the cut of a compaction must not precede that of its base'); END;

CREATE TRIGGER compaction_token_only_grows BEFORE INSERT ON compactions
WHEN NEW.token <= (SELECT max(token) FROM compactions WHERE conversation = NEW.conversation)
BEGIN SELECT raise(ABORT, 'the token of a compaction must be newer than all before it'); END;

CREATE TRIGGER compaction_is_only_redacted BEFORE UPDATE ON compactions
WHEN NEW.conversation <> OLD.conversation OR NEW.epoch <> OLD.epoch OR NEW.base_epoch IS NOT OLD.base_epoch
  OR NEW.session <> OLD.session OR NEW.cut_seq <> OLD.cut_seq OR NEW.seen_seq <> OLD.seen_seq
  OR NEW.token IS NOT OLD.token OR NEW.at <> OLD.at OR NEW.redacted_at IS NULL
  OR json_type(NEW.body, '$.summary') IS NOT NULL OR json_type(NEW.body, '$.ledger') IS NOT NULL
  OR json_extract(NEW.body, '$.pinned') IS NOT json_extract(OLD.body, '$.pinned')
BEGIN SELECT raise(ABORT, 'a compaction is immutable except for redaction'); END;

CREATE TRIGGER compaction_is_not_deleted BEFORE DELETE ON compactions
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'a compaction is deleted only with its conversation'); END;

-- hides ------------------------------------------------------------------------------------------------

CREATE TRIGGER hide_lies_within_the_log BEFORE INSERT ON hides
WHEN NOT EXISTS (
       SELECT 1 FROM conversations
        WHERE key = NEW.conversation AND NEW.to_seq <= last_seq AND NEW.epoch = epoch)
  OR NEW.shown_epoch IS NOT NULL
BEGIN SELECT raise(ABORT, 'a hidden range must lie within the log'); END;

CREATE TRIGGER hide_is_only_shown BEFORE UPDATE ON hides
WHEN NEW.conversation <> OLD.conversation OR NEW.epoch <> OLD.epoch OR NEW.from_seq <> OLD.from_seq
  OR NEW.to_seq <> OLD.to_seq OR OLD.shown_epoch IS NOT NULL
  OR NEW.shown_epoch IS NOT (SELECT epoch FROM conversations WHERE key = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a hidden range is immutable except for being shown again once'); END;

CREATE TRIGGER hide_is_not_deleted BEFORE DELETE ON hides
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'a hidden range is deleted only with its conversation'); END;

-- leases -----------------------------------------------------------------------------------------------

CREATE TRIGGER lease_token_is_the_newest BEFORE INSERT ON leases
WHEN NEW.token IS NOT (SELECT fence FROM conversations WHERE key = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a new lease must have the newest token'); END;

CREATE TRIGGER lease_token_never_goes_back BEFORE UPDATE ON leases
WHEN NEW.conversation <> OLD.conversation OR NEW.purpose <> OLD.purpose
  OR (NEW.token <> OLD.token AND NEW.token IS NOT (SELECT fence FROM conversations WHERE key = NEW.conversation))
  OR (NEW.token = OLD.token AND (NEW.holder <> OLD.holder OR NEW.snap_seq <> OLD.snap_seq))
BEGIN SELECT raise(ABORT, 'a lease changes its holder only with the newest token'); END;

-- routes -----------------------------------------------------------------------------------------------

CREATE TRIGGER route_version_only_grows BEFORE UPDATE ON routes
WHEN NEW.key <> OLD.key OR NEW.version <= OLD.version
BEGIN SELECT raise(ABORT, 'a route changes only with a new version'); END;

CREATE TRIGGER route_is_not_deleted BEFORE DELETE ON routes
BEGIN SELECT raise(ABORT, 'a route can be unbound but not deleted'); END;

-- budgets ----------------------------------------------------------------------------------------------

CREATE TRIGGER budget_begins_at_one BEFORE INSERT ON budgets
WHEN NEW.version <> 1
BEGIN SELECT raise(ABORT, 'the first version of a budget must be 1'); END;

CREATE TRIGGER budget_version_only_grows BEFORE UPDATE ON budgets
WHEN NEW.conversation <> OLD.conversation OR NEW.version <= OLD.version
BEGIN SELECT raise(ABORT, 'a budget changes only with a new version'); END;

CREATE TRIGGER budget_is_not_deleted BEFORE DELETE ON budgets
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'a budget is deleted only with its conversation'); END;

-- memories ---------------------------------------------------------------------------------------------

CREATE TRIGGER memory_count_is_limited BEFORE INSERT ON memories
WHEN (SELECT count(*) FROM memories WHERE owner = NEW.owner) >= 500
BEGIN SELECT raise(ABORT, 'an owner can have at most 500 memories'); END;

CREATE TRIGGER memory_is_only_revised BEFORE UPDATE ON memories
WHEN NEW.id <> OLD.id OR NEW.owner <> OLD.owner OR NEW.at <> OLD.at
  OR (NEW.source IS NOT OLD.source AND NEW.source IS NOT NULL)
BEGIN SELECT raise(ABORT, 'the owner and source of a memory are immutable'); END;

-- inbox ------------------------------------------------------------------------------------------------

CREATE TRIGGER inbox_entry_begins_open BEFORE INSERT ON inbox
WHEN NEW.outcome IS NOT NULL OR NEW.redacted_at IS NOT NULL
BEGIN SELECT raise(ABORT, 'a new inbox entry must be open'); END;

CREATE TRIGGER inbox_entry_is_settled_once BEFORE UPDATE ON inbox
WHEN OLD.outcome IS NOT NULL
 AND (NEW.outcome IS NOT OLD.outcome OR NEW.seq IS NOT OLD.seq OR NEW.settled_at IS NOT OLD.settled_at
   OR NEW.settled_by IS NOT OLD.settled_by)
BEGIN SELECT raise(ABORT, 'an outcome is final'); END;

CREATE TRIGGER inbox_content_is_immutable BEFORE UPDATE ON inbox
WHEN NEW.id <> OLD.id OR NEW.conversation <> OLD.conversation OR NEW.key <> OLD.key OR NEW.kind <> OLD.kind
  OR NEW.at <> OLD.at OR (NEW.text <> OLD.text AND (NEW.text <> '' OR OLD.redacted_at IS NOT NULL))
  OR (OLD.redacted_at IS NOT NULL AND NEW.redacted_at IS NOT OLD.redacted_at)
BEGIN SELECT raise(ABORT, 'the content of an inbox entry is immutable except for redaction'); END;

CREATE TRIGGER inbox_message_exists BEFORE UPDATE OF seq ON inbox
WHEN NEW.seq IS NOT NULL AND NOT EXISTS (SELECT 1 FROM messages WHERE id = (NEW.conversation << 32) + NEW.seq)
BEGIN SELECT raise(ABORT, 'the message of an inbox entry must exist'); END;

CREATE TRIGGER inbox_entry_is_not_deleted BEFORE DELETE ON inbox
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'an inbox entry is deleted only with its conversation'); END;

-- processes --------------------------------------------------------------------------------------------

CREATE TRIGGER process_begins_running BEFORE INSERT ON processes
WHEN NEW.state <> 'running'
BEGIN SELECT raise(ABORT, 'a new process must be running'); END;

CREATE TRIGGER process_end_is_final BEFORE UPDATE ON processes
WHEN OLD.state <> 'running'
 AND (NEW.state <> OLD.state OR NEW.ended_at IS NOT OLD.ended_at OR NEW.ended_by IS NOT OLD.ended_by
   OR NEW.exit_code IS NOT OLD.exit_code)
BEGIN SELECT raise(ABORT, 'the end of a process is final'); END;

CREATE TRIGGER process_end_has_a_notice BEFORE UPDATE OF state ON processes
WHEN NEW.state <> 'running'
 AND NOT EXISTS (SELECT 1 FROM inbox WHERE key = 'process:' || NEW.id AND conversation = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a process ends only with its notice in the inbox'); END;

CREATE TRIGGER process_identity_is_immutable BEFORE UPDATE ON processes
WHEN NEW.id <> OLD.id OR NEW.conversation <> OLD.conversation OR NEW.folder <> OLD.folder OR NEW.place <> OLD.place
  OR NEW.started_at <> OLD.started_at OR (NEW.command <> OLD.command AND NEW.command <> '')
BEGIN SELECT raise(ABORT, 'the identity of a process is immutable'); END;

CREATE TRIGGER process_is_not_deleted BEFORE DELETE ON processes
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'a process is deleted only with its conversation'); END;

-- grants -----------------------------------------------------------------------------------------------

CREATE TRIGGER grant_is_immutable BEFORE UPDATE ON grants
BEGIN SELECT raise(ABORT, 'a grant can be revoked but not changed'); END;

-- audit ------------------------------------------------------------------------------------------------

CREATE TRIGGER audit_begins_open BEFORE INSERT ON audit
WHEN NEW.ended_at IS NOT NULL OR NEW.redacted_at IS NOT NULL
BEGIN SELECT raise(ABORT, 'a tool call must be logged before it ends'); END;

CREATE TRIGGER audit_is_only_ended BEFORE UPDATE ON audit
WHEN NEW.id <> OLD.id OR NEW.conversation <> OLD.conversation OR NEW.uid <> OLD.uid OR NEW.call_id <> OLD.call_id
  OR NEW.tool <> OLD.tool OR NEW.allowed <> OLD.allowed OR NEW.decided_by <> OLD.decided_by OR NEW.at <> OLD.at
  OR (OLD.ended_at IS NOT NULL AND (NEW.ended_at IS NOT OLD.ended_at OR NEW.ok IS NOT OLD.ok))
  OR (NEW.summary <> OLD.summary AND (NEW.redacted_at IS NULL OR OLD.redacted_at IS NOT NULL))
  OR (OLD.redacted_at IS NOT NULL AND NEW.redacted_at IS NOT OLD.redacted_at)
BEGIN SELECT raise(ABORT, 'an audit entry is immutable except for its end and redaction'); END;

CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
WHEN EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation)
BEGIN SELECT raise(ABORT, 'an audit entry is deleted only with its conversation'); END;

-- arrivals ---------------------------------------------------------------------------------------------

CREATE TRIGGER arrival_begins_open BEFORE INSERT ON arrivals
WHEN NEW.outcome IS NOT NULL OR NEW.redacted_at IS NOT NULL OR NEW.attempts <> 0 OR NEW.target IS NOT NULL
  OR NEW.joined IS NOT NULL
BEGIN SELECT raise(ABORT, 'a new inbound message must be open'); END;

CREATE TRIGGER arrival_is_settled_once BEFORE UPDATE ON arrivals
WHEN OLD.outcome IS NOT NULL
 AND (NEW.outcome IS NOT OLD.outcome OR NEW.settled_at IS NOT OLD.settled_at
   OR (NEW.seq IS NOT OLD.seq AND (NEW.seq IS NOT NULL OR NEW.conversation IS NOT NULL))
   OR NEW.settled_by IS NOT OLD.settled_by OR NEW.attempts <> OLD.attempts OR NEW.target IS NOT OLD.target
   OR NEW.joined IS NOT OLD.joined)
BEGIN SELECT raise(ABORT, 'an outcome is final'); END;

CREATE TRIGGER arrival_content_is_immutable BEFORE UPDATE ON arrivals
WHEN NEW.id <> OLD.id OR NEW.platform <> OLD.platform OR NEW.key <> OLD.key OR NEW.route <> OLD.route
  OR NEW.home <> OLD.home OR NEW.chat <> OLD.chat OR NEW.sender <> OLD.sender OR NEW.at <> OLD.at
  OR NEW.received_by IS NOT OLD.received_by
  OR (NEW.body <> OLD.body AND NEW.body <> '') OR (NEW.address <> OLD.address AND NEW.address <> '')
  OR (OLD.redacted_at IS NOT NULL AND NEW.redacted_at IS NOT OLD.redacted_at)
BEGIN SELECT raise(ABORT, 'the content of an inbound message is immutable except for redaction'); END;

CREATE TRIGGER arrival_target_is_final BEFORE UPDATE OF attempts, target, joined ON arrivals
WHEN NEW.attempts < OLD.attempts OR (OLD.target IS NOT NULL AND NEW.target IS NOT OLD.target)
  OR (OLD.joined IS NOT NULL AND NEW.joined IS NOT OLD.joined)
BEGIN SELECT raise(ABORT, 'the attempts at an inbound message never decrease, and its target is final'); END;

CREATE TRIGGER arrival_joins_its_route BEFORE UPDATE OF joined ON arrivals
WHEN NEW.joined IS NOT NULL AND OLD.joined IS NULL
 AND (OLD.attempts > 0 OR EXISTS (SELECT 1 FROM arrivals WHERE joined = NEW.id)
   OR NOT EXISTS (SELECT 1 FROM arrivals
                   WHERE id = NEW.joined AND route = NEW.route AND joined IS NULL AND outcome IS NEW.outcome))
BEGIN SELECT raise(ABORT, 'an inbound message can join only an open message of its route'); END;

CREATE TRIGGER arrival_stays_in_its_conversation BEFORE UPDATE OF conversation ON arrivals
WHEN OLD.outcome IS NOT NULL AND NEW.conversation IS NOT OLD.conversation
 AND (NEW.conversation IS NOT NULL OR EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation))
BEGIN SELECT raise(ABORT, 'an inbound message stays in its conversation while that exists'); END;

CREATE TRIGGER arrival_message_exists BEFORE UPDATE OF seq ON arrivals
WHEN NEW.seq IS NOT NULL
 AND NOT EXISTS (
       SELECT 1 FROM messages m JOIN arrivals a ON a.id = coalesce(NEW.joined, NEW.id)
        WHERE m.id = (NEW.conversation << 32) + NEW.seq
          AND CASE WHEN length('inbox:' || a.platform || ':' || a.key) <= 200
                   THEN m.uid IN ('inbox:' || a.platform || ':' || a.key, 'steer:inbox:' || a.platform || ':' || a.key)
                   ELSE substr(m.uid, 1, 6) IN ('inbox:', 'steer:') END)
BEGIN SELECT raise(ABORT, 'an inbound message must become the message with its key'); END;

CREATE TRIGGER arrival_is_not_deleted BEFORE DELETE ON arrivals
WHEN OLD.outcome IS NULL
BEGIN SELECT raise(ABORT, 'an open inbound message cannot be deleted'); END;

-- The texts are removed with the conversation. The rows stay, as a platform may deliver a message again.
CREATE TRIGGER conversation_redacts_its_mail AFTER DELETE ON conversations
BEGIN
  UPDATE arrivals
     SET outcome = 'deleted', settled_by = 'deletion', body = '', address = '',
         settled_at = coalesce((SELECT deleted_at FROM tombstones WHERE id = OLD.id), OLD.created_at),
         redacted_at = coalesce((SELECT deleted_at FROM tombstones WHERE id = OLD.id), OLD.created_at)
   WHERE outcome IS NULL
     AND coalesce((SELECT a.target FROM arrivals a WHERE a.id = arrivals.joined), target)
         IN (SELECT id FROM sessions WHERE conversation = OLD.key);
  UPDATE arrivals
     SET conversation = NULL, seq = NULL, body = '', address = '',
         redacted_at = coalesce(redacted_at, (SELECT deleted_at FROM tombstones WHERE id = OLD.id), OLD.created_at)
   WHERE conversation = OLD.key;
END;

-- claims -----------------------------------------------------------------------------------------------

CREATE TRIGGER claim_token_never_goes_back BEFORE UPDATE ON claims
WHEN NEW.key <> OLD.key OR NEW.token < OLD.token
  OR (NEW.token = OLD.token AND NEW.holder IS NOT NULL AND NEW.holder IS NOT OLD.holder)
BEGIN SELECT raise(ABORT, 'a chat lease changes its holder only with a new token'); END;

CREATE TRIGGER claim_is_not_deleted BEFORE DELETE ON claims
BEGIN SELECT raise(ABORT, 'a chat lease can be released but not deleted'); END;

-- outbox -----------------------------------------------------------------------------------------------

CREATE TRIGGER outgoing_begins_open BEFORE INSERT ON outbox
WHEN NEW.delivered_at IS NOT NULL OR NEW.failed_at IS NOT NULL OR NEW.redacted_at IS NOT NULL OR NEW.attempts <> 0
BEGIN SELECT raise(ABORT, 'a new outbound message must be undelivered'); END;

CREATE TRIGGER outgoing_comes_with_its_outcome BEFORE INSERT ON outbox
WHEN NEW.part IS NOT NULL
 AND NOT EXISTS (SELECT 1 FROM arrivals WHERE id = NEW.arrival AND settled_at = NEW.at)
 AND NOT EXISTS (SELECT 1 FROM inbox WHERE id = NEW.inbound AND settled_at = NEW.at AND conversation = NEW.conversation)
BEGIN SELECT raise(ABORT, 'a reply must be written with the outcome of the message it answers'); END;

CREATE TRIGGER outgoing_answers_in_the_same_chat BEFORE INSERT ON outbox
WHEN NEW.arrival IS NOT NULL
 AND NOT EXISTS (
       SELECT 1 FROM arrivals
        WHERE id = NEW.arrival AND home = NEW.platform AND chat = NEW.chat AND address = NEW.address
          AND (NEW.part IS NULL OR conversation IS NEW.conversation))
BEGIN SELECT raise(ABORT, 'a reply must go to the chat of the message it answers'); END;

CREATE TRIGGER outgoing_parts_have_no_gap BEFORE INSERT ON outbox
WHEN NEW.part > 0
 AND NOT EXISTS (SELECT 1 FROM outbox WHERE arrival = NEW.arrival AND part = NEW.part - 1)
 AND NOT EXISTS (SELECT 1 FROM outbox WHERE inbound = NEW.inbound AND part = NEW.part - 1)
BEGIN SELECT raise(ABORT, 'the parts of a reply must be numbered without gaps'); END;

CREATE TRIGGER outgoing_end_is_final BEFORE UPDATE ON outbox
WHEN (OLD.delivered_at IS NOT NULL OR OLD.failed_at IS NOT NULL)
 AND (NEW.delivered_at IS NOT OLD.delivered_at OR NEW.failed_at IS NOT OLD.failed_at
   OR NEW.external IS NOT OLD.external OR NEW.error IS NOT OLD.error OR NEW.attempts <> OLD.attempts
   OR NEW.due_at <> OLD.due_at)
BEGIN SELECT raise(ABORT, 'a delivery and a final failure cannot be changed'); END;

CREATE TRIGGER outgoing_content_is_immutable BEFORE UPDATE ON outbox
WHEN NEW.id <> OLD.id OR NEW.arrival IS NOT OLD.arrival OR NEW.part IS NOT OLD.part OR NEW.key IS NOT OLD.key
  OR NEW.seq IS NOT OLD.seq OR NEW.platform <> OLD.platform OR NEW.chat <> OLD.chat OR NEW.kind <> OLD.kind
  OR NEW.at <> OLD.at OR NEW.attempts < OLD.attempts OR (NEW.body <> OLD.body AND NEW.body <> '')
  OR NEW.address <> OLD.address OR NEW.conversation IS NOT OLD.conversation OR NEW.inbound IS NOT OLD.inbound
  OR (OLD.redacted_at IS NOT NULL AND NEW.redacted_at IS NOT OLD.redacted_at)
BEGIN SELECT raise(ABORT, 'the content of an outbound message is immutable except for redaction'); END;

CREATE TRIGGER outgoing_is_not_deleted BEFORE DELETE ON outbox
WHEN OLD.delivered_at IS NULL AND OLD.failed_at IS NULL
 AND (OLD.conversation IS NULL OR EXISTS (SELECT 1 FROM conversations WHERE key = OLD.conversation))
BEGIN SELECT raise(ABORT, 'an undelivered outbound message cannot be deleted'); END;

-- pins -------------------------------------------------------------------------------------------------

CREATE TRIGGER pin_lies_within_the_log BEFORE INSERT ON pins
WHEN NEW.seq > coalesce((SELECT last_seq FROM conversations WHERE key = NEW.conversation), -1)
BEGIN SELECT raise(ABORT, 'a pin must lie within the log'); END;

CREATE TRIGGER pin_count_is_limited BEFORE INSERT ON pins
WHEN (SELECT count(*) FROM pins WHERE conversation = NEW.conversation) >= 100
BEGIN SELECT raise(ABORT, 'a conversation can have at most 100 pins'); END;

CREATE TRIGGER pin_is_immutable BEFORE UPDATE ON pins
BEGIN SELECT raise(ABORT, 'a pin can be added or removed but not changed'); END;

-- tombstones -------------------------------------------------------------------------------------------

CREATE TRIGGER tombstone_is_immutable BEFORE UPDATE ON tombstones
BEGIN SELECT raise(ABORT, 'a tombstone can be neither changed nor deleted'); END;

CREATE TRIGGER tombstone_is_not_deleted BEFORE DELETE ON tombstones
BEGIN SELECT raise(ABORT, 'a tombstone can be neither changed nor deleted'); END;
