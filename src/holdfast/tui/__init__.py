"""The full screen, built on Textual."""
