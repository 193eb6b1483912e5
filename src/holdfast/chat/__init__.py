"""The chat in the terminal's scrollback, built on prompt_toolkit."""
