"""Compaction: decide when, find the cut, write the summary, commit."""
