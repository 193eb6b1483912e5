"""The agent over JSON-RPC, for custom clients."""
