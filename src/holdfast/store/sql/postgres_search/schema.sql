-- The search index of a store, in tables beside it. It can be thrown away at any time: its rows are deleted.
--
-- It holds no text, only which words stand where. PostgreSQL's own full-text search is not asked: its ranking knows
-- nothing of how rare a word is, and fetches every message that has one of the words. Here a row has all the places of
-- one word in a block of 256 messages of a conversation, so that a question of some words reads some hundred rows of
-- each.
--
-- A place is one number: the message in its block (8 bits), how often it has the word (4 bits, at its first place
-- there, else 0), and which word of the message it is (19 bits). Tags (who said it, by which tool) are words too,
-- which begin with `#`. What neighbours lend each other is worked out when somebody asks; only how many words a
-- message and its neighbours have together is kept.
--
-- Whoever writes here holds one lock for the whole index, so nothing else is in the way of anybody.

CREATE TABLE search_meta (
  key   text COLLATE "C" NOT NULL PRIMARY KEY,
  value text COLLATE "C" NOT NULL
);

CREATE TABLE search_progress (
  conversation bigint NOT NULL PRIMARY KEY,
  upto         bigint NOT NULL
);

CREATE TABLE search_totals (
  id       bigint NOT NULL PRIMARY KEY CHECK (id = 1),
  messages bigint NOT NULL,
  words    bigint NOT NULL
);

CREATE TABLE search_blocks (
  conversation bigint NOT NULL,
  block        bigint NOT NULL,
  owner        text COLLATE "C" NOT NULL,
  lengths      integer[] NOT NULL,
  PRIMARY KEY (conversation, block)
);

CREATE TABLE search_words (
  conversation bigint NOT NULL,
  block        bigint NOT NULL,
  messages     bigint NOT NULL,
  word         text COLLATE "C" NOT NULL,
  places       integer[] NOT NULL,
  PRIMARY KEY (word, conversation, block)
);

CREATE INDEX search_words_by_block ON search_words (conversation, block);
