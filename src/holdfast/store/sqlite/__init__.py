"""The SQLite driver, built on apsw."""
