"""Rendering for terminals, shared by the chat, the full screen and the command line."""
