"""The parts of the store, each by itself; the folder mirrors src/holdfast/store."""
