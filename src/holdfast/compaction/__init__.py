"""Compaction: when, where to cut, what to say, commit."""
