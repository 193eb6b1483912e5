"""The agent: the loop of a turn, the runtime that is the one door to it, and the slash commands."""
