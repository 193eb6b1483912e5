"""A long conversation with known facts, for the figures on what compaction keeps."""
