"""Rules that decide whether a tool call is allowed, denied or confirmed by a person."""
