-- The search index of a store, in a separate file that can be deleted and rebuilt at any time.
--
-- It stores no text: the id of a row is the id of its message, which is read from the log. `around` has the words of the
-- neighbouring turns, which give a short answer its topic; `tags` has words for role, owner and tools to filter by.

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
