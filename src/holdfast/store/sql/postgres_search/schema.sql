-- The search index of a store. It can be discarded at any time by deleting its rows.
--
-- It holds no text, only the positions of words. PostgreSQL's own full-text search is not used: its ranking ignores how
-- rare a word is, and it reads every message that has one of the words. Here a row has all positions of one word in a
-- block of 256 messages of a conversation, so that a query reads some hundred rows per word.
--
-- A position is one integer: the message in its block (8 bits), the count of the word in the message (4 bits, at its
-- first position there, else 0), and the number of the word in the message (19 bits). Tags (role, tool) are words that
-- begin with `#`. `lengths` has the number of words of each message and its neighbours together, and 0 where there is
-- no message: an array with NULLs would have to be searched from its start for every element.
--
-- Writers hold one lock for the whole index.

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
