"""The plain terminal: a chat in scrollback, and what is safe to show there."""
