"""Tools: what an agent can do besides talking. They are strangers to the store and to models."""
