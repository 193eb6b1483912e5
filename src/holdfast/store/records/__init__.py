"""Background processes, permissions and memory notes."""
