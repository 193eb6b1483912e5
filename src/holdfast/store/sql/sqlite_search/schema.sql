-- The search index of a store, in a file of its own that may be thrown away at any time.
--
-- It holds no text, only which words stand where: a row's id is the message's own id in the log. What is
-- found is read from the log. `around` has the words of the neighbouring turns, which often say what a
-- short answer is about; `tags` has one word each for role, owner and tools, so that filters cost nothing.

CREATE TABLE meta (
  key   TEXT NOT NULL PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE progress (
  conversation INTEGER PRIMARY KEY,
  upto         INTEGER NOT NULL
) STRICT;

CREATE VIRTUAL TABLE words USING fts5 (
  text, around, tags, content = '', contentless_delete = 1, tokenize = 'porter unicode61 remove_diacritics 2'
);
